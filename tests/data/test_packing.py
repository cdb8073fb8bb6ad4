# SPDX-License-Identifier: Apache-2.0
"""Packed rows: none overflows, every pair has a slot, and there is little padding."""

import numpy as np

from experiments.data.packing import pack


def rows_of(packing):
    """The classes in each row."""
    return [sorted(packing.kind[packing.row == row].tolist()) for row in range(packing.num_rows)]


def test_rows_by_hand():
    """Capacity 10: 7 and 3 share a row; after 4 + 4, a third 4 does not fit."""
    lengths, counts = np.array([7, 4, 3]), np.array([1, 3, 1])
    assert rows_of(pack(lengths, lengths, counts, 10)) == [[0, 2], [1, 1], [1]]


def test_both_sides_must_fit():
    """Sources of 2 would fit five times, but targets of 6 only once."""
    packing = pack(np.array([2]), np.array([6]), np.array([3]), 10)
    assert rows_of(packing) == [[0], [0], [0]]


def test_no_pairs_need_no_rows():
    assert pack(np.array([3]), np.array([3]), np.array([0]), 10).num_rows == 0


def test_every_pair_has_one_slot_and_no_row_overflows():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        sources, targets = rng.integers(1, 31, (2, 40))
        counts = rng.integers(0, 50, 40)
        packing = pack(sources, targets, counts, 30)
        assert np.bincount(packing.kind, minlength=40).tolist() == counts.tolist()
        for side in (sources, targets):
            held = np.bincount(packing.row, weights=side[packing.kind], minlength=packing.num_rows)
            assert held.max() <= 30
        assert (np.diff(packing.row) >= 0).all()
        assert set(packing.row.tolist()) == set(range(packing.num_rows))


def test_rows_of_sentences_with_realistic_lengths_are_filled_to_95_percent():
    rng = np.random.default_rng(0)
    lengths = np.arange(2, 101)
    counts = np.bincount(np.minimum(rng.geometric(1 / 25, 20_000) + 1, 100), minlength=101)[2:]
    packing = pack(lengths, lengths, counts, 100)
    assert (lengths * counts).sum() / (packing.num_rows * 100) > 0.95
