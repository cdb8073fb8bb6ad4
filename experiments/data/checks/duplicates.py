# SPDX-License-Identifier: Apache-2.0
"""Find duplicate sentences by 64-bit hashes, which take 8 bytes a sentence instead of its text.

Among twenty million different sentences, two have the same hash with a probability of about one in
a hundred thousand.
"""

from collections.abc import Iterable

import numpy as np

_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)


def hash_sentences(sentences: Iterable[str]) -> np.ndarray:
    """Uint64 hash of each sentence, comparable within this process only."""
    return np.fromiter(map(hash, sentences), np.int64).view(np.uint64)


def hash_pairs(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Uint64 hash of each sentence pair, from the hashes of its sides."""
    return source * _GOLDEN_RATIO + target


def find_duplicates(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ascending indices of keys that occurred before, and each key's first index."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    first = first[inverse]
    indices = np.flatnonzero(first < np.arange(len(keys)))
    return indices, first[indices]


def find_matches(keys: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ascending indices of keys in `among`, and the first index of each there."""
    unique, first = np.unique(among, return_index=True)
    if not len(unique):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ranks = np.minimum(np.searchsorted(unique, keys), len(unique) - 1)
    indices = np.flatnonzero(unique[ranks] == keys)
    return indices, first[ranks[indices]]
