# SPDX-License-Identifier: Apache-2.0
"""A tokenized corpus: flat arrays of ids with the place where each sentence begins."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from transformer.arrays import PAD_ID
from transformer.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Side:
    """One language of a corpus: sentence i is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: np.ndarray
    """Integers of any width; memory-mapped where the corpus is large."""
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Side":
        """Flat int32 ids from one row a sentence."""
        offsets = np.cumsum([0, *map(len, rows)])
        ids = np.fromiter((token for row in rows for token in row), np.int32, offsets[-1])
        return cls(ids, offsets)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Int32 tokens of each sentence, the end token included."""
        return np.diff(self.offsets).astype(np.int32)

    def __getitem__(self, sentence: int) -> np.ndarray:
        """The ids of one sentence."""
        return self.ids[self.offsets[sentence] : self.offsets[sentence + 1]]

    def padded(self, rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """The named sentences as Int[B, length], padded to the right and below."""
        lengths = self.lengths[rows]
        columns = np.arange(shape[1])
        inside = columns < lengths[:, None]
        batch = np.full(shape, PAD_ID, np.int32)
        places = self.offsets[rows][:, None] + columns
        batch[: len(rows)][inside] = self.ids[places[inside]]
        return batch


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenized sentence pairs."""

    source: Side
    target: Side

    @classmethod
    def tokenized(
        cls, sources: Sequence[str], targets: Sequence[str], tokenizer: Tokenizer
    ) -> "Corpus":
        """Tokenize sentence pairs."""
        return cls(Side.of(tokenizer.encode(sources)), Side.of(tokenizer.encode(targets)))

    def __len__(self) -> int:
        return len(self.source.lengths)

    @functools.cached_property
    def longer(self) -> np.ndarray:
        """Int32 tokens of the longer side of each pair."""
        return np.maximum(self.source.lengths, self.target.lengths)

    @functools.cached_property
    def usable(self) -> np.ndarray:
        """Whether both sides of each pair hold a token beside the end token."""
        return np.minimum(self.source.lengths, self.target.lengths) > 1
