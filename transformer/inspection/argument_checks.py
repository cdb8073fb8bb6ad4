# SPDX-License-Identifier: Apache-2.0
"""Validation of arrays, tokens, indices and attention weights that are drawn or measured.

Every check raises `InputError`, which names the argument.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

import numpy as np
from jaxtyping import AbstractArray
from numpy.typing import ArrayLike

from transformer.arrays import Array, Bool, Float
from transformer.errors import InputError
from transformer.inspection.words import display_tokens

TOLERANCE = 1e-4
"""Largest difference between a drawn and the model's result, relative to the largest value."""
ROW_SUM_TOLERANCE = 1e-3
"""Largest difference of a row's sum from 1; it admits weights of half precision."""


def check_weights(
    weights: Float[Array | np.ndarray, "*L T S"],
    mask: Bool[Array | np.ndarray, "#T S"] | None = None,
    name: str = "attention weights",
) -> None:
    """Check that rows sum to 1 (softmax over the keys) and are exactly 0 where a mask is false."""
    weights = np.asarray(weights)
    check_distributions(
        name,
        weights,
        "give the weights after the softmax and before dropout, normalized over the last axis, the "
        "keys, and not over the heads",
    )
    if mask is not None:
        masked = np.where(np.asarray(mask), 0, weights)
        if masked.any():
            index = first_index(masked != 0)
            raise InputError(
                f"{name}: the weight at {list(index)} is {weights[index]:.6g}, but that query may "
                "not attend to that key; the mask and the weights are of different sentences"
            )


def check_distributions(name: str, rows: Float[np.ndarray, "... V"], remedy: str) -> None:
    """Check that each row, over the last axis, is a probability distribution."""
    sums = rows.sum(-1, dtype=np.float64)
    wrong = ~(np.abs(sums - 1) <= ROW_SUM_TOLERANCE) | (rows < 0).any(-1)
    if wrong.any():
        index = first_index(wrong)
        raise InputError(
            f"{name}: row {list(index)} sums to {sums[index]:.6g} with least value "
            f"{rows[index].min():.6g}, but probabilities sum to 1 and are never negative; {remedy}"
        )


def first_index(where: Bool[np.ndarray, "..."]) -> tuple[int, ...]:
    """Index of the first true element."""
    return tuple(int(index) for index in np.argwhere(where)[0])


def checked_index(name: str, index: int, size: int) -> int:
    """A position along an axis of this size; negative values count from the end."""
    if not -size <= index < size:
        raise InputError(
            f"{name} is {index}, but must be from 0 to {size - 1} (or from -{size} to -1, counted "
            "from the end)"
        )
    return index % size


def check_equal(
    name: str, drawn: Float[np.ndarray, "..."], model: Float[np.ndarray, "..."] | None
) -> None:
    """Check that a drawn result is the model's, if that is given."""
    if model is None:
        return
    difference = float(np.abs(drawn - model).max())
    if difference > TOLERANCE * (float(np.abs(model).max()) or 1.0):
        raise InputError(
            f"{name} differs by {difference:.3g} from the result for these arrays; check that they "
            "are of the same layer, head and position, that the mask is the model's, and that it "
            "has no biases but those given"
        )


def check_not_empty(name: str, values: object) -> None:
    """Check that a mapping of named values has an entry."""
    if not values:
        raise InputError(f"{name} is empty: there is nothing to draw; give at least one, by name")


Result = TypeVar("Result")


