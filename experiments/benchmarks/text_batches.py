# SPDX-License-Identifier: Apache-2.0
"""Tokenized real text that every measured program reads, and how peers batch it.

No framework is imported here: every measured program runs in a separate process.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

TEXT, TOKENIZER, LEXICON = "text.json", "tokenizer.model", "lexicon.npz"
"""Files of a prepared text."""
PAD_ID = 0
Sentences = list[list[int]]
"""Token ids of each sentence, EOS included."""


@dataclasses.dataclass(frozen=True)
class Text:
    """Sentence pairs to train on, and lines to translate."""

    sources: Sentences
    targets: Sentences
    lines: list[str]
    line_ids: Sentences

    def save(self, path: str | pathlib.Path) -> None:
        """Write one JSON file."""
        pathlib.Path(path).write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Text":
        """Read what `save` wrote."""
        return cls(**json.loads(pathlib.Path(path).read_text(encoding="utf-8")))

    def training_batches(self, tokens: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield padded sources and targets, sorted by length, of at most `tokens` positions."""
        lengths = [(len(s), len(t)) for s, t in zip(self.sources, self.targets, strict=True)]
        order = sorted(range(len(lengths)), key=lambda pair: (max(lengths[pair]), lengths[pair]))
        begin = 0
        for end in range(1, len(order) + 1):
            if end == len(order) or max(lengths[order[end]]) * (end + 1 - begin) > tokens:
                batch = order[begin:end]
                yield pad([self.sources[i] for i in batch]), pad([self.targets[i] for i in batch])
                begin = end

    def translation_batches(self, size: int) -> Iterator[tuple[Sentences, int]]:
        """Yield batches of the lines, the shortest first, and the length of their translations.

        Peers have one length limit per batch: one token more than its mean source length. In total
        that is one token more than the sources, the same as for this project.
        """
        ordered = sorted(self.line_ids, key=len)
        for begin in range(0, len(ordered), size):
            batch = ordered[begin : begin + size]
            yield batch, round(sum(map(len, batch)) / len(batch)) + 1


def pad(sentences: Sentences, pad_id: int = PAD_ID) -> np.ndarray:
    """Int64 ids `[B, T]`, padded to the longest sentence."""
    ids = np.full((len(sentences), max(map(len, sentences))), pad_id, np.int64)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids


def padding_share(batches: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Fraction of padding among the positions of sources and targets."""
    positions = sum(ids.size for batch in batches for ids in batch)
    tokens = sum(np.count_nonzero(ids) for batch in batches for ids in batch)
    return round(float(1 - tokens / positions), 4)
