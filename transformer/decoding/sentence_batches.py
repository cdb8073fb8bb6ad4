# SPDX-License-Identifier: Apache-2.0
"""Batches of sentences of similar length, in few static shapes."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from transformer.arrays import Int

NumberedBatch = tuple[list[int], Int[np.ndarray, "_B _S"]]
"""The indices of at most B sentences, and their padded token ids; B and S differ by batch."""
SMALL_BATCHES = (1, 8)
"""Sizes of the batch of a call with fewer sentences than `batch_size`."""
LENGTH_RATIO = 1.5
"""Least ratio of the lengths of two searches."""


def search_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """Leave out lengths that are close to the next longer one.

    A search is compiled for each length of its sources, which takes seconds. Padding in a source
    takes little time, because the steps of the search do not depend on it.

    Args:
      lengths: lengths of training batches, ascending.

    Returns:
      the lengths that are kept, ascending; the longest is among them.
    """
    kept: list[int] = []
    for length in reversed(lengths):
        if not kept or kept[-1] >= LENGTH_RATIO * length:
            kept.append(length)
    return tuple(reversed(kept))


def batch_sizes(largest: int, multiple: int = 1) -> list[int]:
    """The numbers of rows, with padding, that batches can have, ascending.

    Args:
      largest: sentences of a full batch.
      multiple: every size is a multiple of this, so the last can exceed `largest`.
    """
    sizes = [*(size for size in SMALL_BATCHES if size < largest), largest]
    return sorted({-(-size // multiple) * multiple for size in sizes})


def static_size(count: int, sizes: Sequence[int]) -> int:
    """The smallest of these sizes for `count` sentences, or the largest if none suffices."""
    return next((size for size in sizes if count <= size), sizes[-1])


def batches_by_length(
    sentences: Sequence[Sequence[int]],
    sizes: Sequence[int],
    *,
    bucket: Callable[[int], int],
    pad_id: int = 0,
) -> Iterator[NumberedBatch]:
    """Group sentences of similar length, in few shapes, because each of them is compiled.

    The longest come first. A batch may hold sentences of several buckets: a few long ones alone
    would need a program of their own. For the same reason all batches have as many rows.

    Args:
      sentences: token ids of each sentence; empty ones are left out.
      sizes: possible B, ascending.
      bucket: static length for a given number of tokens.
      pad_id: fills rows and missing rows.
    """
    order = [index for index, ids in enumerate(sentences) if ids]
    order.sort(key=lambda index: -len(sentences[index]))
    rows = static_size(len(order), sizes)
    for start in range(0, len(order), rows):
        indices = order[start : start + rows]
        shape = rows, bucket(len(sentences[indices[0]]))
        yield indices, pad([sentences[index] for index in indices], shape, pad_id)


def one_of_each_shape_first(batches: Iterable[NumberedBatch]) -> list[NumberedBatch]:
    """Move the first batch of each shape to the front.

    Threads that take the batches in this order compile different programs at the same time. With
    equal shapes, they would wait for the same one.
    """
    firsts: dict[tuple[int, ...], NumberedBatch] = {}
    others = []
    for batch in batches:
        _, padded = batch
        if firsts.setdefault(padded.shape, batch) is not batch:
            others.append(batch)
    return [*firsts.values(), *others]


def pad(
    sentences: Sequence[Sequence[int]], shape: tuple[int, int], pad_id: int = 0
) -> Int[np.ndarray, "B S"]:
    """Pad token ids to a static shape."""
    padded = np.full(shape, pad_id, np.int32)
    for row, ids in zip(padded, sentences, strict=False):
        row[: len(ids)] = ids
    return padded
