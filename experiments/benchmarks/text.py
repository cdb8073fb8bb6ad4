# SPDX-License-Identifier: Apache-2.0
"""The sentences of a text as every program is given them: ids that are tokenized already, and for
training which pairs are a batch.

No framework is imported here, because each program runs in a process of its own.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

PAD_ID = 0
Sentences = list[np.ndarray]
"""Int32 ids of each, the end token last."""
Batch = tuple[Sentences, Sentences]
"""Sources and their targets."""


@dataclasses.dataclass(frozen=True)
class Text:
    """What is trained and translated."""

    sources: Sentences
    targets: Sentences
    rows: Sequence[int]
    """Pairs of each training batch, one batch after the other."""
    lines: Sentences = dataclasses.field(default_factory=list)
    """What is translated; no line is empty."""

    def save(self, path: str) -> None:
        """Into one file."""
        arrays = {"rows": np.asarray(self.rows, np.int64)}
        for name in ("sources", "targets", "lines"):
            sentences = getattr(self, name)
            arrays[name] = np.concatenate([np.zeros(0, np.int32), *sentences])
            arrays[f"{name}_ends"] = np.cumsum([len(one) for one in sentences], dtype=np.int64)
        np.savez(path, **arrays)

    @classmethod
    def load(cls, path: str) -> "Text":
        """What `save` wrote."""
        with np.load(path) as arrays:
            sides = {
                name: np.split(arrays[name], arrays[f"{name}_ends"])[:-1]
                for name in ("sources", "targets", "lines")
            }
            return cls(rows=arrays["rows"].tolist(), **sides)

    def batches(self) -> Iterator[Batch]:
        """The pairs that are a batch for this program."""
        begin = 0
        for rows in self.rows:
            yield self.sources[begin : begin + rows], self.targets[begin : begin + rows]
            begin += rows

    def sorted_batches(self, tokens: int) -> Iterator[Batch]:
        """The same pairs, the shortest first, in batches of at most so many positions a side."""
        lengths = np.array([list(map(len, self.sources)), list(map(len, self.targets))])
        longer = lengths.max(0)
        begin, order = 0, np.lexsort((lengths[0], lengths[1], longer))
        for end in range(1, len(order) + 1):
            full = end == len(order) or longer[order[end]] * (end + 1 - begin) > tokens
            if full:
                chosen = order[begin:end]
                yield [self.sources[one] for one in chosen], [self.targets[one] for one in chosen]
                begin = end

    @property
    def target_tokens(self) -> int:
        """Of all training pairs, without padding."""
        return sum(map(len, self.targets))

    def translated(self, together: int) -> Iterator[tuple[Sentences, int]]:
        """The lines in batches of so many, the shortest first, and how many tokens each batch's
        translations have: one more than its sources on average.

        Where a program has one limit for a whole batch, a batch has as many tokens this way, up to
        rounding, as where each translation is one token longer than its source.
        """
        ordered = sorted(self.lines, key=len)
        for begin in range(0, len(ordered), together):
            batch = ordered[begin : begin + together]
            yield batch, round(sum(map(len, batch)) / len(batch)) + 1


def padded(sentences: Sentences, padding: int = PAD_ID) -> np.ndarray:
    """Int64 [sentences, the longest one's tokens]."""
    ids = np.full((len(sentences), max(map(len, sentences))), padding, np.int64)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids


def padding_share(batches: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Of the positions of padded sources and targets, those that hold no token."""
    positions = sum(ids.size for batch in batches for ids in batch)
    tokens = sum(np.count_nonzero(ids) for batch in batches for ids in batch)
    return round(float(1 - tokens / positions), 4)
