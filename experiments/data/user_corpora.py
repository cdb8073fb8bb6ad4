# SPDX-License-Identifier: Apache-2.0
"""Sentence pairs from a function of the user's own file."""

import dataclasses
import hashlib
from collections.abc import Iterator

from experiments.data.pairs import SentencePairs
from transformer import user_functions
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class FunctionPairs(SentencePairs):
    """The pairs of ``FUNCTION(split)``, an iterable of (source, target)."""

    function: str
    """``FILE.py:FUNCTION``."""
    split: str
    backward: bool = False

    @property
    def name(self) -> str:
        """Function and split."""
        return f"{self.function} {self.split}"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        pairs = user_functions.load_function(self.function)(self.split)
        with user_functions.located(self.function.rpartition(":")[0]):
            for index, pair in enumerate(pairs):
                source, target = pair
                if not (isinstance(source, str) and isinstance(target, str)):
                    raise InputError(f"{self.location(index)[0]} is {pair!r}, not two strings")
                yield (target, source) if self.backward else (source, target)

    def count(self) -> int:
        """See `SentencePairs.count`."""
        return sum(1 for _ in self)

    def location(self, index: int) -> tuple[str, str]:
        """See `SentencePairs.location`; pairs are numbered from 0."""
        return f"{self.name} pair {index}", f"{self.name} pair {index}"

    def identity(self) -> str:
        """A digest of all pairs, because they may depend on more than the function."""
        digest = hashlib.sha256()
        for pair in self:
            digest.update(repr(pair).encode())
        return f"function {digest.hexdigest()}"

    def swapped(self) -> "FunctionPairs":
        """See `SentencePairs.swapped`."""
        return dataclasses.replace(self, backward=not self.backward)
