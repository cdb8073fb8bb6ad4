# SPDX-License-Identifier: Apache-2.0
"""The most probable tokens with a given total weight, by bisection."""

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float


def most_probable_by_bisection(
    log_probs: Float[Array, "... V"], weights: Float[Array, "... V"], total: int | float
) -> Bool[Array, "... V"]:
    """`sampling.most_probable` for CPUs, on which sorting a vocabulary takes ten times as long.

    Log-probabilities are at most 0, and floats that are not negative have the order of their bits.
    Bisection therefore sets one bit at a time, from the highest, of the largest bound to -log P
    below which the weights sum to less than `total`.
    """
    surprisal = -log_probs

    def as_float(bits: Array) -> Array:
        return jax.lax.bitcast_convert_type(bits, jnp.float32)

    def set_bit(number: Array, bound: Array) -> Array:
        candidate = bound | (1 << (30 - number))
        sums = jnp.where(surprisal < as_float(candidate), weights, 0.0).sum(-1, keepdims=True)
        return jnp.where(sums < total, candidate, bound)

    bound = jnp.zeros_like(surprisal[..., :1], jnp.int32)  # [..., 1]
    bound = as_float(jax.lax.fori_loop(0, 31, set_bit, bound))
    # Where rounding leaves the sum of all weights below `total`, the bound is NaN: all are kept.
    return ~(surprisal > bound)
