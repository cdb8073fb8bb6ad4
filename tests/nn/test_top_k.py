# SPDX-License-Identifier: Apache-2.0
"""The two-level top-k returns what `jax.lax.top_k` returns, indices of equal values included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.cpu.top_k import chunk_size, two_level_top_k
from transformer.decoding.beam_search import top_k
from transformer.platforms import compiling_for, operation

LENGTHS = {
    "divided into 250s": (8000, 250),
    "not divided: a prime": (7919, 128),
    "less than one chunk": (50, 128),
    "divided into 97s": (97 * 101, 101),
}


def random_values(seed, length, distinct):
    """Five sentences of four beams, in which a value occurs about `length / distinct` times."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, distinct, (5, 4, length)).astype(np.float32)


two_levels = jax.jit(two_level_top_k, static_argnums=1)


def assert_same_as_jax(values, k):
    actual = two_levels(values, k)
    expected = jax.lax.top_k(values.reshape(len(values), -1), k)
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1], expected[1])


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("name", LENGTHS)
def test_values_and_indices_are_those_of_jax(name, k):
    length, size = LENGTHS[name]
    assert chunk_size(length) == size
    for distinct in (1, 2, 40, 5000):
        assert_same_as_jax(random_values(k, length, distinct), k)


def test_values_and_indices_are_those_of_a_stable_sort_in_numpy():
    values = random_values(0, 8000, 40)
    rows = values.reshape(len(values), -1)
    order = np.argsort(-rows, axis=-1, kind="stable")[:, :5]
    for form in (top_k, two_level_top_k):
        largest, indices = jax.jit(form, static_argnums=1)(jnp.asarray(values), 5)
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(largest, np.take_along_axis(rows, order, -1))


def test_the_largest_values_may_be_in_one_chunk_or_in_different_chunks():
    together, apart = np.zeros((2, 1, 1, 6400), np.float32)
    together[0, 0, 6400 - 8 :] = np.arange(8) + 1
    apart[0, 0, ::800] = np.arange(8) + 1
    for values, expected in ((together, range(6399, 6391, -1)), (apart, range(5600, -1, -800))):
        largest, indices = two_levels(jnp.asarray(values), 8)
        np.testing.assert_array_equal(indices[0], expected)
        np.testing.assert_array_equal(largest[0], range(8, 0, -1))


def test_infinities_are_handled_as_in_jax():
    values = random_values(3, 8000, 40)
    values[..., ::3] = -np.inf
    values[::2, 1, 17] = np.inf
    assert_same_as_jax(values, 4)
    assert_same_as_jax(np.full((1, 4, 7919), -np.inf, np.float32), 4)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_on_a_cpu_alone_the_full_row_is_not_scanned_one_by_one(platform):
    """There, `jax.lax.top_k` runs on maxima of chunks and on candidates only."""
    with compiling_for(platform):
        top = jax.jit(functools.partial(operation("top_k", top_k), k=8))
        program = top.lower(jnp.zeros((64, 4, 8000))).as_text()
    calls = [line for line in program.splitlines() if "top_k" in line and "tensor<" in line]
    assert calls
    scans_the_row = any("32000xf32> ->" in line for line in calls)
    assert scans_the_row == (platform != "cpu")
