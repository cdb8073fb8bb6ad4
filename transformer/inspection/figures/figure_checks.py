# SPDX-License-Identifier: Apache-2.0
"""What the figures demand of the arrays they are given, and what they say when it is not so."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from transformer.arrays import Bool, Float
from transformer.errors import InputError
from transformer.inspection.attention_checks import ROW_SUM_TOLERANCE


class Sizes:
    """The size of every letter met so far, so that arrays which belong together are held to it."""

    def __init__(self):
        self.known: dict[str, tuple[int, str]] = {}

    def array(self, name: str, value: ArrayLike, letters: str) -> Float[np.ndarray, "..."]:
        """The array in float64, with one axis a letter.

        Args:
          name: of the argument, for errors.
          value: anything NumPy can convert.
          letters: of the axes, separated by spaces; the same letter always has the same size.

        Raises:
          InputError: for another number of axes, a size that contradicts an earlier one, no
            elements, or a value that is not finite.
        """
        found = self._shaped(name, value, letters)
        try:
            found = found.astype(np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"{name} holds {found.dtype} values, but must hold real numbers"
            ) from None
        if not np.isfinite(found).all():
            place = np.argwhere(~np.isfinite(found))[0].tolist()
            raise InputError(
                f"{name}{place} is {found[tuple(place)]}, but every value must be finite; look for "
                "the step that made it so"
            )
        return found

    def mask(self, name: str, value: ArrayLike, letters: str) -> Bool[np.ndarray, "..."]:
        """The array of booleans; true means "may attend".

        Raises:
          InputError: for another shape or type.
        """
        found = self._shaped(name, value, letters)
        if found.dtype != bool:
            raise InputError(
                f"{name} holds {found.dtype} values, but must be boolean, true where a query may "
                "attend"
            )
        return found

    def tokens(self, name: str, value: Sequence[str], letter: str) -> list[str]:
        """One string for each of the letter's positions.

        Raises:
          InputError: for anything else, or for another number of them.
        """
        found = list(value)
        if isinstance(value, str) or not all(isinstance(token, str) for token in found):
            raise InputError(f"{name} must be a list of strings, one a token, not {value!r}")
        self._bind(name, letter, len(found), f"{len(found)} tokens")
        return found

    def index(self, name: str, value: int, letter: str) -> int:
        """A place along the letter's axis, counted from its start even where given from its end.

        Raises:
          InputError: when it is not there.
        """
        size, _ = self.known[letter]
        if not -size <= value < size:
            raise InputError(
                f"{name} is {value}, but must be from 0 to {size - 1} (or from -{size} to -1, "
                "counted from the end)"
            )
        return value % size

    def count(self, name: str, value: int, letter: str) -> int:
        """A number of things, of as many as the letter has.

        Raises:
          InputError: when it is not from 1 to that.
        """
        size, _ = self.known[letter]
        if not 1 <= value <= size:
            raise InputError(f"{name} is {value}, but must be from 1 to {size}")
        return value

    def _shaped(self, name: str, value: ArrayLike, letters: str) -> np.ndarray:
        try:
            found = np.asarray(value)
        except ValueError as error:
            raise InputError(f"{name} cannot be made an array: {error}") from None
        axes = letters.split()
        if found.ndim != len(axes):
            more = "; leave out the batch axis" if found.ndim == len(axes) + 1 else ""
            raise InputError(
                f"{name} has shape {list(found.shape)}, but must be [{','.join(axes)}]{more}"
            )
        for axis, size in zip(axes, found.shape, strict=True):
            self._bind(name, axis, size, f"shape {list(found.shape)}, [{','.join(axes)}]")
        return found

    def _bind(self, name: str, letter: str, size: int, said: str) -> None:
        if not size:
            raise InputError(f"{name} has {said}: there is nothing to draw along {letter}")
        known, by = self.known.setdefault(letter, (size, name))
        if known != size:
            raise InputError(
                f"{name} has {said}, but {by} says that {letter} is {known}; give arrays and "
                "tokens of the same sentence, queries before keys"
            )


def check_distribution(name: str, rows: Float[np.ndarray, "... V"]) -> None:
    """Rows that are probabilities over the vocabulary.

    Raises:
      InputError: naming the first row that is not.
    """
    wrong = (np.abs(rows.sum(-1) - 1) > ROW_SUM_TOLERANCE) | (rows < 0).any(-1)
    if wrong.any():
        place = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"{name}{place} sums to {rows[tuple(place)].sum():.4g} with a lowest value of "
            f"{rows[tuple(place)].min():.4g}, but must be probabilities over the vocabulary"
        )
