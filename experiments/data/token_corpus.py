# SPDX-License-Identifier: Apache-2.0
"""Tokenized sentence pairs as flat arrays of ids with the offset of each sentence."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from transformer.text.tokenizer import Vocabularies


@dataclasses.dataclass(frozen=True)
class TokenSequences:
    """One side of a corpus: sentence i is ``ids[offsets[i]:offsets[i + 1]]``, EOS last."""

    ids: np.ndarray
    """Integers of any width; memory-mapped if the corpus is large."""
    offsets: np.ndarray

    @classmethod
    def from_lists(cls, sentences: Sequence[Sequence[int]]) -> "TokenSequences":
        """Concatenate one list of ids per sentence into int32 arrays."""
        offsets = np.cumsum([0, *map(len, sentences)])
        ids = np.fromiter((token for ids in sentences for token in ids), np.int32, offsets[-1])
        return cls(ids, offsets)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Int32 tokens of each sentence, EOS included."""
        return np.diff(self.offsets).astype(np.int32)

    def __getitem__(self, sentence: int) -> np.ndarray:
        """The ids of one sentence."""
        return self.ids[self.offsets[sentence] : self.offsets[sentence + 1]]


@dataclasses.dataclass(frozen=True)
class TokenCorpus:
    """Tokenized sentence pairs."""

    source: TokenSequences
    target: TokenSequences

    @classmethod
    def encode(
        cls, sources: Sequence[str], targets: Sequence[str], vocabularies: Vocabularies
    ) -> "TokenCorpus":
        """Tokenize sentence pairs."""
        return cls(
            TokenSequences.from_lists(vocabularies.source.encode(sources)),
            TokenSequences.from_lists(vocabularies.target.encode(targets)),
        )

    def __len__(self) -> int:
        return len(self.source.lengths)

    @functools.cached_property
    def max_lengths(self) -> np.ndarray:
        """Int32 tokens of the longer side of each pair."""
        return np.maximum(self.source.lengths, self.target.lengths)

    @functools.cached_property
    def nonempty(self) -> np.ndarray:
        """Whether both sides of each pair hold a token besides EOS."""
        return np.minimum(self.source.lengths, self.target.lengths) > 1

    def trainable(self, empty_sources: bool) -> np.ndarray:
        """The pairs that training may read: the nonempty ones, or with `empty_sources` all that
        have a target.
        """
        return self.target.lengths > 1 if empty_sources else self.nonempty
