# SPDX-License-Identifier: Apache-2.0
"""The sinusoids of both layouts, and the shift by one."""

import math

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.errors import InputError
from transformer.nn.positions import positions_within_segments, shift_right, sinusoids


def test_the_papers_table_by_hand():
    """d_model 4: wavelengths 2 pi and 100 * 2 pi, sine and cosine side by side."""
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]
    np.testing.assert_allclose(sinusoids(3, 4), expected, atol=1e-15)
    assert sinusoids(2, 4)[1, 0] == pytest.approx(0.8414709848, abs=1e-10)
    assert sinusoids(2, 4)[1, 1] == pytest.approx(0.5403023059, abs=1e-10)


def test_tensor2tensors_table_by_hand():
    """d_model 6: rates 1, 10000^(-1/2) = 0.01 and 10000^-1, all sines, then all cosines."""
    rates = [1.0, 0.01, 0.0001]
    expected = [*(math.sin(7 * rate) for rate in rates), *(math.cos(7 * rate) for rate in rates)]
    np.testing.assert_allclose(sinusoids(8, 6, "halves")[7], expected, atol=1e-15)


def test_the_layouts_differ_in_their_slowest_wave():
    """The paper's exponent stays below 1; the halves' last one is exactly 1."""
    assert sinusoids(2, 4)[1, 2] == pytest.approx(math.sin(10000**-0.5))
    assert sinusoids(2, 4, "halves")[1, 1] == pytest.approx(math.sin(1 / 10000))


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("d_model", [1, 2, 7, 16])
def test_every_entry_is_the_oracles(layout, d_model):
    expected = oracle.sinusoids(9, d_model, layout)
    np.testing.assert_allclose(sinusoids(9, d_model, layout), expected, atol=1e-13)


def test_a_shift_by_k_is_one_rotation_of_every_position():
    """Paper 3.5: PE[p + k] is a linear function of PE[p], the same for every p."""
    table, k = sinusoids(60, 8), 5
    rotation = np.zeros((8, 8))
    for i in range(4):
        angle = k / 10000 ** (2 * i / 8)
        cosine, sine = math.cos(angle), math.sin(angle)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cosine, sine], [-sine, cosine]]
    np.testing.assert_allclose(table[:-k] @ rotation.T, table[k:], atol=1e-12)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_the_product_of_two_positions_depends_on_their_distance_alone(layout):
    table = sinusoids(40, 12, layout)
    products = table @ table.T
    for distance in (0, 1, 17):
        assert np.ptp(np.diagonal(products, distance)) < 1e-12
    assert products[0, 0] == pytest.approx(6.0)


def test_a_longer_table_begins_with_the_shorter_one():
    np.testing.assert_array_equal(sinusoids(50, 6)[:20], sinusoids(20, 6))


def test_far_positions_are_exact_because_the_table_is_float64():
    table = sinusoids(10_001, 4)
    assert table.dtype == np.float64
    assert table[10_000, 0] == pytest.approx(math.sin(10_000), abs=1e-12)


def test_an_unknown_layout_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"'spiral' is unknown.*'interleaved', 'halves'"):
        sinusoids(3, 4, "spiral")


def test_shift_right_begins_with_the_start_token_and_drops_the_last():
    shifted = shift_right(jnp.array([[5, 6, 2, 0], [7, 8, 9, 2]]))
    np.testing.assert_array_equal(shifted, [[1, 5, 6, 2], [1, 7, 8, 9]])


def test_shift_right_of_a_single_token_is_the_start_token():
    np.testing.assert_array_equal(shift_right(jnp.array([[2]])), [[1]])


def test_in_a_packed_row_every_sentence_begins_anew():
    segments = jnp.array([[1, 1, 1, 2, 2, 3, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]])
    target = jnp.array([[5, 6, 2, 7, 2, 2, 0, 0], [5, 6, 7, 8, 9, 5, 6, 2]])
    assert positions_within_segments(segments).tolist() == [
        [0, 1, 2, 0, 1, 0, 0, 1],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]
    assert shift_right(target, segments).tolist() == [
        [1, 5, 6, 1, 7, 1, 1, 0],
        [1, 5, 6, 7, 8, 9, 5, 6],
    ]
