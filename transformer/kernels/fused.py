# SPDX-License-Identifier: Apache-2.0
"""`jax.nn.dot_product_attention`, which is cuDNN's flash attention on a GPU of NVIDIA."""

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float
from transformer.platforms import platform


def fused_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N H"],
    mask: Bool[Array, "#B #N #T S"] | None,
    bias: Float[Array, "#B N #T S"] | None = None,
    *,
    causal: bool = False,
) -> Float[Array, "B T N H"]:
    """The formula by cuDNN where it has a kernel, else by XLA; d_k and d_v are equal."""
    implementation = "xla"
    if bias is None and cudnn_computes(query, key, value):
        implementation = "cudnn"
        if mask is not None:  # cuDNN reads a mask with all queries and all keys.
            mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
    return jax.nn.dot_product_attention(
        *(query, key, value, bias), mask=mask, is_causal=causal, implementation=implementation
    )


def cudnn_computes(
    query: Float[Array, "B T N H"], key: Float[Array, "B S N H"], value: Float[Array, "B S N Hv"]
) -> bool:
    """Whether cuDNN has a kernel of flash attention for these arrays, gradients and mask included.

    It needs a GPU of NVIDIA, numbers of 16 bits, an even number of queries and of keys, and a head
    size that is a multiple of 8, up to 128 (`jax.nn.dot_product_attention`, and cuDNN's developer
    guide). A bias is left to XLA: with a mask that differs between sentences, jax 0.10 returns
    zeros for its gradient.
    """
    head_size = query.shape[-1]
    lengths_fit = query.shape[1] % 2 == key.shape[1] % 2 == 0
    heads_fit = head_size == value.shape[-1] and head_size % 8 == 0 and head_size <= 128
    is_short = query.dtype in (jnp.bfloat16, jnp.float16)
    return platform() == "cuda" and lengths_fit and heads_fit and is_short
