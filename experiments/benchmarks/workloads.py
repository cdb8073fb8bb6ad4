# SPDX-License-Identifier: Apache-2.0
"""Model and batch sizes that are measured, the same for this project and its peers.

No framework is imported here: every measured program runs in a separate process.
"""

import dataclasses

import numpy as np

DROPOUT = 0.1
NUM_SPECIAL_IDS = 4
"""Padding, BOS, EOS, unknown."""


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
    """Batch lengths of this project where sentences are real text; shorter batches have more rows.
    """

    def token_ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Random int32 sources and targets `[B, S]` and `[B, T]`, distributed by Zipf's law."""
        generator = np.random.default_rng(0)
        choices = self.vocab_size - NUM_SPECIAL_IDS

        def draw(length: int) -> np.ndarray:
            ranks = choices ** generator.random((self.batch_size, length))
            return NUM_SPECIAL_IDS + np.minimum(ranks.astype(np.int32), choices) - 1

        return draw(self.source_length), draw(self.target_length)


WORKLOADS = {
    "W1": Workload(
        num_layers=3,
        d_model=256,
        num_heads=4,
        d_ff=1024,
        vocab_size=8_000,
        batch_size=64,
        source_length=24,
        target_length=24,
    ),
    "W2": Workload(
        num_layers=6,
        d_model=512,
        num_heads=8,
        d_ff=2048,
        vocab_size=32_000,
        batch_size=32,
        source_length=32,
        target_length=32,
    ),
    "G0": Workload(
        num_layers=6,
        d_model=512,
        num_heads=4,
        d_ff=1024,
        vocab_size=10_000,
        batch_size=128,
        source_length=32,
        target_length=32,
    ),
    "G1": Workload(
        num_layers=6,
        d_model=512,
        num_heads=8,
        d_ff=2048,
        vocab_size=37_000,
        batch_size=384,
        source_length=64,
        target_length=64,
    ),
    "G2": Workload(
        num_layers=6,
        d_model=1024,
        num_heads=16,
        d_ff=4096,
        vocab_size=37_000,
        batch_size=384,
        source_length=64,
        target_length=64,
    ),
    "R1": Workload(
        family="recurrent",
        num_layers=2,
        d_model=256,
        num_heads=0,
        d_ff=0,
        vocab_size=8_000,
        batch_size=64,
        source_length=24,
        target_length=24,
    ),
}
"""For CPUs a small model (W1), the paper's base model with a vocabulary of 32,000 (W2) and a small
recurrent one (R1); for accelerators the model for IWSLT 2014 with 4,096 tokens a side, the batch of
`configs/iwslt14_deen.py` (G0), and the paper's base and big models with its vocabulary and 24,576
tokens a side, about its batch (G1, G2).
"""
TRANSFORMERS = tuple(name for name, one in WORKLOADS.items() if one.family == "transformer")
