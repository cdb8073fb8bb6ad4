# SPDX-License-Identifier: Apache-2.0
"""The sinusoids of every layout, and the shift by one."""

import math

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.errors import InputError
from transformer.models.relative_positions import (
    RelativeBias,
    bucket_boundaries,
    relative_buckets,
)
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


def test_the_table_of_hugging_faces_marian_by_hand():
    """d_model 4: the rates 1 and 0.01 of the paper, all sines, then all cosines."""
    expected = [math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)]
    np.testing.assert_allclose(sinusoids(4, 4, "halves_paper")[3], expected, atol=1e-15)


@pytest.mark.parametrize("layout", ["interleaved", "halves", "halves_paper"])
def test_every_entry_is_the_oracles(layout):
    for d_model in (1, 2, 7, 16):
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


@pytest.mark.parametrize("layout", ["interleaved", "halves", "halves_paper"])
def test_far_positions_are_exact_because_the_table_is_float64(layout):
    table = sinusoids(10_001, 4, layout)
    assert table.dtype == np.float64
    for position in (2_049, 4_099, 9_999, 10_000):  # float16 has only the last of them
        assert table[position, 0] == pytest.approx(math.sin(position), abs=1e-12)


def test_an_unknown_layout_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"'spiral' is unknown.*'interleaved', 'halves'"):
        sinusoids(3, 4, "spiral")


def test_shift_right_begins_with_the_start_token_and_drops_the_last():
    shifted = shift_right(jnp.array([[5, 6, 2, 0], [7, 8, 9, 2]]))
    np.testing.assert_array_equal(shifted, [[1, 5, 6, 2], [1, 7, 8, 9]])
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


# Positions that enter attention: T5's buckets.


def test_t5_buckets_by_hand():
    """8 buckets, up to distance 16: 0 to 3 exactly, then 4-5, 6-7, 8-11 (4 sqrt 2 = 5.66, 8, 11.3)
    and all from 12 on.
    """
    assert bucket_boundaries(8, 16).tolist() == [1, 2, 3, 4, 6, 8, 12]
    distance = jnp.array([[0, -1, -3, -4, -5, -6, -8, -11, -12, -15, -16, -99, 1, 99]])
    options = {"num_buckets": 8, "max_distance": 16}
    buckets = relative_buckets(distance, bidirectional=False, **options)
    assert buckets.tolist() == [[0, 1, 3, 4, 4, 5, 6, 6, 7, 7, 7, 7, 0, 0]]
    distance = jnp.array([[0, -1, -2, -5, -6, -99, 1, 2, 5, 6, 99]])
    both = relative_buckets(distance, bidirectional=True, **options)
    assert both.tolist() == [[0, 1, 2, 2, 3, 3, 5, 6, 6, 7, 7]]


@pytest.mark.parametrize(
    ("buckets", "far", "bidirectional"),
    [(32, 128, False), (32, 128, True), (4, 7, True), (9, 10, False), (20, 33, True)],
)
def test_every_t5_bucket_is_the_oracles(buckets, far, bidirectional):
    distance = np.arange(-150, 151)
    options = {"num_buckets": buckets, "max_distance": far, "bidirectional": bidirectional}
    found = relative_buckets(jnp.asarray(distance)[None], **options)[0]
    expected = [oracle.t5_bucket(d, bidirectional, buckets, far) for d in distance]
    np.testing.assert_array_equal(found, expected)
    # Both ways, the bucket of a key 0 positions after the query stays empty, as in T5.
    assert len(set(expected)) == max(expected) + 1 - bidirectional


def test_the_relative_bias_of_a_head_is_its_entry_of_the_bucket():
    module = RelativeBias(
        num_heads=2, num_buckets=4, max_distance=8, bidirectional=False, stddev=1.0
    )
    biases = jnp.array([[0.0, 10], [1, 11], [2, 12], [3, 13]])
    term = module.apply({"params": {"bias": biases}}, jnp.array([4]), jnp.array([0, 1, 2, 3, 4, 5]))
    assert term.angles is term.keys is term.values is None
    np.testing.assert_array_equal(term.bias, [[[[3, 2, 2, 1, 0, 0]], [[13, 12, 12, 11, 10, 10]]]])


def test_far_relative_positions_and_positions_of_long_packed_rows_are_exact():
    """Neither float16, which counts to 2,048, nor bfloat16, which counts to 256, has them."""
    near = jnp.arange(6)
    module = RelativeBias(
        num_heads=1, num_buckets=8, max_distance=9, bidirectional=False, stddev=1.0
    )
    params = {"bias": jnp.arange(8.0)[:, None]}
    far = module.apply({"params": params}, near + 4_099, near + 4_099).bias
    np.testing.assert_array_equal(far, module.apply({"params": params}, near, near).bias)
    positions = positions_within_segments(jnp.ones((1, 5_000), jnp.int32))
    np.testing.assert_array_equal(positions[0], np.arange(5_000))


def test_the_relative_bias_of_packed_rows_counts_within_each_sentence():
    module = RelativeBias(
        num_heads=1, num_buckets=4, max_distance=8, bidirectional=True, stddev=1.0
    )
    params = {"bias": jnp.arange(4.0)[:, None]}
    positions = positions_within_segments(jnp.array([[1, 1, 2, 2, 2]]))
    bias = module.apply({"params": params}, positions, positions).bias
    alone = module.apply({"params": params}, jnp.arange(3), jnp.arange(3)).bias
    assert bias.shape == (1, 1, 5, 5)
    np.testing.assert_array_equal(bias[:, :, 2:, 2:], alone)
    np.testing.assert_array_equal(bias[:, :, :2, :2], alone[:, :, :2, :2])
