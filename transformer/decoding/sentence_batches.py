# SPDX-License-Identifier: Apache-2.0
"""Batches of sentences of similar length, in few static shapes."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from transformer.arrays import Int

SMALL_BATCHES = (1, 8)
"""Sizes of batches with fewer sentences than `batch_size`."""


def batches_by_length(
    sentences: Sequence[Sequence[int]],
    batch_size: int,
    *,
    bucket: Callable[[int], int],
    multiple: int = 1,
    pad_id: int = 0,
) -> Iterator[tuple[list[int], Int[np.ndarray, "B S"]]]:
    """Group sentences of similar length.

    The longest come first. A batch ends where the next shorter bucket begins; only rows that would
    be padding are filled with shorter sentences.

    Args:
      sentences: token ids of each sentence; empty ones are left out.
      batch_size: maximum number of sentences of a batch.
      bucket: static length for a given number of tokens.
      multiple: B is a multiple of this.
      pad_id: fills rows and missing rows.

    Yields:
      the indices of the sentences, at most B, and their padded token ids.
    """
    order = [index for index, ids in enumerate(sentences) if ids]
    order.sort(key=lambda index: -len(sentences[index]))
    lengths = [bucket(len(sentences[index])) for index in order]
    start = 0
    while start < len(order):
        longest = lengths[start : start + batch_size].count(lengths[start])
        rows = static_rows(longest, batch_size, multiple)
        indices = order[start : start + min(rows, batch_size)]
        padded = pad([sentences[index] for index in indices], (rows, lengths[start]), pad_id)
        yield indices, padded
        start += len(indices)


def static_rows(count: int, batch_size: int, multiple: int) -> int:
    """The number of rows, with padding, of a batch for `count` sentences."""
    small = (size for size in SMALL_BATCHES if count <= size < batch_size)
    return -(-next(small, batch_size) // multiple) * multiple


def pad(
    sentences: Sequence[Sequence[int]], shape: tuple[int, int], pad_id: int = 0
) -> Int[np.ndarray, "B S"]:
    """Pad token ids to a static shape."""
    padded = np.full(shape, pad_id, np.int32)
    for row, ids in zip(padded, sentences, strict=False):
        row[: len(ids)] = ids
    return padded
