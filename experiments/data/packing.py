# SPDX-License-Identifier: Apache-2.0
"""Sequence packing: which sentence pairs share a row.

Packing depends on lengths only. So rows are planned for length classes (pairs with equal source
and target lengths), to whose slots the pairs of each class are dealt.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Packing:
    """Slots for sentence pairs: slot i is in row ``row[i]``, for a pair of class ``kind[i]``."""

    kind: np.ndarray
    row: np.ndarray
    num_rows: int


def pack(sources: np.ndarray, targets: np.ndarray, counts: np.ndarray, capacity: int) -> Packing:
    """Fill rows greedily: take the longest remaining pair, then repeatedly the longest that fits.

    Args:
      sources: source length of each class.
      targets: target length of each class.
      counts: number of pairs of each class.
      capacity: tokens that a row holds on each side.

    Returns:
      a slot for every pair; in no row does either side exceed the capacity.
    """
    longest_first = np.argsort(-np.maximum(sources, targets), kind="stable")
    sources, targets = sources[longest_first], targets[longest_first]
    left = counts[longest_first].copy()
    kinds, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    num_rows = 0
    while left.any():
        pattern = _fill_row(sources, targets, left, capacity)
        used = np.bincount(pattern, minlength=len(left))
        # Repeat the pattern while the classes last, so that time grows with classes, not pairs.
        repeats = int((left[pattern] // used[pattern]).min())
        left -= repeats * used
        kinds.append(np.tile(pattern, repeats))
        rows.append(np.repeat(np.arange(num_rows, num_rows + repeats), len(pattern)))
        num_rows += repeats
    return Packing(longest_first[np.concatenate(kinds)], np.concatenate(rows), num_rows)


def _fill_row(
    sources: np.ndarray, targets: np.ndarray, left: np.ndarray, capacity: int
) -> np.ndarray:
    """Return the classes of the pairs in one row, the longest first."""
    pattern: list[int] = []
    left = left.copy()
    source_capacity = target_capacity = capacity
    while True:
        fits = (sources <= source_capacity) & (targets <= target_capacity) & (left > 0)
        if not fits.any():
            return np.array(pattern, np.int64)
        kind = np.argmax(fits)
        pattern.append(kind)
        left[kind] -= 1
        source_capacity -= sources[kind]
        target_capacity -= targets[kind]
