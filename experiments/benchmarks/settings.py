# SPDX-License-Identifier: Apache-2.0
"""This program's config for a work that is measured, how its fields are overridden, and lists of
numbers on the command line.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.work import DROPOUT, Work
from transformer.config import Config, DataConfig
from transformer.errors import InputError
from transformer.fields import flat, unknown_field

_COMMA = re.compile(r",(?![^(]*\))")
"""One that is not within brackets."""

Overrides = dict[str, Any]
"""Config fields, as ``model.dropout``, and their values."""


def config_of(work: Work, overrides: Mapping[str, Any] | None = None) -> Config:
    """The config whose only batch is that of the work, or whose batches are of its buckets.

    Args:
      work: what is measured.
      overrides: fields that differ from what users get.

    Raises:
      InputError: for a field that there is not, or a value it cannot have.
    """
    longest = max(work.source, work.target)
    inside = DROPOUT if work.dropout_inside else 0.0
    fields = {
        "model": {
            "vocab_size": work.vocabulary,
            "num_layers": work.layers,
            "d_model": work.d_model,
            "d_ff": work.d_ff,
            "num_heads": work.heads,
            "dropout": DROPOUT,
            "attention_dropout": inside,
            "activation_dropout": inside,
        },
        "data": {
            "max_length": longest,
            "bucket_lengths": tuple(work.buckets) or (longest,),
            "tokens_per_batch": work.rows * longest,
            "row_multiple": DataConfig.row_multiple if work.buckets else work.rows,
        },
    }
    known = flat(Config())
    for name, value in (overrides or {}).items():
        if name not in known:
            raise InputError(unknown_field(name, list(known)))
        group, _, field = name.partition(".")
        fields.setdefault(group, {})[field] = value
    return Config.from_dict(fields)


def numbers(flag: str, texts: Sequence[str], least: int = 1) -> list[int]:
    """Those of a flag.

    Raises:
      InputError: for one that is not a whole number, or is below `least`.
    """
    for text in texts:
        if not text.isdecimal() or int(text) < least:
            raise InputError(
                f"--{flag}={','.join(texts)}: {text!r} is not a whole number of at least {least}"
            )
    return list(map(int, texts))


def parse_variant(text: str) -> tuple[str, Overrides]:
    """``NAME:FIELD=VALUE,FIELD=VALUE`` as the name and the fields.

    Raises:
      InputError: when it has another form.
    """
    name, colon, rest = text.partition(":")
    fields = _fields(rest)
    if not (name and colon and fields):
        raise InputError(
            f"--variant={text}: write NAME:FIELD=VALUE,FIELD=VALUE, for example "
            "no_dropout:model.dropout=0.0"
        )
    return name, fields


def parse_own(text: str) -> Overrides:
    """``FIELD=VALUE,FIELD=VALUE`` as the fields; none when it is empty.

    Raises:
      InputError: when it has another form.
    """
    fields = _fields(text)
    if text and not fields:
        raise InputError(
            f"--own={text}: write FIELD=VALUE,FIELD=VALUE, for example model.dropout=0.0"
        )
    return fields


def _fields(text: str) -> Overrides:
    """Empty when a part of the text is not ``FIELD=VALUE``; a value may have commas in brackets."""
    pairs = [pair.partition("=") for pair in _COMMA.split(text)]
    if not all(field.strip() and equals for field, equals, _ in pairs):
        return {}
    return {field.strip(): _value(value) for field, _, value in pairs}


def _value(text: str) -> Any:
    """A number, None or a truth value where it reads as one, and otherwise a name."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