def checked(function: Callable[..., Result]) -> Callable[..., Result]:
    """Convert and check the arguments of a function as its annotations say.

    `Float` and `Bool` arrays are made of anything that NumPy can convert. ``Annotated`` with an
    axis are: ``list[str]``, one label for each of its positions; ``list[int]``, ids of the
    vocabulary (axis V); ``int``, a position. An axis has one size in all arguments.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        bound, sizes = signature.bind(*args, **kwargs), Sizes()
        for name, value in bound.arguments.items():
            annotation = signature.parameters[name].annotation
            bound.arguments[name] = sizes.converted(name, value, annotation)
        return function(*bound.args, **bound.kwargs)

    return call


class Sizes:
    """Sizes of the named axes seen so far; every further argument must agree with them."""

    def __init__(self):
        self.known: dict[str, tuple[int, str]] = {}

    def converted(self, name: str, value: Any, annotation: Any) -> Any:
        """An argument as its annotation says; see `checked`."""
        if value is None:
            return None
        if get_origin(annotation) is Annotated:
            kind, axis = get_args(annotation)
            convert = {list[str]: self.tokens, list[int]: self.token_ids, int: self.index}[kind]
            return convert(name, value, axis)
        for kind in get_args(annotation) or (annotation,):
            if isinstance(kind, type) and issubclass(kind, AbstractArray):
                convert = self.mask if "bool" in kind.dtypes else self.array
                return convert(name, value, kind.dim_str)
        return value

    def array(
        self, name: str, value: ArrayLike, axes: str, *, finite: bool = True
    ) -> Float[np.ndarray, "..."]:
        """Convert an argument to float64, with an error for NaN and infinity if `finite`."""
        array = self._shaped(name, value, axes)
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"{name} holds {array.dtype} values, but must hold real numbers"
            ) from None
        if finite and not np.isfinite(array).all():
            index = first_index(~np.isfinite(array))
            raise InputError(
                f"{name}{list(index)} is {array[index]}, but every value must be finite; look for "
                "the step that made it so"
            )
        return array

    def mask(self, name: str, value: ArrayLike, axes: str) -> Bool[np.ndarray, "..."]:
        """A boolean argument; true means "may attend"."""
        array = self._shaped(name, value, axes)
        if array.dtype != bool:
            raise InputError(
                f"{name} holds {array.dtype} values, but must be boolean, true where a query may "
                "attend"
            )
        return array

    def tokens(self, name: str, value: Sequence[str], axis: str) -> list[str]:
        """One label for each position of an axis: words as words, see `words.display_tokens`."""
        tokens = list(value)
        if isinstance(value, str) or not all(isinstance(token, str) for token in tokens):
            raise InputError(f"{name} must be a list of strings, one a token, not {value!r}")
        self._bind(name, axis, len(tokens), f"{len(tokens)} tokens")
        return display_tokens(tokens)

    def token_ids(self, name: str, value: ArrayLike, axis: str) -> list[int]:
        """One id for each position of an axis, within the vocabulary (axis V, already known)."""
        ids = self.array(name, value, axis).astype(int).tolist()
        return [self.index(f"{name}[{i}]", token, "V") for i, token in enumerate(ids)]

    def index(self, name: str, value: int, axis: str) -> int:
        """A position along an axis; negative values count from the end."""
        return checked_index(name, value, self.known[axis][0])

    def _shaped(self, name: str, value: ArrayLike, axes: str) -> np.ndarray:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise InputError(f"{name} cannot be made an array: {error}") from None
        names = axes.split()
        if array.ndim != len(names):
            hint = "; leave out the batch axis" if array.ndim == len(names) + 1 else ""
            raise InputError(
                f"{name} has shape {list(array.shape)}, but must be [{','.join(names)}]{hint}"
            )
        for axis, size in zip(names, array.shape, strict=True):
            self._bind(name, axis, size, f"shape {list(array.shape)}, [{','.join(names)}]")
        return array

    def _bind(self, name: str, axis: str, size: int, has: str) -> None:
        if not size:
            raise InputError(f"{name} has {has}: there is nothing to draw along {axis}")
        known, by = self.known.setdefault(axis, (size, name))
        if known != size:
            raise InputError(
                f"{name} has {has}, but {by} says that {axis} is {known}; give arrays and "
                "tokens of the same sentence, queries before keys"
            )
