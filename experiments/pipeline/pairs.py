# SPDX-License-Identifier: Apache-2.0
"""Sentence pairs that are read piece by piece, so that a corpus of any size needs little memory."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from transformer.errors import InputError


class Pairs(abc.ABC):
    """The pairs of one split, in the order of the corpus. Pair 0 is the first."""

    name: str
    """What messages call it."""
    languages: tuple[str, str] | None = None
    """Of source and target, where the corpus names them."""

    @abc.abstractmethod
    def chunks(self, size: int = 10_000) -> Iterator[tuple[list[str], list[str]]]:
        """Sources and targets from the first pair on, at most `size` of each at a time.

        Raises:
          InputError: where the corpus cannot be read, with its place.
        """

    @abc.abstractmethod
    def count(self) -> int:
        """How many pairs there are.

        Raises:
          InputError: when source and target do not have equally many.
        """

    @abc.abstractmethod
    def place(self, index: int) -> tuple[str, str]:
        """Where source and target of a pair stand: ``file:line``, or the record of a dataset."""

    @abc.abstractmethod
    def identity(self) -> str:
        """A text that changes when the pairs change."""


@dataclasses.dataclass(frozen=True)
class Backward(Pairs):
    """Pairs whose source and target change places."""

    forward: Pairs

    @property
    def name(self) -> str:
        """Of the corpus itself."""
        return self.forward.name

    @property
    def languages(self) -> tuple[str, str] | None:
        """Of the new source and target."""
        return self.forward.languages and self.forward.languages[::-1]

    def chunks(self, size: int = 10_000) -> Iterator[tuple[list[str], list[str]]]:
        """As `Pairs.chunks`."""
        for sources, targets in self.forward.chunks(size):
            yield targets, sources

    def count(self) -> int:
        """As `Pairs.count`."""
        return self.forward.count()

    def place(self, index: int) -> tuple[str, str]:
        """As `Pairs.place`."""
        return self.forward.place(index)[::-1]

    def identity(self) -> str:
        """As `Pairs.identity`."""
        return f"backward {self.forward.identity()}"


@dataclasses.dataclass(frozen=True)
class Records(Pairs):
    """Pairs of a TFDS dataset."""

    dataset: str
    """``name/config``."""
    version: str
    split: str
    records: Sequence[dict[str, Any]]
    """What ``as_data_source`` gave."""
    features: tuple[str, str]
    """The names of the source's and the target's text in a record."""
    languages: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """Dataset and split."""
        return f"{self.dataset} {self.split}"

    def chunks(self, size: int = 10_000) -> Iterator[tuple[list[str], list[str]]]:
        """As `Pairs.chunks`."""
        for start in range(0, len(self.records), size):
            indices = range(start, min(start + size, len(self.records)))
            # Together: record by record takes twice as long.
            examples = list(zip(indices, self.records.__getitems__(indices), strict=True))
            source, target = (
                [self._text(index, example[feature]) for index, example in examples]
                for feature in self.features
            )
            yield source, target

    def count(self) -> int:
        """As `Pairs.count`."""
        return len(self.records)

    def place(self, index: int) -> tuple[str, str]:
        """As `Pairs.place`; records count from 0."""
        return f"{self.name} record {index}", f"{self.name} record {index}"

    def identity(self) -> str:
        """As `Pairs.identity`."""
        return f"tfds {self.dataset} {self.version} {self.split} {'-'.join(self.features)}"

    def _text(self, index: int, data: bytes | str) -> str:
        if isinstance(data, str):
            return data
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.place(index)[0]}: byte 0x{data[error.start]:02x} is not UTF-8"
            ) from None


def directed(pairs: Pairs, direction: str) -> Pairs:
    """The pairs in the direction that ``data.direction`` asks for.

    Raises:
      InputError: as `is_backward`.
    """
    return Backward(pairs) if is_backward(pairs.name, pairs.languages, direction) else pairs


def is_backward(name: str, languages: tuple[str, str] | None, direction: str) -> bool:
    """Whether source and target of a corpus change places.

    Args:
      name: of the corpus, for messages.
      languages: of its source and target, where it names them.
      direction: ``forward``, ``backward``, or the two languages as in ``en-de``.

    Raises:
      InputError: when the corpus does not have these languages, or does not name any.
    """
    if direction in ("forward", "backward"):
        return direction == "backward"
    if languages is None:
        raise InputError(
            f"data.direction is {direction!r}, but {name} does not name its languages; use "
            "'forward' or 'backward'"
        )
    forward, backward = "-".join(languages), "-".join(languages[::-1])
    if direction not in (forward, backward):
        raise InputError(
            f"data.direction is {direction!r}, but the languages of {name} are "
            f"{' and '.join(languages)}; use {forward!r} or {backward!r}"
        )
    return direction == backward
