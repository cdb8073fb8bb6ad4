# SPDX-License-Identifier: Apache-2.0
"""Random bits that are a function of a key, an example and a position, however a batch is divided.

Micro-batches, `jax.jit` on any mesh, `jax.shard_map` and `jax.pmap` therefore draw the same bits as
one device does.
"""

import math

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Int, Key, UInt


def chosen(bits: UInt[Array, "*_"], rate: float) -> Bool[Array, "*_"]:
    """True with probability `rate`, exact to 2^-32, for 32 random bits each."""
    return bits < jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def threefry_bits(
    key: Key[Array, ""], example_ids: Int[Array, " B"], shape: tuple[int, ...]
) -> UInt[Array, "B *_"]:
    """JAX's own generator with one key per example (threefry by default; Salmon et al. 2011)."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, example_ids)  # [B]
    return jax.vmap(lambda key: jax.random.bits(key, shape, jnp.uint32))(keys)


def hash_bits(
    key: Key[Array, ""], example_ids: Int[Array, " B"], shape: tuple[int, ...]
) -> UInt[Array, "B *_"]:
    """`hash_positions` with two words per example from `threefry_bits`."""
    return hash_positions(threefry_bits(key, example_ids, (2,)), shape)


def hash_positions(words: UInt[Array, "B 2"], shape: tuple[int, ...]) -> UInt[Array, "B *_"]:
    """mix((mix(position) ^ word_0) + word_1), with positions counted through an example.

    The inner `mix` decorrelates neighbors: without it, examples with close words would have equal
    bits at close positions. An element costs about ten operations, against a hundred for threefry.
    """
    positions = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    first, second = (words[:, i].reshape(-1, *(1 for _ in shape)) for i in (0, 1))  # [B, 1, ...]
    return mix((mix(positions) ^ first) + second)


def mix(word: UInt[Array, "*_"]) -> UInt[Array, "*_"]:
    """The finalizer of MurmurHash3 (Appleby 2011, `fmix32`).

    A bijection of 32-bit words in which every input bit affects every output bit.
    """
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


GENERATORS = {"threefry": threefry_bits, "hash": hash_bits}
