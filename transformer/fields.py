# SPDX-License-Identifier: Apache-2.0
"""Typed groups of config fields.

A group is a frozen dataclass that checks the type and the bounds of every field, names its fields
as the command line does, and rejects an unknown field with the nearest known name.
"""

import dataclasses
import difflib
import functools
import inspect
import math
import operator
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of a number, as metadata of a field's type: ``Annotated[int, Bounds(1, 1024)]``.

    In a tuple they hold for every item; None is never out of bounds.
    """

    at_least: float = -math.inf
    at_most: float = math.inf
    _: dataclasses.KW_ONLY
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, tuple):
            return all(item in self for item in value)
        return value is None or (
            self.at_least <= value <= self.at_most and self.above < value < self.below
        )

    def __str__(self) -> str:
        names = ("at_least", "above", "at_most", "below")
        bounds = [(name.replace("_", " "), getattr(self, name)) for name in names]
        return " and ".join(f"{name} {_number(b)}" for name, b in bounds if math.isfinite(b))


# What is computed in int32 or float32 has bounds that leave room for a square or a product.
Rate = Annotated[float, Bounds(0, below=1)]
Seed = Annotated[int, Bounds(0, below=2**32)]
Length = Annotated[int, Bounds(1, 2**20)]
Positive = Annotated[int, Bounds(1, below=2**31)]
Count = Annotated[int, Bounds(0, below=2**31)]
PositiveReal = Annotated[float, Bounds(1e-30, 1e18)]
NonNegativeReal = Annotated[float, Bounds(0, 1e18)]


class FieldGroup:
    """The fields of one subject; `group` is its name on the command line, empty for the root."""

    group: ClassVar[str] = ""
    former_names: ClassVar[dict[str, str]] = {}
    """From field names of earlier versions, which a ``config.json`` may have, to current names."""
    removed_fields: ClassVar[dict[str, Any]] = {}
    """Fields of earlier versions and the values that they may have in a ``config.json``."""

    def __new__(cls, *_: Any, **values: Any) -> Self:
        """Check the names of the fields, which `__init__` would report without the nearest."""
        if inspect.get_annotations(cls) and "__dataclass_fields__" not in vars(cls):
            raise InputError(
                f"the fields of {cls.__name__} are ignored; decorate the class with "
                "@dataclasses.dataclass(frozen=True)"
            )
        cls.require_known(values)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, expected in field_types(type(self)).items():
            value = _converted(getattr(self, name), expected)
            object.__setattr__(self, name, value)
            if type(value) is float and not math.isfinite(value):
                raise InputError(f"{self.path(name)} is {value!r}, but must be finite")
            self.require(_is_a(value, expected), name, _describe(expected))
        for name, hint in _hints(type(self)).items():
            for bounds in _bounds(hint):
                self.require(getattr(self, name) in bounds, name, str(bounds))
        self.validate()

    def validate(self) -> None:
        """Check the values and how they fit together; subclasses override this.

        Raises:
          InputError: naming a field, its value and what it must be.
        """

    @classmethod
    def path(cls, name: str) -> str:
        """The field's name on the command line, without ``--config.``."""
        return f"{cls.group}.{name}" if cls.group else name

    def require(self, condition: bool, name: str, must: str) -> None:
        """Raise an InputError with the field's name and value unless the condition holds."""
        if not condition:
            raise InputError(f"{self.path(name)} is {getattr(self, name)!r}, but must be {must}")

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed; an InputError for an unknown field."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def require_known(cls, names: Iterable[str]) -> None:
        """Raise an InputError, with the nearest known name, for a name that is no field."""
        known = [cls.path(name) for name in field_types(cls)]
        for name in names:
            if cls.path(name) not in known:
                raise InputError(unknown_field(cls.path(name), known))

    @classmethod
    def _check_removed(cls, name: str, value: Any) -> None:
        if value != cls.removed_fields[name]:
            raise InputError(
                f"{cls.path(name)} is {value!r}, but this version no longer has the field; remove "
                "it from the config, or use the version that wrote it"
            )

    @classmethod
    def variant(cls, values: dict[str, Any]) -> type[Self]:
        """The class that these values are for; a union of groups overrides this."""
        return cls

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Construct the group from a dict, nested for nested groups."""
        variant = cls.variant(values)
        if variant is not cls:
            return variant.from_dict(values)
        expected, arguments = field_types(cls), {}
        for name, value in values.items():
            if name in cls.removed_fields:
                cls._check_removed(name, value)
                continue
            name = cls.former_names.get(name, name)
            cls.require_known([name])
            if _is_group(expected[name]) and isinstance(value, dict):
                value = expected[name].from_dict(value)
            elif isinstance(value, list):
                value = tuple(value)
            arguments[name] = value
        return cls(**arguments)


def flat(fields: FieldGroup) -> dict[str, Any]:
    """All fields by their command-line name, for example ``{"model.d_model": 512, ...}``."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(fields):
        value = getattr(fields, field.name)
        nested = isinstance(value, FieldGroup)
        values |= flat(value) if nested else {fields.path(field.name): value}
    return values


