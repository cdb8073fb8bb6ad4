# SPDX-License-Identifier: Apache-2.0
"""Config of this project for a workload, and values on the command line of benchmarks."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from experiments.benchmarks.workloads import DROPOUT, Workload
from transformer.config import Config, DataConfig
from transformer.errors import InputError


def config_of(workload: Workload, overrides: Mapping[str, Any] | None = None) -> Config:
    """Config whose only batch shape is that of the workload, or whose batches are of its buckets.

    Args:
      workload: sizes.
      overrides: values by path, for example ``model.dropout``.

    Raises:
      InputError: for an unknown field or an invalid value in `overrides`.
    """
    longest = max(workload.source_length, workload.target_length)
    inner = DROPOUT if workload.inner_dropout else 0.0
    of_family = {
        "transformer": {
            "d_ff": workload.d_ff,
            "num_heads": workload.num_heads,
            "attention_dropout": inner,
            "activation_dropout": inner,
        },
        "recurrent": {"cell": "lstm", "encoder_direction": "forward", "attention": "none"},
    }
    fields: dict[str, dict[str, Any]] = {
        "model": {
            "family": workload.family,
            "vocab_size": workload.vocab_size,
            "num_layers": workload.num_layers,
            "d_model": workload.d_model,
            "dropout": DROPOUT,
            **of_family[workload.family],
        },
        "data": {
            "max_length": longest,
            "bucket_lengths": workload.buckets or (longest,),
            "tokens_per_batch": workload.batch_size * longest,
            "row_multiple": min(DataConfig.row_multiple, workload.batch_size)
            if workload.buckets
            else workload.batch_size,
        },
    }
    for path, value in (overrides or {}).items():
        group, _, field = path.partition(".")
        fields.setdefault(group, {})[field] = value
    return Config.from_dict(fields)


def parse_overrides(flag: str, text: str) -> dict[str, Any]:
    """Parse ``FIELD=VALUE,FIELD=VALUE``; values are Python literals or else text.

    Raises:
      InputError: if the text has another form.
    """
    overrides: dict[str, Any] = {}
    # A tuple has commas too, but no field name after them.
    for pair in re.split(r",\s*(?=[\w.]*=)", text) if text else ():
        path, equals, value = pair.partition("=")
        if not (path and equals):
            raise InputError(
                f"--{flag}: {pair!r} is not FIELD=VALUE; write for example "
                f"--{flag}=model.dropout=0.0,model.d_ff=512"
            )
        try:
            overrides[path] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            overrides[path] = value
    return overrides
