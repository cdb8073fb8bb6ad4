# SPDX-License-Identifier: Apache-2.0
"""Tokenized real text that every measured program reads, and how peers batch it.

No framework is imported here: every measured program runs in a separate process.
"""

import dataclasses
import json
import pathlib

import numpy as np

from experiments.benchmarks.workloads import Workload

TEXT, TOKENIZER = "text.json", "tokenizer.model"
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

    def training_batches(self, tokens: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Padded sources and targets, sorted by length, of at most `tokens` positions a side."""
        lengths = [(len(s), len(t)) for s, t in zip(self.sources, self.targets, strict=True)]
        order = sorted(range(len(lengths)), key=lambda pair: (max(lengths[pair]), lengths[pair]))
        batches: list[list[int]] = [[]]
        for pair in order:
            if batches[-1] and max(lengths[pair]) * (len(batches[-1]) + 1) > tokens:
                batches.append([])
            batches[-1].append(pair)
        return [
            (pad([self.sources[i] for i in batch]), pad([self.targets[i] for i in batch]))
            for batch in batches
        ]

    def translation_batches(self, size: int) -> list[tuple[Sentences, int]]:
        """Batches of the lines, the shortest first, and the length of their translations.

        Peers have one length limit per batch: one token more than its mean source length. In total
        that is one token more than the sources, the same as for this project.
        """
        ordered = sorted(self.line_ids, key=len)
        batches = [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]
        return [(batch, round(sum(map(len, batch)) / len(batch)) + 1) for batch in batches]


def training_batches(workload: Workload, path: str | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sources and targets that a peer trains on: of the workload, or of a `Text`."""
    if path is None:
        return [workload.token_ids()]
    return Text.load(path).training_batches(workload.batch_size * workload.target_length)


def translation_batches(workload: Workload, path: str | None) -> list[tuple[Sentences, int]]:
    """Sources that a peer translates, and output lengths: of the workload, or of a `Text`."""
    if path is None:
        return [(workload.token_ids()[0].tolist(), workload.target_length)]
    return Text.load(path).translation_batches(workload.batch_size)


def pad(sentences: Sentences, pad_id: int = PAD_ID) -> np.ndarray:
    """Int64 ids `[B, T]`, padded to the longest sentence."""
    ids = np.full((len(sentences), max(map(len, sentences))), pad_id, np.int64)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids
