# SPDX-License-Identifier: Apache-2.0
"""From sentence pairs to batches of a few static shapes, as a pure function of (seed, epoch,
index).

An epoch is planned whole: pairs of like length are shuffled among themselves and cut into batches
of a token budget (or packed, several to a row), then the batches are shuffled. Element i of the
endless sequence of batches depends on nothing but i, so the position in the data is one number.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import grain
import numpy as np

from experiments.pipeline.packing import Packing, pack
from experiments.pipeline.token_corpus import Corpus
from transformer.arrays import PAD_ID
from transformer.config import DataConfig
from transformer.errors import InputError
from transformer.text.subword_sampling import SubwordSampler
from transformer.training.step import Batch


@dataclasses.dataclass(frozen=True)
class Planned:
    """What one batch holds: pair ``pairs[i]`` in row ``rows[i]``, rows ascending."""

    length: int
    pairs: np.ndarray
    rows: np.ndarray


class Batches:
    """The endless, random-access sequence of the training batches of one or more corpora."""

    def __init__(
        self,
        mixture: Sequence[tuple[float, Corpus]],
        config: DataConfig,
        seed: int,
        sampler: SubwordSampler | None = None,
        own_rows: Callable[[int], np.ndarray] | None = None,
    ):
        """Sorts the pairs into length buckets.

        Args:
          mixture: corpora, each with how often one of its pairs is read in an epoch. The pairs of
            all of them are numbered through.
          config: lengths, budget, and how rows are filled.
          seed: of the order.
          sampler: cuts each sentence into sub-words anew whenever it is read.
          own_rows: of a batch of so many rows, those to read, ascending; all unless given. For one
            of several processes.

        Raises:
          InputError: when every pair is empty or longer than data.max_length.
        """
        self.config, self.seed, self.sampler = config, seed, sampler
        self._own_rows = own_rows or np.arange
        self.weights = [weight for weight, _ in mixture]
        self.corpora = [corpus for _, corpus in mixture]
        self.begins = np.cumsum([0, *(len(corpus) for corpus in self.corpora)])
        self.source_lengths = _joined([corpus.source.lengths for corpus in self.corpora])
        self.target_lengths = _joined([corpus.target.lengths for corpus in self.corpora])
        longer = np.maximum(self.source_lengths, self.target_lengths)
        usable = _joined([corpus.usable for corpus in self.corpora])
        self.empty = int((~usable).sum())
        self.too_long = int((longer[usable] > config.max_length).sum())
        place = np.searchsorted(config.bucket_lengths, longer)
        place[~usable] = len(config.bucket_lengths)
        buckets = {
            length: np.flatnonzero(place == number)
            for number, length in enumerate(config.bucket_lengths)
        }
        self.buckets = {length: members for length, members in buckets.items() if members.size}
        if not self.buckets:
            raise InputError(
                f"of {len(longer)} training pairs {self.empty} have an empty side and "
                f"{self.too_long} are longer than data.max_length = {config.max_length} tokens, so "
                "that none is left; check the files, or raise data.max_length and "
                "data.bucket_lengths"
            )
        if config.packing:
            everything = np.concatenate(list(self.buckets.values()))
            self.buckets = {config.max_length: everything}
        self._classes, self._packing = self._packed() if config.packing else ([], None)
        self.per_epoch = len(self.plan(0))

    def __len__(self) -> int:
        return 1 << 40

    def shapes(self) -> list[tuple[int, int]]:
        """The (rows, length) that batches come in."""
        return [(self.rows(length), length) for length in self.buckets]

    def rows(self, length: int) -> int:
        """How many rows of this length fit the token budget."""
        multiple = self.config.row_multiple
        return self.config.tokens_per_batch // length // multiple * multiple

    def plan(self, epoch: int) -> list[Planned]:
        """The batches of one epoch."""
        generator = np.random.default_rng((self.seed, epoch))
        batches = self._plan_packed(generator) if self._packing else self._plan_rows(generator)
        return [batches[place] for place in generator.permutation(len(batches))]

    def _plan_rows(self, generator: np.random.Generator) -> list[Planned]:
        """One pair a row, among pairs of like length."""
        batches = []
        for length, members in self.buckets.items():
            pairs = generator.permutation(self._drawn(members, generator))
            height = self.rows(length)
            for start in range(0, len(pairs), height):
                chunk = pairs[start : start + height]
                batches.append(Planned(length, chunk, np.arange(len(chunk))))
        return batches

    def _plan_packed(self, generator: np.random.Generator) -> list[Planned]:
        """Several pairs a row: each class's pairs are dealt to the places that are for it."""
        packing = self._packing
        dealt = [generator.permutation(self._drawn(each, generator)) for each in self._classes]
        pairs = np.empty(len(packing.kind), np.int64)
        pairs[np.argsort(packing.kind, kind="stable")] = np.concatenate(dealt)
        rank = np.empty(packing.rows, np.int64)
        rank[generator.permutation(packing.rows)] = np.arange(packing.rows)
        row = rank[packing.row]
        order = np.argsort(row, kind="stable")
        pairs, row = pairs[order], row[order]
        [length] = self.buckets
        height = self.rows(length)
        cuts = np.searchsorted(row, np.arange(0, packing.rows + height, height))
        return [
            Planned(length, pairs[start:stop], row[start:stop] % height)
            for start, stop in zip(cuts, cuts[1:], strict=False)
            if stop > start
        ]

    def _packed(self) -> tuple[list[np.ndarray], Packing]:
        """The pairs of equal lengths, class by class, and the rows they go into."""
        [members] = self.buckets.values()
        lengths = self.source_lengths[members].astype(np.int64), self.target_lengths[members]
        key = lengths[0] * (self.config.max_length + 1) + lengths[1]
        order = np.argsort(key, kind="stable")
        kinds, starts = np.unique(key[order], return_index=True)
        classes = np.split(members[order], starts[1:])
        counts = np.array([self._drawn_count(each) for each in classes])
        sources, targets = np.divmod(kinds, self.config.max_length + 1)
        return classes, pack(sources, targets, counts, self.config.max_length)

    def _drawn(self, members: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The pairs that an epoch reads of these: each as often as its corpus's weight says, the
        fraction of a weight as a random part of them.
        """
        drawn = []
        for weight, part in zip(self.weights, self._by_corpus(members), strict=True):
            whole, fraction = divmod(weight, 1)
            drawn += [part] * int(whole)
            if fraction:
                some = round(fraction * len(part))
                drawn.append(generator.choice(part, some, replace=False))
        return np.concatenate(drawn)

    def _drawn_count(self, members: np.ndarray) -> int:
        """How many `_drawn` gives; in every epoch the same."""
        return sum(
            int(weight // 1) * len(part) + round(weight % 1 * len(part))
            for weight, part in zip(self.weights, self._by_corpus(members), strict=True)
        )

    def _by_corpus(self, members: np.ndarray) -> list[np.ndarray]:
        which = np.searchsorted(self.begins, members, side="right") - 1
        return [members[which == number] for number in range(len(self.corpora))]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - one corpus a run
    def _planned(self, epoch: int) -> list[Planned]:
        return self.plan(epoch)

    def __getitem__(self, index: int) -> Batch:
        """A batch, or those of its rows that this process reads."""
        return self._batch(index, self._own_rows)

    def whole(self, index: int) -> Batch:
        """A batch, whatever part of it this process reads."""
        return self._batch(index, np.arange)

    def _batch(self, index: int, wanted: Callable[[int], np.ndarray]) -> Batch:
        epoch, place = divmod(index, self.per_epoch)
        planned = self._planned(epoch)[place]
        rows = wanted(self.rows(planned.length))
        here = np.isin(planned.rows, rows)
        part = Planned(
            planned.length, planned.pairs[here], np.searchsorted(rows, planned.rows[here])
        )
        sides = [self._laid_out(part, len(rows), side, epoch) for side in ("source", "target")]
        (source, source_segments), (target, target_segments) = sides
        return Batch(source, target, source_segments, target_segments)

    def _laid_out(
        self, planned: Planned, height: int, side: str, epoch: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The ids of one side of so many rows, and in packed ones which sentence of its row each
        belongs to.
        """
        shape = (height, planned.length)
        ids = np.full(shape, PAD_ID, np.int32)
        segments = np.zeros(shape, np.int32) if self.config.packing else None
        if not len(planned.pairs):
            return ids, segments
        sentences = self._sentences(planned, height, side, epoch)
        lengths = np.array([len(sentence) for sentence in sentences])
        first_of_row = np.searchsorted(planned.rows, planned.rows)
        begins = (np.cumsum(lengths) - lengths)[first_of_row]
        rows = np.repeat(planned.rows, lengths)
        columns = np.arange(len(rows)) - np.repeat(begins, lengths)
        ids[rows, columns] = np.concatenate(sentences)
        if segments is not None:
            segment = np.arange(len(sentences)) - first_of_row + 1
            segments[rows, columns] = np.repeat(segment, lengths)
        return ids, segments

    def _sentences(
        self, planned: Planned, height: int, side: str, epoch: int
    ) -> list[Sequence[int]]:
        """The ids of each sentence; with subword sampling, other ids of the same text."""
        which = np.searchsorted(self.begins, planned.pairs, side="right") - 1
        places = planned.pairs - self.begins[which]
        corpora = [getattr(corpus, side) for corpus in self.corpora]
        sentences = [
            corpora[number][place]
            for number, place in zip(which.tolist(), places.tolist(), strict=True)
        ]
        if self.sampler is None:
            return sentences
        room = np.full(height, planned.length)
        np.subtract.at(room, planned.rows, [len(sentence) for sentence in sentences])
        for place, (pair, row) in enumerate(zip(planned.pairs, planned.rows, strict=True)):
            plain = sentences[place].tolist()
            sampled = self.sampler(plain, f"{self.seed}/{epoch}/{pair}/{side}")
            more = len(sampled) - len(plain)
            # The plan knows the deterministic lengths; what does not fit its row stays as it was.
            if more <= room[row]:
                room[row] -= more
                sentences[place] = sampled
        return sentences

    def padding_share(self) -> float:
        """The share of an epoch's target positions that hold no token."""
        plan = self._planned(0)
        positions = sum(self.rows(batch.length) * batch.length for batch in plan)
        tokens = sum(int(self.target_lengths[batch.pairs].sum()) for batch in plan)
        return 1.0 - tokens / positions

    def iterate(self, start: int) -> Iterator[Batch]:
        """Batches from index `start` on, prepared ahead by one thread. Close it when done."""
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
        iterator = iter(grain.MapDataset.source(self).to_iter_dataset(options))
        iterator.set_state({"next_index": start})
        return iterator


def in_order(corpus: Corpus, config: DataConfig, multiple: int = 1) -> Iterator[Batch]:
    """Every pair once, for evaluation: pairs of like length together, padded with empty rows to a
    multiple of so many.
    """
    rounded = np.array([config.bucket(int(length)) for length in corpus.longer])
    for length in np.unique(rounded):
        rows = max(config.tokens_per_batch // length, 1)
        if rows > config.row_multiple:
            rows = rows // config.row_multiple * config.row_multiple
        rows = -(-rows // multiple) * multiple
        members = np.flatnonzero(rounded == length)
        for start in range(0, len(members), rows):
            pairs = members[start : start + rows]
            shape = (int(rows), int(length))
            yield Batch(corpus.source.padded(pairs, shape), corpus.target.padded(pairs, shape))


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """One array is not copied: it may be ten million long."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
