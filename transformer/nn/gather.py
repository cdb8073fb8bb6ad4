# SPDX-License-Identifier: Apache-2.0
"""Gathers by indices that a search computed itself, and their quotients."""

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Int


def gather(values: Array, indices: Int[Array, "..."], axis: int = 1) -> Array:
    """`jnp.take_along_axis` for indices of the array: neither negative nor too large.

    Checks for both, as NumPy has them, are code that every loop of a search compiles and runs.
    """
    return jnp.take_along_axis(values, indices, axis, mode="promise_in_bounds")


def divmod_of_indices(indices: Int[Array, "..."], size: int) -> tuple[Array, Array]:
    """Quotients and remainders of numbers that are not negative: `//` and `%` compare signs."""
    size = jnp.asarray(size, indices.dtype)
    return jax.lax.div(indices, size), jax.lax.rem(indices, size)
