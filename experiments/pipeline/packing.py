# SPDX-License-Identifier: Apache-2.0
"""Which sentences share a row when several are packed into one.

Only lengths matter for that, so rows are planned for classes of equally long pairs, once; every
epoch then deals the pairs of each class anew to the places that the plan has for them. The number
of rows is the same in every epoch.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Packing:
    """Rows with places for pairs: place i lies in row ``row[i]`` and takes a pair of class
    ``kind[i]``.
    """

    kind: np.ndarray
    row: np.ndarray
    rows: int


def pack(sources: np.ndarray, targets: np.ndarray, counts: np.ndarray, capacity: int) -> Packing:
    """Fills rows greedily: the longest pair left, then again and again the longest that still fits.

    Args:
      sources: tokens on the source side of each class.
      targets: tokens on its target side.
      counts: how many pairs the class has.
      capacity: tokens that a row holds on each side.

    Returns:
      a place for every pair; in no row do the pairs of either side exceed the capacity.
    """
    longest_first = np.argsort(-np.maximum(sources, targets), kind="stable")
    sources, targets = sources[longest_first], targets[longest_first]
    left = counts[longest_first].copy()
    kinds, rows, filled = [], [], 0
    while left.any():
        pattern = _fill(sources, targets, left, capacity)
        used = np.bincount(pattern, minlength=len(left))
        # The same pattern as often as the classes in it allow: time goes with classes, not pairs.
        repeats = int((left[pattern] // used[pattern]).min())
        left -= repeats * used
        kinds.append(np.tile(pattern, repeats))
        rows.append(np.repeat(np.arange(filled, filled + repeats), len(pattern)))
        filled += repeats
    nothing = np.zeros(0, np.int64)
    kind = np.concatenate([nothing, *kinds])
    return Packing(longest_first[kind], np.concatenate([nothing, *rows]), filled)


def _fill(sources: np.ndarray, targets: np.ndarray, left: np.ndarray, capacity: int) -> np.ndarray:
    """The classes that go into one row, the longest first."""
    pattern: list[int] = []
    left = left.copy()
    source_room = target_room = capacity
    while True:
        fits = np.flatnonzero((sources <= source_room) & (targets <= target_room) & (left > 0))
        if not fits.size:
            return np.array(pattern, np.int64)
        kind = fits[0]
        pattern.append(kind)
        left[kind] -= 1
        source_room -= sources[kind]
        target_room -= targets[kind]
