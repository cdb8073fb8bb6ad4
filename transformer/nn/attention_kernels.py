# SPDX-License-Identifier: Apache-2.0
"""The kernels of attention, by the names of `model.attention_kernel`; all give the same result.

``einsum`` is the formula itself (`attention.py`). ``chunked`` computes it for a few queries at a
time, for long sentences (`chunked_attention.py`). ``fused`` calls `jax.nn.dot_product_attention`,
which is cuDNN's flash attention on a GPU of NVIDIA in bfloat16.
Only ``einsum`` returns attention weights, applies dropout to them, and has the additive score and
the terms of keys and values by relative position; the others need not compute what a causal mask
hides.
"""

from collections.abc import Callable

import jax
import jax.extend
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float
from transformer.nn.attention import AttentionOutput, einsum_attention
from transformer.nn.chunked_attention import chunked_attention


def fused_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N H"],
    mask: Bool[Array, "#B #N #T S"] | None,
    bias: Float[Array, "#B N #T S"] | None = None,
    *,
    causal: bool = False,
) -> AttentionOutput:
    """`jax.nn.dot_product_attention`, which needs d_k == d_v; by cuDNN where it has a kernel."""
    implementation = "xla"
    if cudnn_computes(query, key):
        implementation = "cudnn"
        # cuDNN reads mask and bias, whose dtype must be that of the queries, for every query.
        queries_and_keys = (query.shape[1], key.shape[1])
        if mask is not None:
            mask = jnp.broadcast_to(mask, (*mask.shape[:2], *queries_and_keys))
        if bias is not None:
            bias = jnp.broadcast_to(bias, (*bias.shape[:2], *queries_and_keys))
            bias = bias.astype(query.dtype)
    z = jax.nn.dot_product_attention(
        *(query, key, value, bias), mask=mask, is_causal=causal, implementation=implementation
    )
    return AttentionOutput(z)


def cudnn_computes(query: Float[Array, "B T N H"], key: Float[Array, "B S N H"]) -> bool:
    """Whether cuDNN has a kernel of flash attention for these arrays, gradients and mask included.

    It needs a GPU of NVIDIA, numbers of 16 bits, an even number of queries and of keys, and a head
    size that is a multiple of 8, up to 128 (`jax.nn.dot_product_attention`, and cuDNN's developer
    guide).
    """
    if "cuda" not in jax.extend.backend.get_backend().platform_version:
        return False
    head_size = query.shape[-1]
    fits = query.shape[1] % 2 == key.shape[1] % 2 == 0 and head_size % 8 == 0 and head_size <= 128
    return fits and query.dtype in (jnp.bfloat16, jnp.float16)


KERNELS: dict[str, Callable[..., AttentionOutput]] = {
    "einsum": einsum_attention,
    "chunked": chunked_attention,
    "fused": fused_attention,
}
