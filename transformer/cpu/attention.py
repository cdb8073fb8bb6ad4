# SPDX-License-Identifier: Apache-2.0
"""Chunked attention, the decoder's cache and norms, as XLA's CPU backend computes them fastest."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer.arrays import Array, wide


def by_heads(function: Callable[..., Any], num_heads: int, *trees: Any) -> Any:
    """`function` of one head after the other: arrays [B, N, _, _] to such arrays.

    The scores of a chunk then stay in the cores' cache from one operation to the next.
    """
    leaves, structure = jax.tree.flatten(trees)
    heads = {
        index: jnp.moveaxis(x, 1, 0)[:, :, None]  # [N, B, 1, _, _]
        for index, x in enumerate(leaves)
        if x.shape[1] == num_heads
    }

    def of_one(head: dict[int, Array]) -> Any:
        of_head = [head.get(index, x) for index, x in enumerate(leaves)]
        return function(*jax.tree.unflatten(structure, of_head))

    return jax.tree.map(lambda x: jnp.moveaxis(x[:, :, 0], 0, 1), jax.lax.map(of_one, heads))


def cache_dtype(dtype: DTypeLike) -> jnp.dtype:
    """float32 for bfloat16: XLA computes attention over few queries in float32.

    It would convert the complete cache at each step. The values are unchanged.
    """
    return wide(dtype)


def norm(function: Callable[..., Array], x: Array, *parameters: Any) -> Array:
    """The norm of [1, T, D] as that of [T, D], whose gradients take a fifth of the time."""
    if x.ndim == 3 and len(x) == 1:
        return function(x[0], *parameters)[None]
    return function(x, *parameters)
