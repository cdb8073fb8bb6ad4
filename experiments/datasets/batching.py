# SPDX-License-Identifier: Apache-2.0
"""From sentence pairs to batches of a few static shapes, as a pure function of (seed, epoch,
index).

A corpus is tokenized once into flat arrays. An epoch is planned whole: pairs of like length are
shuffled among themselves and cut into batches of a token budget, then the batches are shuffled.
Element i of the endless sequence of batches depends on nothing but i, so the position in the data
is one number.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import grain
import numpy as np

from experiments.datasets import Split
from transformer.arrays import PAD_ID
from transformer.config import DataConfig
from transformer.errors import InputError
from transformer.tokenizer import Tokenizer
from transformer.training import Batch


@dataclasses.dataclass(frozen=True)
class Side:
    """One language of a corpus: sentence i is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Side":
        """Flat int32 ids from one row a sentence."""
        offsets = np.cumsum([0, *map(len, rows)])
        ids = np.fromiter((token for row in rows for token in row), np.int32, offsets[-1])
        return cls(ids, offsets)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence, the end token included."""
        return np.diff(self.offsets)

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
    def tokenized(cls, split: Split, tokenizer: Tokenizer) -> "Corpus":
        """All pairs of a split."""
        return cls(
            Side.of(tokenizer.encode(split.sources)), Side.of(tokenizer.encode(split.targets))
        )

    @property
    def longer(self) -> np.ndarray:
        """Tokens of the longer side of each pair."""
        return np.maximum(self.source.lengths, self.target.lengths)


class Batches:
    """The endless, random-access sequence of a corpus's training batches."""

    def __init__(self, corpus: Corpus, config: DataConfig, seed: int):
        """Sorts the pairs into length buckets.

        Raises:
          InputError: when every pair is longer than data.max_length.
        """
        self.corpus, self.config, self.seed = corpus, config, seed
        lengths = corpus.longer
        bucket = np.searchsorted(config.bucket_lengths, lengths)
        self.buckets = {
            length: np.flatnonzero(bucket == place)
            for place, length in enumerate(config.bucket_lengths)
            if (bucket == place).any()
        }
        self.left_out = int((lengths > config.max_length).sum())
        if not self.buckets:
            raise InputError(
                f"all {len(lengths)} training pairs are longer than data.max_length = "
                f"{config.max_length} tokens; raise it and data.bucket_lengths"
            )
        self.per_epoch = len(self._cut(self.buckets))

    def shapes(self) -> list[tuple[int, int]]:
        """The (rows, length) that batches come in."""
        return [(self.rows(length), length) for length in self.buckets]

    def rows(self, length: int) -> int:
        """How many sentences of this length fit the token budget."""
        multiple = self.config.row_multiple
        return self.config.tokens_per_batch // length // multiple * multiple

    def plan(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """The batches of one epoch: a length, and the pairs that share the batch."""
        generator = np.random.default_rng((self.seed, epoch))
        shuffled = {
            length: generator.permutation(members) for length, members in self.buckets.items()
        }
        batches = self._cut(shuffled)
        return [batches[place] for place in generator.permutation(len(batches))]

    def _cut(self, buckets: dict[int, np.ndarray]) -> list[tuple[int, np.ndarray]]:
        return [
            (length, members[start : start + self.rows(length)])
            for length, members in buckets.items()
            for start in range(0, len(members), self.rows(length))
        ]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - one corpus a run
    def _planned(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        return self.plan(epoch)

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> Batch:
        epoch, place = divmod(index, self.per_epoch)
        length, pairs = self._planned(epoch)[place]
        shape = (self.rows(length), length)
        return Batch(
            self.corpus.source.padded(pairs, shape), self.corpus.target.padded(pairs, shape)
        )

    def padding_share(self) -> float:
        """The share of an epoch's target positions that hold no token."""
        positions = sum(self.rows(length) * length for length, _ in self._cut(self.buckets))
        kept = np.concatenate(list(self.buckets.values()))
        return 1.0 - float(self.corpus.target.lengths[kept].sum()) / positions

    def iterate(self, start: int) -> Iterator[Batch]:
        """Batches from index `start` on, prepared ahead by one thread. Close it when done."""
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
        iterator = iter(grain.MapDataset.source(self).to_iter_dataset(options))
        iterator.set_state({"next_index": start})
        return iterator


def in_order(corpus: Corpus, config: DataConfig) -> Iterator[Batch]:
    """Every pair once, for evaluation: pairs of like length together, padded with empty rows."""
    rounded = np.array([config.bucket(int(length)) for length in corpus.longer])
    for length in np.unique(rounded):
        rows = max(config.tokens_per_batch // length, 1)
        if rows > config.row_multiple:
            rows = rows // config.row_multiple * config.row_multiple
        members = np.flatnonzero(rounded == length)
        for start in range(0, len(members), rows):
            pairs = members[start : start + rows]
            shape = (int(rows), int(length))
            yield Batch(corpus.source.padded(pairs, shape), corpus.target.padded(pairs, shape))
