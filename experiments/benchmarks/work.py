# SPDX-License-Identifier: Apache-2.0
"""What is measured: the sizes of a model and of its batches, the same for this program and peers.

No framework is imported here, because each runs in a process of its own.
"""

import dataclasses

import numpy as np

DROPOUT = 0.1
SMALLEST_ID = 4
"""Ids below are special: padding, start, end, unknown."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A model with as many layers in encoder and decoder and one embedding for source, target and
    logits, and a batch for it.
    """

    layers: int
    d_model: int
    heads: int
    d_ff: int
    vocabulary: int
    rows: int
    source: int
    """Tokens of each source; all are equally long, so that nothing is padding."""
    target: int
    """Tokens of each target, or how many each translation is forced to have."""
    dropout_inside: bool = True
    """Whether attention weights and the layer between the two maps of the feed-forward network have
    dropout too, as the layers of PyTorch have; the paper has none there.
    """
    buckets: tuple[int, ...] = ()
    """Where sentences are of a text (`text.py`), the lengths that this program's batches come in,
    of which the last is `source` and `target`; a shorter batch has as many more rows.
    """

    def token_ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Int32 sources [rows, source] and targets [rows, target], as frequent as in a language:
        the id of rank r about 1 / r times.
        """
        generator = np.random.default_rng(0)
        choices = self.vocabulary - SMALLEST_ID

        def drawn(length: int) -> np.ndarray:
            ranks = choices ** generator.random((self.rows, length))
            return SMALLEST_ID + np.minimum(ranks.astype(np.int32), choices) - 1

        return drawn(self.source), drawn(self.target)


WORKS = {
    "W1": Work(
        layers=3, d_model=256, heads=4, d_ff=1024, vocabulary=8_000, rows=64, source=24, target=24
    ),
    "W2": Work(
        layers=6, d_model=512, heads=8, d_ff=2048, vocabulary=32_000, rows=32, source=32, target=32
    ),
}
"""Small, and the paper's base model with a small vocabulary."""
