# SPDX-License-Identifier: Apache-2.0
"""The kernels of attention, by the names of `model.attention_kernel`; all give the same result.

``einsum`` is the formula itself (`attention.py`). ``chunked`` computes it for a few queries at a
time, for long sentences (`chunked_attention.py`). ``fused`` calls `jax.nn.dot_product_attention`.
Only ``einsum`` returns attention weights, applies dropout to them, and has the additive score and
the terms of keys and values by relative position; the others need not compute what a causal mask
hides.
"""

from collections.abc import Callable

import jax

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
    """`jax.nn.dot_product_attention`, which needs d_k == d_v."""
    z = jax.nn.dot_product_attention(query, key, value, bias, mask=mask, is_causal=causal)
    return AttentionOutput(z)


KERNELS: dict[str, Callable[..., AttentionOutput]] = {
    "einsum": einsum_attention,
    "chunked": chunked_attention,
    "fused": fused_attention,
}
