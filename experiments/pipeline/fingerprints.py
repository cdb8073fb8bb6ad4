# SPDX-License-Identifier: Apache-2.0
"""Which sentences are the same, by 64-bit hashes in place of the texts.

Ten million pairs are 80 MB a side. Two different sentences among twenty million have the same hash
with a probability of about one in a hundred thousand.
"""

from collections.abc import Iterable

import numpy as np

_ODD = np.uint64(0x9E3779B97F4A7C15)


def hashes(sentences: Iterable[str]) -> np.ndarray:
    """Uint64 hash of each sentence; the same sentence has the same one within this process only."""
    return np.fromiter(map(hash, sentences), np.int64).view(np.uint64)


def of_pairs(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Uint64 hash of each pair, from the hashes of its sides."""
    return source * _ODD + target


def repeats(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places, ascending, of all keys that stand earlier too, and where each stands first."""
    order = np.argsort(keys, kind="stable")
    again = np.zeros(len(keys), bool)
    again[1:] = keys[order[1:]] == keys[order[:-1]]
    # In a group of equal keys the stable order has the first place at its head.
    heads = np.flatnonzero(~again)
    first = order[np.repeat(heads, np.diff(np.append(heads, len(keys))))]
    places, first = order[again], first[again]
    ascending = np.argsort(places)
    return places[ascending], first[ascending]


def found(keys: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places, ascending, of the keys that are among others, and where each stands there
    first.
    """
    if not len(among):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(among, kind="stable")
    ranks = np.searchsorted(among, keys, sorter=order)
    there = order[np.minimum(ranks, len(among) - 1)]
    places = np.flatnonzero(among[there] == keys)
    return places, there[places]
