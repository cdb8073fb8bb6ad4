# SPDX-License-Identifier: Apache-2.0
"""Typed groups of fields: what `config` is written in.

A group is a frozen dataclass that checks the type of every field when it is made, names its fields
as the command line does, and refuses a field that does not exist with the nearest one that does.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from transformer.errors import InputError


class Group:
    """The fields of one subject; `group` is its command-line name, empty for the outermost."""

    group: ClassVar[str] = ""
    former_names: ClassVar[dict[str, str]] = {}
    """Field names of earlier versions, which a ``config.json`` may still have, and today's."""

    def __post_init__(self) -> None:
        for name, expected in typing.get_type_hints(type(self)).items():
            if typing.get_origin(expected) is ClassVar:
                continue
            value = getattr(self, name)
            if expected is float and type(value) is int:
                value = float(value)
                object.__setattr__(self, name, value)
            if type(value) is float and not math.isfinite(value):
                raise InputError(f"{self.path(name)} is {value!r}, but must be finite")
            if not _is_a(value, expected):
                raise InputError(
                    f"{self.path(name)} is {value!r}, but must be {_describe(expected)}"
                )
        self.validate()

    def validate(self) -> None:
        """Checks the values against each other; raises InputError."""

    @classmethod
    def path(cls, name: str) -> str:
        """The field's name as on the command line, without ``--config.``."""
        return f"{cls.group}.{name}" if cls.group else name

    def require(self, condition: bool, name: str, must: str) -> None:
        """Raises an InputError that names the field, its value and what it must be."""
        if not condition:
            raise InputError(f"{self.path(name)} is {getattr(self, name)!r}, but must be {must}")

    def require_positive(self, *names: str) -> None:
        """Each named field, where it is not None, must be at least 1."""
        for name in names:
            value = getattr(self, name)
            self.require(value is None or value >= 1, name, "at least 1")

    def require_rates(self, *names: str) -> None:
        """Each named field must be a share in [0, 1)."""
        for name in names:
            self.require(0 <= getattr(self, name) < 1, name, "at least 0 and below 1")

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def variant(cls, values: dict[str, Any]) -> type[Self]:
        """The class that these values describe; a union of groups overrides this."""
        return cls

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Makes the group from a (possibly nested) dict; every unknown field is refused by name."""
        variant = cls.variant(values)
        if variant is not cls:
            return variant.from_dict(values)
        hints = {f.name: f.type for f in dataclasses.fields(cls)}
        hints = {name: typing.get_type_hints(cls)[name] for name in hints}
        arguments = {}
        for name, value in values.items():
            name = cls.former_names.get(name, name)
            if name not in hints:
                raise InputError(unknown_field(cls.path(name), [cls.path(h) for h in hints]))
            expected = hints[name]
            if isinstance(expected, type) and issubclass(expected, Group):
                if not isinstance(value, dict):
                    raise InputError(
                        f"{cls.path(name)} is {value!r}, but must be a group of fields"
                    )
                value = expected.from_dict(value)
            elif isinstance(value, list):
                value = tuple(value)
            arguments[name] = value
        return cls(**arguments)


def flat(fields: Group) -> dict[str, Any]:
    """All fields by their command-line path, for example ``{"model.d_model": 512, ...}``."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(fields):
        value = getattr(fields, field.name)
        values |= flat(value) if isinstance(value, Group) else {fields.path(field.name): value}
    return values


def difference(old: Group, new: Group) -> dict[str, tuple[Any, Any]]:
    """The fields on which two groups of one kind differ: path -> (old, new)."""
    before, after = flat(old), flat(new)
    return {
        path: (before.get(path), after.get(path))
        for path in before | after
        if before.get(path) != after.get(path)
    }


def unknown_field(path: str, known: list[str]) -> str:
    """The message for a field that does not exist, with the nearest name that does."""
    return f"unknown config field {path!r}; did you mean {nearest(path, known)!r}?"


def nearest(name: str, known: Sequence[str]) -> str:
    """Of the names there are, the one most like a name that is not there."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]


def _is_a(value: Any, expected: Any) -> bool:
    origin = typing.get_origin(expected)
    if origin is Literal:
        return value in typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return any(_is_a(value, option) for option in typing.get_args(expected))
    if origin is tuple:
        return isinstance(value, tuple) and all(
            _is_a(item, typing.get_args(expected)[0]) for item in value
        )
    if isinstance(expected, type) and issubclass(expected, Group):
        return isinstance(value, expected)
    return type(value) is expected


def _describe(expected: Any) -> str:
    origin = typing.get_origin(expected)
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in typing.get_args(expected))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(option) for option in typing.get_args(expected))
    if origin is tuple:
        return f"a tuple of {_describe(typing.get_args(expected)[0])}"
    if expected is type(None):
        return "left out"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return names.get(expected, getattr(expected, "__name__", str(expected)))
