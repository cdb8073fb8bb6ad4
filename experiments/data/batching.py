# SPDX-License-Identifier: Apache-2.0
"""Token-budgeted batches of few static shapes, as a pure function of (seed, epoch, index).

An epoch is planned as a whole: the pairs of each length bucket are shuffled and cut into batches of
a token budget (or packed, several pairs to a row), then the batches are shuffled. Element i of the
endless sequence of batches depends on i alone, so the data position of a run is one number.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import grain
import numpy as np

from experiments.data.packing import pack
from experiments.data.token_corpus import TokenCorpus
from transformer.arrays import SpecialIds
from transformer.batch import Batch
from transformer.config import DataConfig
from transformer.errors import InputError
from transformer.text.subword_sampling import SubwordSampler

_PACKED_PAIRS = 400_000
"""Pairs of the epochs that are packed to find the number of batches, where a fraction of a corpus
is read. The larger an epoch, the less its number of rows varies.
"""


@dataclasses.dataclass(frozen=True)
class PlannedBatch:
    """The content of one batch: pair ``pairs[i]`` in row ``rows[i]``, rows ascending."""

    length: int
    pairs: np.ndarray
    rows: np.ndarray


class Batches:
    """The endless, random-access sequence of training batches from one or more corpora."""

    def __init__(
        self,
        mixture: Sequence[tuple[float, TokenCorpus]],
        config: DataConfig,
        seed: int,
        samplers: Mapping[str, SubwordSampler] | None = None,
        local_rows: Callable[[int], np.ndarray] | None = None,
        pad_id: int = SpecialIds().pad,
    ):
        """Sort the pairs into length buckets.

        Args:
          mixture: corpora with their weights: how often an epoch reads each pair. The pairs of all
            corpora are numbered consecutively.
          config: lengths, token budget and packing.
          seed: seed of the order.
          samplers: for ``source`` and ``target``, sample another subword segmentation each time a
            sentence is read.
          local_rows: number of rows -> ascending rows that this process reads; default: all rows.
          pad_id: id of padding.

        Raises:
          InputError: when every pair is empty or longer than data.max_length.
        """
        self.config, self.seed, self.samplers, self.pad_id = config, seed, samplers, pad_id
        self._local_rows = local_rows or np.arange
        self.weights = [weight for weight, _ in mixture]
        self.corpora = [corpus for _, corpus in mixture]
        self._starts = np.cumsum([0, *(len(corpus) for corpus in self.corpora)])
        self.source_lengths = np.concatenate([corpus.source.lengths for corpus in self.corpora])
        self.target_lengths = np.concatenate([corpus.target.lengths for corpus in self.corpora])
        max_lengths = np.maximum(self.source_lengths, self.target_lengths)
        trainable = [corpus.trainable(config.empty_sources) for corpus in self.corpora]
        nonempty = np.concatenate(trainable)
        self.empty = int((~nonempty).sum())
        self.too_long = int((max_lengths[nonempty] > config.max_length).sum())
        bucket = np.searchsorted(config.bucket_lengths, max_lengths)
        bucket[~nonempty] = len(config.bucket_lengths)
        members = {
            length: np.flatnonzero(bucket == number)
            for number, length in enumerate(config.bucket_lengths)
        }
        self.buckets = {length: pairs for length, pairs in members.items() if pairs.size}
        if not self.buckets:
            raise InputError(
                f"of {len(max_lengths)} training pairs {self.empty} have an empty side and "
                f"{self.too_long} are longer than data.max_length = {config.max_length} tokens, so "
                "none is left; check the files, or raise data.max_length and data.bucket_lengths"
            )
        if config.packing:
            self.buckets = {config.max_length: np.concatenate(list(self.buckets.values()))}
        self.per_epoch = self._num_batches()

    def __len__(self) -> int:
        return 1 << 40  # Grain needs a length; the sequence has no end.

    def __getitem__(self, index: int) -> Batch:
        """Batch `index`, or the rows of it that this process reads."""
        return self._batch(index, self._local_rows)

    def global_batch(self, index: int) -> Batch:
        """All rows of batch `index`, in every process."""
        return self._batch(index, np.arange)

    def iterate(self, start: int) -> Iterator[Batch]:
        """Yield batches from index `start` on, prefetched by one thread. Close it when done."""
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
        iterator = iter(grain.MapDataset.source(self).to_iter_dataset(options))
        iterator.set_state({"next_index": start})
        return iterator

    def shapes(self) -> list[tuple[int, int]]:
        """The (rows, length) of all batches."""
        return [(self.rows(length), length) for length in self.buckets]

    def shapes_between(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The (rows, length) of batches `start` to `stop` - 1, of an epoch at most, in order."""
        indices = range(start, min(stop, start + self.per_epoch))
        lengths = dict.fromkeys(self._planned(index)[1].length for index in indices)
        return [(self.rows(length), length) for length in lengths]

    def rows(self, length: int) -> int:
        """Number of rows of this length that fit the token budget."""
        multiple = self.config.row_multiple
        return self.config.tokens_per_batch // length // multiple * multiple

    def padding_share(self) -> float:
        """The share of target positions of an epoch that are padding."""
        plan = self._cached_plan(0)
        positions = sum(self.rows(batch.length) * batch.length for batch in plan)
        tokens = sum(int(self.target_lengths[batch.pairs].sum()) for batch in plan)
        return 1.0 - tokens / positions

    # Planning an epoch.

    def _num_batches(self) -> int:
        """The number of batches of every epoch."""
        generators = (np.random.default_rng((self.seed, epoch)) for epoch in itertools.count())
        if not self.config.packing:
            return len(self._plan_rows(next(generators)))
        # Random samples do not need the same number of rows.
        [(length, members)] = self.buckets.items()
        is_random = any(weight % 1 for weight in self.weights)
        epochs = min(max(1, _PACKED_PAIRS // len(members)), 8) if is_random else 1
        most = max(self._pack(each)[2] for each in itertools.islice(generators, epochs))
        return -(-most // self.rows(length))

    def plan(self, epoch: int) -> list[PlannedBatch]:
        """Plan the batches of one epoch."""
        generator = np.random.default_rng((self.seed, epoch))
        batches = (self._plan_packed if self.config.packing else self._plan_rows)(generator)
        return [batches[index] for index in generator.permutation(len(batches))]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - one object a run
    def _cached_plan(self, epoch: int) -> list[PlannedBatch]:
        return self.plan(epoch)

    def _planned(self, index: int) -> tuple[int, PlannedBatch]:
        """The epoch of a batch, and its plan."""
        epoch, position = divmod(index, self.per_epoch)
        return epoch, self._cached_plan(epoch)[position]

    def _plan_rows(self, generator: np.random.Generator) -> list[PlannedBatch]:
        """One pair a row, within each length bucket."""
        batches = []
        for length, members in self.buckets.items():
            pairs = generator.permutation(self._sample(members, generator))
            num_rows = self.rows(length)
            for start in range(0, len(pairs), num_rows):
                chunk = pairs[start : start + num_rows]
                batches.append(PlannedBatch(length, chunk, np.arange(len(chunk))))
        return batches

    def _plan_packed(self, generator: np.random.Generator) -> list[PlannedBatch]:
        """Several pairs a row, and about as many rows in every batch."""
        pairs, rows, num_rows = self._pack(generator)
        [length] = self.buckets
        # A random sample may need more rows than `_num_batches` has found, of which the last are
        # left out, or fewer than there are batches, of which some then read a row again.
        num_rows = min(num_rows, self.per_epoch * self.rows(length))
        starts = np.arange(self.per_epoch + 1) * num_rows // self.per_epoch
        stops = np.maximum(starts[1:], starts[:-1] + 1)
        firsts, lasts = np.searchsorted(rows, starts[:-1]), np.searchsorted(rows, stops)
        return [
            PlannedBatch(length, pairs[first:last], rows[first:last] - start)
            for start, first, last in zip(starts, firsts, lasts, strict=False)
        ]

    def _pack(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
        """The pairs of an epoch, the row of each, ascending, and the number of rows."""
        [members] = self.buckets.values()
        sample = generator.permutation(self._sample(members, generator))
        key = self.source_lengths[sample].astype(np.int64) * (self.config.max_length + 1)
        key += self.target_lengths[sample]
        classes, counts = np.unique(key, return_counts=True)
        sources, targets = np.divmod(classes, self.config.max_length + 1)
        packing = pack(sources, targets, counts, self.config.max_length)
        # The shuffled pairs of a class are dealt to its slots.
        pairs = np.empty_like(sample)
        pairs[np.argsort(packing.kind, kind="stable")] = sample[np.argsort(key, kind="stable")]
        rows = generator.permutation(packing.num_rows)[packing.row]
        order = np.argsort(rows, kind="stable")
        return pairs[order], rows[order], packing.num_rows

    def _sample(self, members: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The pairs of an epoch; weight 2.5 takes each pair twice and a random half again."""
        sample = []
        for weight, pairs in zip(self.weights, self._by_corpus(members), strict=True):
            repeats, fraction = divmod(weight, 1)
            sample += [pairs] * int(repeats)
            if fraction and pairs.size:
                # With less than one, the pairs of a short corpus would never be read.
                size = max(1, round(fraction * len(pairs)))
                sample.append(generator.choice(pairs, size, replace=False))
        return np.concatenate(sample)

    def _by_corpus(self, members: np.ndarray) -> list[np.ndarray]:
        corpus = np.searchsorted(self._starts, members, side="right") - 1
        return [members[corpus == number] for number in range(len(self.corpora))]

    # From a plan to arrays.

    def _batch(self, index: int, select_rows: Callable[[int], np.ndarray]) -> Batch:
        epoch, planned = self._planned(index)
        rows = select_rows(self.rows(planned.length))
        local = np.isin(planned.rows, rows)
        planned = PlannedBatch(
            planned.length, planned.pairs[local], np.searchsorted(rows, planned.rows[local])
        )
        shape = (len(rows), planned.length)
        sides = (self._sentences(planned, len(rows), side, epoch) for side in ("source", "target"))
        (source, source_segments), (target, target_segments) = (
            fill_rows(sentences, planned.rows, shape, self.pad_id) for sentences in sides
        )
        if not self.config.packing:
            return Batch(source, target)
        return Batch(source, target, source_segments, target_segments)

    def _sentences(
        self, planned: PlannedBatch, num_rows: int, side: str, epoch: int
    ) -> list[Sequence[int]]:
        """The ids of each sentence; with subword sampling, of a sampled segmentation."""
        corpus = np.searchsorted(self._starts, planned.pairs, side="right") - 1
        indices = planned.pairs - self._starts[corpus]
        sides = [getattr(corpus, side) for corpus in self.corpora]
        sentences = [
            sides[number][index]
            for number, index in zip(corpus.tolist(), indices.tolist(), strict=True)
        ]
        if self.samplers is None:
            return sentences
        free = np.full(num_rows, planned.length)
        np.subtract.at(free, planned.rows, [len(sentence) for sentence in sentences])
        for index, (pair, row) in enumerate(zip(planned.pairs, planned.rows, strict=True)):
            plain = sentences[index].tolist()
            sampled = self.samplers[side](plain, f"{self.seed}/{epoch}/{pair}/{side}")
            growth = len(sampled) - len(plain)
            # The plan knows unsampled lengths only. A sample that overflows its row is not used.
            if growth <= free[row]:
                free[row] -= growth
                sentences[index] = sampled
        return sentences


def evaluation_batches(
    corpus: TokenCorpus, config: DataConfig, multiple: int = 1, pad_id: int = SpecialIds().pad
) -> Iterator[Batch]:
    """Yield every pair once, batched by length.

    Args:
      corpus: tokenized pairs of any length.
      config: lengths and token budget.
      multiple: the number of rows is padded to a multiple of this, such as the number of devices.
      pad_id: id of padding.
    """
    buckets = np.array([config.bucket(int(length)) for length in corpus.max_lengths])
    for length in np.unique(buckets):
        rows = max(config.tokens_per_batch // length, 1)
        if rows > config.row_multiple:
            rows = rows // config.row_multiple * config.row_multiple
        rows = -(-rows // multiple) * multiple
        members = np.flatnonzero(buckets == length)
        for start in range(0, len(members), rows):
            pairs = members[start : start + rows]
            shape = (int(rows), int(length))
            source, target = (
                fill_rows([side[pair] for pair in pairs], np.arange(len(pairs)), shape, pad_id)[0]
                for side in (corpus.source, corpus.target)
            )
            yield Batch(source, target)


def fill_rows(
    sentences: Sequence[Sequence[int]], rows: np.ndarray, shape: tuple[int, int], pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pad sentences to a batch; sentences of the same row follow each other.

    Args:
      sentences: ids of each sentence.
      rows: row of each sentence, ascending.
      shape: (rows, length) of the batch.
      pad_id: id of padding.

    Returns:
      ids [B, length], and the segment [B, length] of each token: 1 for the first sentence of its
      row, 2 for the second, ..., 0 for padding.
    """
    ids, segments = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
    lengths = np.array([len(sentence) for sentence in sentences], np.int64)
    first_of_row = np.searchsorted(rows, rows)
    row_starts = (np.cumsum(lengths) - lengths)[first_of_row]
    columns = np.arange(lengths.sum()) - np.repeat(row_starts, lengths)
    positions = np.repeat(rows, lengths), columns
    ids[positions] = np.concatenate([np.empty(0, np.int32), *sentences])
    segments[positions] = np.repeat(np.arange(len(rows)) - first_of_row + 1, lengths)
    return ids, segments
