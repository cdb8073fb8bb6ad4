# SPDX-License-Identifier: Apache-2.0
"""Attention without its weights: functions of the arrays of `nn.attention.attention`.

They give the same result and need not compute what a causal mask hides. They apply no dropout to
the weights, and know neither the additive score nor vectors by relative position.
"""

from collections.abc import Callable

from transformer.arrays import Array, Float
from transformer.kernels.chunked import chunked_attention
from transformer.kernels.fused import cudnn_computes, fused_attention

Kernel = Callable[..., Float[Array, "B T N Hv"]]
KERNELS: dict[str, Kernel] = {"chunked": chunked_attention, "fused": fused_attention}
"""By the names of `model.attention_kernel`."""
LONG = 1024
"""Queries from which the scores leave the caches of a CPU, and take gigabytes elsewhere."""


def choose(
    name: str,
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N Hv"],
    bias: Float[Array, "#B N #T S"] | None,
) -> Kernel | None:
    """The kernel that `model.attention_kernel` names for these arrays; None for the formula.

    ``auto`` is cuDNN's flash attention where it applies, else ``chunked`` for long sentences, else
    the formula.
    """
    if name == "auto":
        if bias is None and cudnn_computes(query, key, value):
            return fused_attention
        return chunked_attention if query.shape[1] >= LONG else None
    return KERNELS.get(name)
