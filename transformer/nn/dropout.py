# SPDX-License-Identifier: Apache-2.0
"""Dropout whose bits belong to a place in the batch, however the batch is cut up (paper 5.4).

The bits of an element are a function of the key (that of the seed, the step and the site in the
model), the number of its row in the whole batch, and its place within the row. So micro-batches,
devices under `jax.jit`, `jax.shard_map` and `jax.pmap`, and one device drop out the same elements.
"""

import math

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Key, UInt

Rows = Int[Array, " B"]
"""The numbers that rows have in the whole batch."""


def dropout(x: Float[Array, "B *T"], rate: float, bits: UInt[Array, "B *T"]) -> Array:
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate).

    Args:
      bits: 32 random ones an element; the smallest are dropped, so that the rate is exact to 2^-32.
    """
    kept = bits >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros_like(x))


def threefry_bits(key: Key[Array, ""], rows: Rows, shape: tuple[int, ...]) -> UInt[Array, "B *T"]:
    """JAX's own generator, with a key a row (the default: threefry, Salmon et al. 2011)."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows)
    return jax.vmap(lambda key: jax.random.bits(key, shape, jnp.uint32))(keys)


def hash_bits(key: Key[Array, ""], rows: Rows, shape: tuple[int, ...]) -> UInt[Array, "B *T"]:
    """`hash_places` with two words a row that JAX's own generator makes."""
    return hash_places(threefry_bits(key, rows, (2,)), shape)


def hash_places(words: UInt[Array, "B 2"], shape: tuple[int, ...]) -> UInt[Array, "B *T"]:
    """mix((mix(place) ^ word_0) + word_1), where places are counted through the row.

    The inner `mix`, the same for all rows, makes places differ irregularly: without it, rows whose
    words are close would have the same bits at places that are close. For each element there are
    some ten operations, where threefry has a hundred.
    """
    places = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    first, second = (words[:, i].reshape(-1, *(1 for _ in shape)) for i in (0, 1))
    return mix((mix(places) ^ first) + second)


def mix(word: UInt[Array, "*T"]) -> UInt[Array, "*T"]:
    """A bijection of 32-bit words in which every bit of the input moves every bit of the output.

    The finalizer of MurmurHash3 (Appleby 2011, `fmix32`).
    """
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


GENERATORS = {"threefry": threefry_bits, "hash": hash_bits}
