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
    if bias is None and cudnn_computes(query, key):
        implementation = "cudnn"
        if mask is not None:  # cuDNN reads a mask with all queries and all keys.
            mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
    z = jax.nn.dot_product_attention(
        *(query, key, value, bias), mask=mask, is_causal=causal, implementation=implementation
    )
    return AttentionOutput(z)


def cudnn_computes(query: Float[Array, "B T N H"], key: Float[Array, "B S N H"]) -> bool:
    """Whether cuDNN has a kernel of flash attention for these arrays, gradients and mask included.

    It needs a GPU of NVIDIA, numbers of 16 bits, an even number of queries and of keys, and a head
    size that is a multiple of 8, up to 128 (`jax.nn.dot_product_attention`, and cuDNN's developer
    guide). A bias is left to XLA: with a mask that differs between sentences, jax 0.10 returns
    zeros for its gradient.
    """
    if "cuda" not in jax.extend.backend.get_backend().platform_version:
        return False
    head_size = query.shape[-1]
    lengths_fit = query.shape[1] % 2 == key.shape[1] % 2 == 0
    heads_fit = head_size % 8 == 0 and head_size <= 128
    return lengths_fit and heads_fit and query.dtype in (jnp.bfloat16, jnp.float16)


KERNELS: dict[str, Callable[..., AttentionOutput]] = {
    "einsum": einsum_attention,
    "chunked": chunked_attention,
    "fused": fused_attention,
}