def difference(old: FieldGroup, new: FieldGroup) -> dict[str, tuple[Any, Any]]:
    """The fields in which two groups differ: name -> (old, new)."""
    before, after = flat(old), flat(new)
    return {
        path: (before.get(path), after.get(path))
        for path in before | after
        if before.get(path) != after.get(path)
    }


def unknown_field(path: str, known: list[str]) -> str:
    """The message for an unknown field, with the nearest known name."""
    return f"unknown config field {path!r}; did you mean {nearest(path, known)!r}?"


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name that is most like an unknown one."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]


@functools.cache
def _hints(group: type[FieldGroup]) -> dict[str, Any]:
    """The type of each field, with its metadata."""
    hints = typing.get_type_hints(group, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(group)}


@functools.cache
def field_types(group: type[FieldGroup]) -> dict[str, Any]:
    """The type of each field, without metadata."""
    return {name: _without_metadata(hint) for name, hint in _hints(group).items()}


def _without_metadata(hint: Any) -> Any:
    """`typing.get_type_hints` would also write ``int | None`` as ``Optional[int]``."""
    if typing.get_origin(hint) is Annotated:
        return typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Union:
        return functools.reduce(operator.or_, map(_without_metadata, typing.get_args(hint)))
    return hint


def _bounds(hint: Any) -> list[Bounds]:
    """The bounds of a type, or of the members of a union."""
    if typing.get_origin(hint) is Annotated:
        return [each for each in hint.__metadata__ if isinstance(each, Bounds)]
    return [each for option in typing.get_args(hint) for each in _bounds(option)]


def _number(value: float) -> str:
    """A number as in an error message: 2^20, 1,000 or 1e-09."""
    exponent = value.bit_length() - 1 if isinstance(value, int) else 0
    if exponent >= 16 and value == 2**exponent:
        return f"2^{exponent}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _converted(value: Any, expected: Any) -> Any:
    """NumPy's numbers as Python's, and an integer as a float where the field is one."""
    if isinstance(value, tuple):
        return tuple(_converted(item, expected) for item in value)
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is int and float in (typing.get_args(expected) or (expected,)):
        return float(value) if abs(value) < 2**1000 else math.inf
    return value


def _is_group(expected: Any) -> bool:
    return isinstance(expected, type) and issubclass(expected, FieldGroup)


def _is_a(value: Any, expected: Any) -> bool:
    origin, options = typing.get_origin(expected), typing.get_args(expected)
    if origin is Literal:
        return value in options
    if origin in (typing.Union, types.UnionType):
        return any(_is_a(value, option) for option in options)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_a(item, options[0]) for item in value)
    return isinstance(value, expected) if _is_group(expected) else type(value) is expected


def _describe(expected: Any) -> str:
    origin, options = typing.get_origin(expected), typing.get_args(expected)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, options))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_describe, options))
    if origin is tuple:
        return f"a tuple of {_describe(options[0])}"
    if _is_group(expected):
        return "a group of fields"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return (names | {type(None): "left out"})[expected]
