# SPDX-License-Identifier: Apache-2.0
"""Dropout whose random bits do not depend on how a batch is divided (paper 5.4).

An element's bits are a function of the key (seed, step and module), the global index of its example
in the batch, and its position within the example (`transformer.random_bits`).
"""

import flax.linen as nn
import jax.numpy as jnp

from transformer.arrays import Array, Int, UInt
from transformer.random_bits import GENERATORS, chosen


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
    generator = GENERATORS[module.config.dropout_generator]
    return drop(x, rate, generator(module.make_rng("dropout"), example_ids, x.shape[1:]))


def drop(x: Array, rate: float, bits: UInt[Array, "B *_"]) -> Array:
    """Zero each element with probability `rate` and scale the others by 1 / (1 - rate).

    Args:
      x: the activations, `[B, ...]`.
      rate: exact to 2^-32.
      bits: 32 random bits for each element; the elements with the smallest are dropped.
    """
    return jnp.where(chosen(bits, rate), jnp.zeros_like(x), x / (1.0 - rate))
