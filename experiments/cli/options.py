# SPDX-License-Identifier: Apache-2.0
"""Flags made from a dataclass of options, and the options made from the flags.

A field is a flag with its name, and the string that follows the field is the flag's help. Fields
that hold a config are no flags.
"""

import dataclasses
import types
import typing
from typing import Any, Literal, TypeVar

from absl import flags
from etils import epath

from experiments.cli.usage import meanings
from transformer import paths
from transformer.config import Config
from transformer.errors import InputError

Options = TypeVar("Options")


def define(options: type) -> None:
    """Define the flags of a dataclass.

    Text, numbers, ``Literal`` and bool are flags of that kind, ``tuple[str, ...]`` and
    ``tuple[int, ...]`` lists with commas; with ``metadata={"repeated": True}`` a flag may be
    repeated. The underscore in the name of a field such as `from_` is left out.
    """
    texts, kinds = meanings(options), _kinds(options)
    for field in _flag_fields(options):
        kind, name = kinds[field.name], field.name.rstrip("_")
        about = {"help": texts[field.name]}
        if typing.get_origin(kind) is Literal:
            flags.DEFINE_enum(name, field.default, list(typing.get_args(kind)), **about)
        elif field.metadata.get("repeated"):
            flags.DEFINE_multi_string(name, list(field.default), **about)
        elif typing.get_origin(kind) is tuple:
            default = field.default and ",".join(map(str, field.default))
            flags.DEFINE_list(name, default, **about)
        else:
            _DEFINE[kind](name, field.default, **about)


def read(options: type[Options], **given: Any) -> Options:
    """The options that the parsed flags describe, with the fields `given`."""
    values, kinds = {}, _kinds(options)
    for field in _flag_fields(options):
        value = flags.FLAGS[field.name.rstrip("_")].value
        if isinstance(value, list):
            value = tuple(value)
            if kinds[field.name] == tuple[int, ...]:
                value = parse_integers(field.name, value)
        values[field.name] = value
    return options(**values, **given)


def parse_integers(flag: str, texts: typing.Sequence[str]) -> tuple[int, ...]:
    """Parse the values of a list flag."""
    if not texts:
        raise InputError(f"--{flag}= is empty; give whole numbers, separated by commas")
    for text in texts:
        if not text.isdecimal() or int(text) < 1:
            raise InputError(
                f"--{flag}={','.join(texts)}: {text!r} is not a whole number of at least 1"
            )
    return tuple(map(int, texts))


def require_at_least(least: int, **numbers: int | None) -> None:
    """Reject numbers below a limit; None is a flag that was not given.

    Args:
      least: the limit.
      numbers: value of each flag by its name.
    """
    for flag, number in numbers.items():
        if number is not None and number < least:
            raise InputError(f"--{flag}={number}, but it must be at least {least}")


def output_file(path: str | None, suffix: str = "") -> epath.Path:
    """The path of ``--output``, checked before anything is computed."""
    if not path:
        raise InputError(f"missing --output=FILE{suffix}")
    output = paths.reachable(path)
    if output.is_dir():
        raise InputError(f"--output={output} is a directory; name a file")
    if not (paths.is_remote(output) or output.parent.is_dir()):
        raise InputError(f"--output={output}: its folder does not exist; make it first")
    return output


_DEFINE = {
    str: flags.DEFINE_string,
    bool: flags.DEFINE_boolean,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
}


def _flag_fields(options: type) -> list[dataclasses.Field]:
    kinds = _kinds(options)
    return [each for each in dataclasses.fields(options) if kinds[each.name] is not Config]


def _kinds(options: type) -> dict[str, Any]:
    """The type of each field, without None."""
    return {name: _without_none(kind) for name, kind in typing.get_type_hints(options).items()}


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    [only] = (each for each in typing.get_args(kind) if each is not type(None))
    return only
