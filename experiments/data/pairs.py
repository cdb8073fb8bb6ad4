# SPDX-License-Identifier: Apache-2.0
"""Sentence pairs read one after the other, so that a corpus of any size needs little memory."""

import abc
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from transformer import paths
from transformer.errors import InputError


class SentencePairs(abc.ABC):
    """The sentence pairs of one split, in corpus order, numbered from 0."""

    name: str
    """The corpus and split, for messages."""
    languages: tuple[str, str] | None = None
    """Source and target language, if the corpus names them."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield source and target of each pair.

        Raises:
          InputError: at a pair that cannot be read, with its location.
        """

    @abc.abstractmethod
    def count(self) -> int:
        """Count the pairs.

        Raises:
          InputError: when the numbers of sources and targets differ.
        """

    @abc.abstractmethod
    def location(self, index: int) -> tuple[str, str]:
        """``file:line`` or dataset record of the source and of the target of a pair."""

    @abc.abstractmethod
    def identity(self) -> str:
        """A string that changes when the pairs change; part of the token cache's key."""

    @abc.abstractmethod
    def swapped(self) -> "SentencePairs":
        """The same pairs with source and target swapped."""

    def in_direction(self, direction: str) -> "SentencePairs":
        """The pairs in the direction of ``data.direction``; see `is_backward`."""
        return self.swapped() if is_backward(self.name, self.languages, direction) else self

    def read(self) -> tuple[list[str], list[str]]:
        """Read all sources and all targets."""
        pairs = list(self)
        return [source for source, _ in pairs], [target for _, target in pairs]

    def chunks(self, size: int = 10_000) -> Iterator[tuple[list[str], list[str]]]:
        """Yield sources and targets, at most `size` pairs at a time."""
        pairs = iter(self)
        while chunk := list(itertools.islice(pairs, size)):
            yield [source for source, _ in chunk], [target for _, target in chunk]


@dataclasses.dataclass(frozen=True)
class Records(SentencePairs):
    """Sentence pairs of a TFDS data source."""

    dataset: str
    """``name/config``."""
    version: str
    split: str
    records: Sequence[dict[str, Any]]
    """The result of ``as_data_source``."""
    features: tuple[str, str]
    """The features that hold the source and the target text."""
    languages: tuple[str, str] | None = None
    folder: str = ""
    """Folder of the prepared dataset, to be named when its files are damaged."""

    @property
    def name(self) -> str:
        """Dataset and split."""
        return f"{self.dataset} {self.split}"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        # Reading record by record takes twice as long.
        for start in range(0, len(self.records), 1000):
            indices = range(start, min(start + 1000, len(self.records)))
            try:
                examples = self.records.__getitems__(indices)
            except Exception as error:  # noqa: BLE001 - array_record raises several types
                raise InputError(
                    f"{self.name}: records {start} to {indices[-1]} cannot be read "
                    f"({paths.reason(error)}); remove {self.folder} to prepare the dataset again"
                ) from None
            for index, example in zip(indices, examples, strict=True):
                yield tuple(self._decode(index, example[feature]) for feature in self.features)

    def count(self) -> int:
        """See `SentencePairs.count`."""
        return len(self.records)

    def location(self, index: int) -> tuple[str, str]:
        """See `SentencePairs.location`; records are numbered from 0."""
        return f"{self.name} record {index}", f"{self.name} record {index}"

    def identity(self) -> str:
        """See `SentencePairs.identity`."""
        return f"tfds {self.dataset} {self.version} {self.split} {'-'.join(self.features)}"

    def swapped(self) -> "Records":
        """See `SentencePairs.swapped`."""
        languages = self.languages and self.languages[::-1]
        return dataclasses.replace(self, features=self.features[::-1], languages=languages)

    def _decode(self, index: int, data: bytes | str) -> str:
        try:
            return data if isinstance(data, str) else data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.location(index)[0]}: byte 0x{data[error.start]:02x} is not UTF-8"
            ) from None


def is_backward(name: str, languages: tuple[str, str] | None, direction: str) -> bool:
    """Whether a direction swaps source and target of a corpus.

    Args:
      name: name of the corpus, for messages.
      languages: its source and target language, if it names them.
      direction: ``forward``, ``backward``, or two languages such as ``en-de``.

    Raises:
      InputError: when the corpus names no languages, or others.
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
