# SPDX-License-Identifier: Apache-2.0
"""Model sizes and batches that are measured, the same for this project and its peers.

Sentences are random, or those of a tokenized `Text`. No framework is imported here, because every
measured program runs in a separate process.
"""

import dataclasses
import json
import pathlib

import numpy as np

DROPOUT = 0.1
NUM_SPECIAL_IDS = 4
"""Padding, BOS, EOS, unknown."""
PAD_ID = 0
TEXT, TOKENIZER = "text.json", "tokenizer.model"
"""Files of a prepared text."""
Sentences = list[list[int]]
"""Token ids of each sentence, EOS included."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Encoder-decoder model with one embedding table, and a batch for it."""

    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    vocab_size: int
    batch_size: int
    source_length: int
    """Tokens of each source; all have the same length, so there is no padding."""
    target_length: int
    """Tokens of each target, or of each translation."""
    inner_dropout: bool = True
    """Dropout on attention weights and inside the feed-forward network, as in PyTorch's layers; the
    paper has none there.
    """
    family: str = "transformer"
    """``recurrent``: LSTMs, the decoder's with the encoder's last state as the first (Sutskever et
    al. 2014). They have no heads and no feed-forward networks.
    """
    buckets: tuple[int, ...] = ()
    """Batch lengths of this project where sentences are real text."""

    def token_ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Return random int32 sources `[B, S]` and targets `[B, T]`, distributed by Zipf's law."""
        generator = np.random.default_rng(0)
        choices = self.vocab_size - NUM_SPECIAL_IDS

        def draw(length: int) -> np.ndarray:
            ranks = choices ** generator.random((self.batch_size, length))
            return NUM_SPECIAL_IDS + np.minimum(ranks.astype(np.int32), choices) - 1

        return draw(self.source_length), draw(self.target_length)


WORKLOADS = {
    # Layers, d_model, heads, d_ff, vocabulary; sentences, source and target lengths.
    "W1": Workload(3, 256, 4, 1024, 8_000, 64, 24, 24),
    "W2": Workload(6, 512, 8, 2048, 32_000, 32, 32, 32),
    "G1": Workload(6, 512, 8, 2048, 37_000, 384, 64, 64),
    "G2": Workload(6, 1024, 16, 4096, 37_000, 384, 64, 64),
    "R1": Workload(2, 256, 0, 0, 8_000, 64, 24, 24, family="recurrent"),
}
"""For CPUs a small model (W1), the paper's base model with a vocabulary of 32,000 (W2) and a small
recurrent one (R1); for accelerators the paper's base and big models with its vocabulary and 24,576
tokens a side, about its batch (G1, G2).
"""


@dataclasses.dataclass(frozen=True)
class Text:
    """Lines to translate, and their tokens."""

    lines: list[str]
    line_ids: Sentences

    def save(self, path: str | pathlib.Path) -> None:
        """Write one JSON file."""
        pathlib.Path(path).write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Text":
        """Read a file that `save` wrote."""
        return cls(**json.loads(pathlib.Path(path).read_text(encoding="utf-8")))


def translation_batches(workload: Workload, text: Text | None) -> list[tuple[Sentences, int]]:
    """Return batches of sources that a peer translates, each with the length of its translations.

    The lines of a text are sorted by length. Peers have one length limit per batch: one token more
    than its mean source length. In total that is one token more than the sources, the same as for
    this project.
    """
    if text is None:
        return [(workload.token_ids()[0].tolist(), workload.target_length)]
    ordered, size = sorted(text.line_ids, key=len), workload.batch_size
    batches = [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]
    return [(batch, round(sum(map(len, batch)) / len(batch)) + 1) for batch in batches]


def pad(sentences: Sentences, pad_id: int = PAD_ID) -> np.ndarray:
    """Return int64 ids `[B, T]`, padded to the longest sentence."""
    ids = np.full((len(sentences), max(map(len, sentences))), pad_id, np.int64)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids
