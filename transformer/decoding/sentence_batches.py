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

    The longest come first, so the last batch, which is filled up with padding, costs least.

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
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        small = (size for size in SMALL_BATCHES if len(indices) <= size < batch_size)
        rows = -(-next(small, batch_size) // multiple) * multiple
        shape = rows, bucket(len(sentences[indices[0]]))
        yield indices, pad([sentences[index] for index in indices], shape, pad_id)


def pad(
    sentences: Sequence[Sequence[int]], shape: tuple[int, int], pad_id: int = 0
) -> Int[np.ndarray, "B S"]:
    """Pad token ids to a static shape."""
    padded = np.full(shape, pad_id, np.int32)
    for row, ids in zip(padded, sentences, strict=False):
        row[: len(ids)] = ids
    return padded
