# SPDX-License-Identifier: Apache-2.0
"""Dropout whose random bits do not depend on how a batch is divided (paper 5.4).

An element's bits are a function of the key (seed, step and module), the global index of its example
in the batch, and its position within the example. Micro-batches, `jax.jit` on any mesh,
`jax.shard_map` and `jax.pmap` therefore drop the same elements as one device does.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Int, Key, UInt


def example_ids_of(batch: int, train: bool, example_ids: Int[Array, " B"] | None) -> Array | None:
    """The argument `dropout` of every layer: the index of each example in training, else None."""
    if not train:
        return None
    return jnp.arange(batch) if example_ids is None else example_ids


def apply_dropout(
    module: nn.Module, x: Array, rate: float, example_ids: Int[Array, " B"] | None
) -> Array:
    """Apply dropout to ``x``, with a key and the generator of a Linen module.

    Args:
      module: has a `config` with a `dropout_generator`.
      x: one example a row, `[B, ...]`.
      rate: probability of zeroing an element.
      example_ids: global index of each example in the batch; None: no dropout.
    """
    if example_ids is None or not rate:
        return x
    generator = module.config.dropout_generator
    return dropout(x, rate, module.make_rng("dropout"), example_ids, generator)


def dropout(
    x: Array,
    rate: float,
    key: Key[Array, ""],
    example_ids: Int[Array, " B"],
    generator: str = "threefry",
) -> Array:
    """Apply dropout to ``x``, `[B, ...]`, with the key of a module at a step."""
    return drop(x, rate, GENERATORS[generator](key, example_ids, x.shape[1:]))


def drop(x: Array, rate: float, bits: UInt[Array, "B *_"]) -> Array:
    """Zero each element with probability `rate` and scale the others by 1 / (1 - rate).

    Args:
      x: the activations, `[B, ...]`.
      rate: exact to 2^-32.
      bits: 32 random bits for each element; the elements with the smallest are dropped.
    """
    return jnp.where(chosen(bits, rate), jnp.zeros_like(x), x / (1.0 - rate))


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
