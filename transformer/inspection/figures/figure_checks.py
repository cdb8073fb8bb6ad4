# SPDX-License-Identifier: Apache-2.0
"""Validation of the arguments of figures."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from transformer.arrays import Bool, Float
from transformer.errors import InputError
from transformer.inspection.attention_checks import ROW_SUM_TOLERANCE


class Sizes:
    """Sizes of the named axes seen so far; every further argument must agree with them."""

    def __init__(self):
        self.known: dict[str, tuple[int, str]] = {}

    def array(
        self, name: str, value: ArrayLike, axes: str, *, finite: bool = True
    ) -> Float[np.ndarray, "..."]:
        """Convert an argument to float64.

        Args:
          name: of the argument, for errors.
          value: anything NumPy can convert.
          axes: names of the axes, separated by spaces; an axis has one size in all arguments.
          finite: whether NaN and infinity are errors.

        Raises:
          InputError: for a wrong number of axes, a size that contradicts an earlier one, an empty
            array, or a value that is not finite.
        """
        array = self._shaped(name, value, axes)
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"{name} holds {array.dtype} values, but must hold real numbers"
            ) from None
        if finite and not np.isfinite(array).all():
            index = np.argwhere(~np.isfinite(array))[0].tolist()
            raise InputError(
                f"{name}{index} is {array[tuple(index)]}, but every value must be finite; look for "
                "the step that made it so"
            )
        return array

    def arrays(self, axes: str, **values: ArrayLike) -> list[Float[np.ndarray, "..."]]:
        """Several arguments with the same axes, by name; see `array`."""
        return [self.array(name, value, axes) for name, value in values.items()]

    def mask(self, name: str, value: ArrayLike, axes: str) -> Bool[np.ndarray, "..."]:
        """A boolean argument; true means "may attend".

        Raises:
          InputError: for another shape or type.
        """
        array = self._shaped(name, value, axes)
        if array.dtype != bool:
            raise InputError(
                f"{name} holds {array.dtype} values, but must be boolean, true where a query may "
                "attend"
            )
        return array

    def tokens(self, name: str, value: Sequence[str], axis: str) -> list[str]:
        """One string for each position of an axis.

        Raises:
          InputError: for anything else, or for another number of them.
        """
        tokens = list(value)
        if isinstance(value, str) or not all(isinstance(token, str) for token in tokens):
            raise InputError(f"{name} must be a list of strings, one a token, not {value!r}")
        self._bind(name, axis, len(tokens), f"{len(tokens)} tokens")
        return tokens

    def token_ids(self, name: str, value: ArrayLike, axis: str) -> list[int]:
        """One id for each position of an axis, within the vocabulary (axis V, already known)."""
        ids = self.array(name, value, axis).astype(int).tolist()
        return [self.index(f"{name}[{i}]", token, "V") for i, token in enumerate(ids)]

    def index(self, name: str, value: int, axis: str) -> int:
        """A position along an axis; negative values count from the end.

        Raises:
          InputError: when it is out of range.
        """
        size, _ = self.known[axis]
        if not -size <= value < size:
            raise InputError(
                f"{name} is {value}, but must be from 0 to {size - 1} (or from -{size} to -1, "
                "counted from the end)"
            )
        return value % size

    def indices(self, name: str, values: Sequence[int] | None, axis: str) -> list[int]:
        """Positions along an axis; all of them for None.

        Raises:
          InputError: when there is none, or one is out of range.
        """
        if values is None:
            return list(range(self.known[axis][0]))
        if not len(values):
            raise InputError(f"{name} is empty: there is nothing to draw; leave it out to draw all")
        return [self.index(f"{name}[{i}]", value, axis) for i, value in enumerate(values)]

    def count(self, name: str, value: int, axis: str) -> int:
        """A number of elements of an axis.

        Raises:
          InputError: when it is not between 1 and the size of the axis.
        """
        size, _ = self.known[axis]
        if not 1 <= value <= size:
            raise InputError(f"{name} is {value}, but must be from 1 to {size}")
        return value

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


def check_not_empty(name: str, values: object) -> None:
    """Check that a mapping of named values has an entry.

    Raises:
      InputError: when it is empty.
    """
    if not values:
        raise InputError(f"{name} is empty: there is nothing to draw; give at least one, by name")


def check_distribution(name: str, rows: Float[np.ndarray, "... V"]) -> None:
    """Check that rows are probabilities over the vocabulary.

    Raises:
      InputError: naming the first row that is not.
    """
    wrong = (np.abs(rows.sum(-1) - 1) > ROW_SUM_TOLERANCE) | (rows < 0).any(-1)
    if wrong.any():
        index = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"{name}{index} sums to {rows[tuple(index)].sum():.4g} with a lowest value of "
            f"{rows[tuple(index)].min():.4g}, but must be probabilities over the vocabulary"
        )
