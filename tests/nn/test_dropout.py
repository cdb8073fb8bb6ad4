# SPDX-License-Identifier: Apache-2.0
"""Dropout bits: a function of key, example and position, and random in every direction.

The statistics are of fixed keys, so that they pass always or never. Their bounds are what truly
random bits would exceed in about one test of a thousand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.nn.dropout import drop
from transformer.random_bits import GENERATORS, hash_positions, mix

ROWS, LENGTH, WIDTH = 32, 16, 128
both = pytest.mark.parametrize("generator", sorted(GENERATORS))


def bits(generator, seed=0, rows=ROWS, shape=(LENGTH, WIDTH)):
    """Bits of the first examples, or of given ones."""
    rows = jnp.arange(rows) if isinstance(rows, int) else jnp.asarray(rows)
    return np.asarray(GENERATORS[generator](jax.random.key(seed), rows, shape))


# Dropping.


def test_dropout_by_hand():
    """Rate 1/4: bits below 2^30 drop their element, the others are scaled by 4/3."""
    given = jnp.array([[0, 2**30 - 1, 2**30, 2**32 - 1]], jnp.uint32)
    dropped = drop(jnp.array([[3.0, 3, 3, 6]]), 0.25, given)
    np.testing.assert_allclose(dropped, [[0, 0, 4, 8]], rtol=1e-6)


@both
def test_elements_are_dropped_at_the_rate(generator):
    """The number of dropped ones among n is within 3.3 standard deviations of n x rate."""
    x = jnp.ones((ROWS, LENGTH, WIDTH))
    for rate in (0.01, 0.1, 0.5, 0.9):
        dropped = np.asarray(drop(x, rate, jnp.asarray(bits(generator))))
        zeros = (dropped == 0).sum()
        assert abs(zeros - x.size * rate) < 3.3 * np.sqrt(x.size * rate * (1 - rate))
        np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - rate), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_dropout_keeps_the_dtype_and_kept_non_finite_elements(dtype):
    x = jnp.array([[jnp.nan, jnp.nan]], dtype)
    dropped = drop(x, 0.5, jnp.array([[0, 2**32 - 1]], jnp.uint32))
    assert dropped.dtype == dtype
    assert float(dropped[0, 0]) == 0 and jnp.isnan(dropped[0, 1])


# Bits are a function of key, example and position.


@both
def test_the_bits_of_an_example_do_not_depend_on_the_other_examples(generator):
    all_bits = bits(generator)
    np.testing.assert_array_equal(bits(generator, rows=[7, 3, 31]), all_bits[[7, 3, 31]])
    np.testing.assert_array_equal(bits(generator, rows=[5]), all_bits[[5]])
    assert (bits(generator, seed=1) != all_bits).mean() > 0.999


@both
def test_the_bits_of_a_position_do_not_depend_on_the_length(generator):
    """Positions are counted through the example: a longer one begins like a shorter one."""
    short = bits(generator, shape=(5, WIDTH))
    np.testing.assert_array_equal(short, bits(generator)[:, :5])


# Statistics.


def standard_normal(*statistics):
    """All within 4.5 standard deviations, a few among many within what chance allows."""
    values = np.concatenate([np.ravel(each) for each in statistics])
    assert np.abs(values).max() < 4.5, np.abs(values).max()
    return values


@both
def test_every_byte_of_the_bits_has_every_value_equally_often(generator):
    """Chi-square with 255 degrees of freedom, as a standard normal (Wilson and Hilferty)."""
    for shift in (0, 8, 16, 24):
        counts = np.bincount((bits(generator) >> shift).ravel() & 255, minlength=256)
        expected = counts.sum() / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        z = ((chi_square / 255) ** (1 / 3) - (1 - 2 / (9 * 255))) / np.sqrt(2 / (9 * 255))
        assert abs(z) < 3.3, shift


def masks(generator, seeds):
    """What a rate of 0.1 drops: [seed, row, position, feature], of mean 0 and variance 1."""
    dropped = np.stack([bits(generator, seed) for seed in seeds]) < 2**32 // 10
    return (dropped - 0.1) / np.sqrt(0.1 * 0.9)


@both
def test_dropping_is_uncorrelated_in_every_direction(generator):
    """Along rows (that is, devices too), positions, features, and keys (layers and steps), at many
    distances: the mean product of n pairs has variance 1 / n.
    """
    all_of = masks(generator, range(8))
    correlations = []
    for axis, size in enumerate(all_of.shape):
        for distance in sorted({1, 2, 3, 4, 5, 7, 8, 16, 31, 64} & set(range(1, size))):
            one = np.take(all_of, np.arange(size - distance), axis)
            other = np.take(all_of, np.arange(distance, size), axis)
            correlations.append((one * other).mean() * np.sqrt(one.size))
    assert len(correlations) > 20
    standard_normal(correlations)


@both
def test_no_two_masks_are_correlated(generator):
    """Every row with every other one, of every key: 32,640 correlations whose squares have mean
    1 / n, as those of random masks have.
    """
    flat = masks(generator, range(8)).reshape(8 * ROWS, -1)
    pairs = (flat @ flat.T)[np.triu_indices(len(flat), 1)] / np.sqrt(flat.shape[1])
    assert np.abs(pairs).max() < 6
    assert abs((pairs**2).mean() - 1) < 4 * np.sqrt(2 / len(pairs))
    assert abs(pairs.mean()) < 4 / np.sqrt(len(pairs))


@both
def test_the_dropped_fraction_of_rows_and_features_varies_by_chance_alone(generator):
    """No row, position or feature is dropped more often than another."""
    all_of = masks(generator, range(8))
    for axis in range(4):
        others = tuple(other for other in range(4) if other != axis)
        count = all_of.size // all_of.shape[axis]
        standard_normal(all_of.mean(others) * np.sqrt(count))


def test_one_input_bit_changes_half_of_the_output_bits():
    """Avalanche: each of 32 bits in, each of 32 bits out, over 20,000 words."""
    words = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    before = np.asarray(mix(jnp.asarray(words)))
    for flipped in range(32):
        changed = before ^ np.asarray(mix(jnp.asarray(words ^ np.uint32(1 << flipped))))
        share = [((changed >> bit) & 1).mean() for bit in range(32)]
        assert min(share) > 0.44 and max(share) < 0.56, flipped


def test_mix_is_the_published_function():
    """Values of MurmurHash3's `fmix32` by another way: Python's integers."""

    def fmix32(h):
        h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
        h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
        return h ^ h >> 16

    words = [0, 1, 2, 0x80000000, 0xDEADBEEF, 2**32 - 1]
    given = mix(jnp.array(words, jnp.uint32))
    assert [int(word) for word in given] == [fmix32(word) for word in words]
    assert fmix32(0) == 0


def test_mix_is_injective():
    words = np.arange(2**16, dtype=np.uint32) * np.uint32(65_537)
    assert len(np.unique(np.asarray(mix(jnp.asarray(words))))) == 2**16


def test_examples_with_close_words_share_no_bits():
    """They would, in another order, without the inner mix."""

    def of_words(*words):
        return np.asarray(hash_positions(jnp.array([words], jnp.uint32), (4096,)))[0]

    one = of_words(5, 9)
    for close in (of_words(6, 9), of_words(5, 10), of_words(2**31 + 5, 9)):
        assert len(np.intersect1d(one, close)) <= 1
