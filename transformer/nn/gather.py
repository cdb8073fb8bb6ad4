# SPDX-License-Identifier: Apache-2.0
"""Gathering by indices that a search computed itself, and dividing them."""

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Int


def gather(values: Array, indices: Int[Array, "..."], axis: int = 1) -> Array:
    """Select as `jnp.take_along_axis` does, without checks of the indices.

    These would be compiled into every loop of a search, and run at each step.

    Args:
      values: for example [B, K, M].
      indices: from 0 to the size of the axis - 1; broadcast along the other axes, as [B, k, 1].
      axis: to select along.
    """
    return jnp.take_along_axis(values, indices, axis, mode="promise_in_bounds")


def divmod_of_indices(indices: Int[Array, "..."], size: int) -> tuple[Array, Array]:
    """Quotients and remainders, of the shape of `indices`, which must not be negative.

    `//` and `%` would compare signs.
    """
    size = jnp.asarray(size, indices.dtype)
    return jax.lax.div(indices, size), jax.lax.rem(indices, size)
