# SPDX-License-Identifier: Apache-2.0
"""The two-level search finds what `jax.lax.top_k` finds, places of equal values included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.decoding.top_k import chunk_size, top_k

LENGTHS = {
    "divided into 250s": (8000, 250),
    "not divided: a prime": (7919, 128),
    "less than one chunk": (50, 128),
    "divided into 97s": (97 * 101, 101),
}


def values_of(seed, length, different):
    """Rows in which every value comes about `length / different` times."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, different, (16, length)).astype(np.float32)


def assert_as_in_jax(values, k):
    found, expected = jax.jit(top_k, static_argnums=1)(values, k), jax.lax.top_k(values, k)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("different", [2, 40, 5000], ids="{} values".format)
@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("name", LENGTHS)
def test_values_and_places_are_those_of_jax(name, k, different):
    length, size = LENGTHS[name]
    assert chunk_size(length) == size
    assert_as_in_jax(values_of(k, length, different), k)


def test_of_rows_that_are_all_the_same_the_first_places_are_taken():
    values = jnp.full((2, 6400), -1e30)
    largest, places = top_k(values, 8)
    np.testing.assert_array_equal(places, [range(8)] * 2)
    np.testing.assert_array_equal(largest, values[:, :8])


def test_the_largest_may_all_lie_in_one_chunk_or_each_in_its_own():
    together, apart = np.zeros((2, 1, 6400), np.float32)
    together[0, 6400 - 8 :] = np.arange(8) + 1
    apart[0, ::800] = np.arange(8) + 1
    for values, places in ((together, range(6399, 6391, -1)), (apart, range(5600, -1, -800))):
        largest, found = top_k(jnp.asarray(values), 8)
        np.testing.assert_array_equal(found[0], places)
        np.testing.assert_array_equal(largest[0], range(8, 0, -1))


def test_infinities_are_where_jax_has_them():
    values = values_of(3, 8000, 40)
    values[:, ::3] = -np.inf
    values[::4, 17] = np.inf
    assert_as_in_jax(values, 4)
    assert_as_in_jax(np.full((1, 7919), -np.inf, np.float32), 4)


def test_the_row_is_never_walked_through_one_by_one():
    """Only maxima of chunks and candidates are handed to `jax.lax.top_k`."""
    program = jax.jit(functools.partial(top_k, k=8)).lower(jnp.zeros((64, 32000))).as_text()
    calls = [line for line in program.splitlines() if "top_k" in line and "tensor<" in line]
    assert calls
    assert not [line for line in calls if "tensor<64x32000xf32>) ->" in line]
