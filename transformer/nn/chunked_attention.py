# SPDX-License-Identifier: Apache-2.0
"""Attention for a few queries at a time: the formula of paper 3.2.1 for long sentences.

Memory grows with T + S instead of T S, and what a causal mask hides is mostly not computed. The
backward pass is written by hand, as in FlashAttention (Dao et al. 2022). On a CPU, heads take turns
too, so that the scores of a chunk stay in the cores' cache from one operation to the next.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, wide
from transformer.nn.attention import AttentionOutput
from transformer.nn.masks import both
from transformer.nn.matmul import cpu_forms, rounded_einsum

CHUNK = 256
"""Queries per chunk of `chunked_attention`."""
CAUSAL_PARTS = 8
"""Parts of the queries of a causal `chunked_attention`: 16 take longer to compile."""


class _Inputs(NamedTuple):
    """The inputs of attention, heads before positions; keys and values end with the positions."""

    query: Float[Array, "B N T H"]
    key: Float[Array, "B N H S"]
    value: Float[Array, "B N Hv S"]
    mask: Bool[Array, "#B #N #T S"] | None
    bias: Float[Array, "#B N #T S"] | None
    positions: Int[Array, " T"] | None
    """Positions of the queries, if attention is causal."""


def chunked_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N Hv"],
    mask: Bool[Array, "#B #N #T S"] | None,
    bias: Float[Array, "#B N #T S"] | None = None,
    *,
    causal: bool = False,
) -> AttentionOutput:
    """The formula for `CHUNK` queries at a time, in memory that grows with T + S.

    Queries are independent, so the result is unchanged. The backward pass computes a chunk's
    weights again: seven matmuls instead of six, but on numbers that are still in the processor's
    cache. A mask or a bias that differs between queries still takes T S elements; the causal mask
    does not, as each chunk computes its rows.

    If it is causal, the queries are divided into parts, each of which reads the keys up to its last
    query: of P parts, (P + 1) / 2P of the work.

    Args:
      query: of T target positions.
      key: of S source positions.
      value: of S source positions.
      mask: true where a query may attend to a key.
      bias: added to the scores.
      causal: a query may attend only to keys up to its own position, besides what `mask` forbids.
    """
    length = query.shape[1]
    inputs = _Inputs(
        query.transpose(0, 2, 1, 3),
        key.transpose(0, 2, 3, 1),
        value.transpose(0, 2, 3, 1),
        mask,
        bias,
        jnp.arange(length) if causal else None,
    )
    z = _head_by_head(inputs) if cpu_forms() and length > CHUNK else _in_parts(inputs)
    return AttentionOutput(z.swapaxes(1, 2))


def _head_by_head(inputs: _Inputs) -> Float[Array, "B N T Hv"]:
    """Attention, one head after the other."""
    num_heads = inputs.query.shape[1]
    heads = {
        name: jnp.moveaxis(x, 1, 0)[:, :, None]  # [N, B, 1, _, _]
        for name, x in inputs._asdict().items()
        if x is not None and x.ndim == 4 and x.shape[1] == num_heads
    }
    z = jax.lax.map(lambda head: _in_parts(inputs._replace(**head)), heads)
    return jnp.moveaxis(z[:, :, 0], 0, 1)


def _in_parts(inputs: _Inputs) -> Float[Array, "B N T Hv"]:
    """Attention, in parts that read the keys up to their last query if it is causal."""
    length = inputs.query.shape[2]
    parts = 1 if inputs.positions is None else CAUSAL_PARTS
    size = -(-length // (CHUNK * parts)) * CHUNK
    z = [_in_chunks(_part(inputs, start, size)) for start in range(0, length, size)]
    return jnp.concatenate(z, axis=2)


def _part(inputs: _Inputs, start: int, size: int) -> _Inputs:
    """The queries from `start` on, at most `size`, with the keys that they can see."""
    end = inputs.key.shape[-1] if inputs.positions is None else start + size

    def rows(x: Array | None) -> Array | None:
        """[#B, #N, #T, S] to the rows and columns of the part."""
        if x is None:
            return None
        return (x[:, :, start : start + size] if x.shape[2] > 1 else x)[..., :end]

    return _Inputs(
        inputs.query[:, :, start : start + size],
        inputs.key[..., :end],
        inputs.value[..., :end],
        rows(inputs.mask),
        rows(inputs.bias),
        None if inputs.positions is None else inputs.positions[start : start + size],
    )


def _in_chunks(inputs: _Inputs) -> Float[Array, "B N T Hv"]:
    """Attention, chunk by chunk."""
    length = inputs.query.shape[2]
    size = min(CHUNK, length)
    count = -(-length // size)

    def chunked(x: Array | None, axis: int = 2) -> Array | None:
        """[B, N, T, _] to [count, B, N, size, _], [T] to [count, size]; None if equal for all T.

        The padding is cut off below.
        """
        if x is None or x.shape[axis] < length:
            return None
        widths = [(0, count * size - length if i == axis else 0) for i in range(x.ndim)]
        shape = (*x.shape[:axis], count, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(jnp.pad(x, widths).reshape(shape), axis, 0)

    chunks = {
        "query": chunked(inputs.query),
        "mask": chunked(inputs.mask),
        "bias": chunked(inputs.bias),
        "positions": chunked(inputs.positions, axis=0),
    }
    chunks = {name: x for name, x in chunks.items() if x is not None}
    z = jax.lax.map(lambda chunk: _attend(inputs._replace(**chunk)), chunks)
    z = jnp.moveaxis(z, 0, 2)  # [B, N, count, size, Hv]
    return z.reshape(*z.shape[:2], -1, z.shape[-1])[:, :, :length]


@jax.custom_vjp
def _attend(inputs: _Inputs) -> Float[Array, "B N T Hv"]:
    """Compute softmax(Q K^T / sqrt(d_k)) V (paper 3.2.1).

    For the backward pass it keeps its result and, for each query, the maximum of the scores and the
    logarithm of the sum of their exponentials; with these, the weights are one exponential (Dao et
    al. 2022, FlashAttention, appendix B).
    """
    return _forward(inputs)[0]


class _Residuals(NamedTuple):
    """What the backward pass needs."""

    inputs: _Inputs
    z: Float[Array, "B N T Hv"]
    largest: Float[Array, "B N T 1"]
    """The maximum of the scores."""
    log_total: Float[Array, "B N T 1"]
    """The logarithm of the sum of exp(scores - largest).

    It is not added to `largest`, which for a query without keys is a number so large that the sum
    would lose it.
    """


def _forward(inputs: _Inputs) -> tuple[Float[Array, "B N T Hv"], _Residuals]:
    """z, and what the backward pass needs."""
    scores = _masked_scores(inputs)
    largest = scores.max(-1, keepdims=True)
    exponentials = jnp.exp(scores - largest)  # [B, N, T, S]
    total = exponentials.sum(-1, keepdims=True)
    z = jnp.einsum(
        "BNTS,BNHS->BNTH",
        exponentials.astype(inputs.value.dtype),
        inputs.value,
        preferred_element_type=scores.dtype,
    )
    z = (z / total).astype(inputs.query.dtype)
    return z, _Residuals(inputs, z, largest, jnp.log(total))


def _backward(residuals: _Residuals, z_gradient: Float[Array, "B N T Hv"]) -> tuple[_Inputs]:
    """The gradients of query, key, value and bias from that of z.

    Scale and mask are applied to arrays [B, N, T, _], which take less time than those of T S.
    """
    query, key, value, _, bias, _ = residuals.inputs
    scores = _masked_scores(residuals.inputs)
    weights = jnp.exp(scores - residuals.largest - residuals.log_total)  # [B, N, T, S]
    # The weight of a masked key is 0, and so is the gradient of its score, unless all are masked.
    sees = residuals.largest > jnp.finfo(scores.dtype).min
    seen_gradient = jnp.where(sees, z_gradient, 0)
    weights_gradient = jnp.einsum(
        "BNTH,BNHS->BNTS", seen_gradient, value, preferred_element_type=scores.dtype
    )
    # The gradient of softmax is w (g - sum(w g)), and sum(w g) over the keys is z . dz.
    mean = (seen_gradient.astype(scores.dtype) * residuals.z).sum(-1, keepdims=True)  # [B, N, T, 1]
    scores_gradient = weights * (weights_gradient - mean)
    bias_gradient = None
    if bias is not None:
        broadcast = [axis for axis, size in enumerate(bias.shape) if size == 1]
        bias_gradient = scores_gradient.sum(broadcast, keepdims=True).astype(bias.dtype)
    scores_gradient = scores_gradient.astype(query.dtype)
    scale = jnp.sqrt(query.shape[-1]).astype(query.dtype)
    gradients = _Inputs(
        rounded_einsum("BNTS,BNHS->BNTH", scores_gradient, key) / scale,
        rounded_einsum("BNTH,BNTS->BNHS", query / scale, scores_gradient),
        rounded_einsum("BNTH,BNTS->BNHS", z_gradient, weights.astype(value.dtype)),
        mask=None,
        bias=bias_gradient,
        positions=None,
    )
    return (gradients,)


_attend.defvjp(_forward, _backward)


def _masked_scores(inputs: _Inputs) -> Float[Array, "B N T S"]:
    """Q K^T / sqrt(d_k) + bias, the least number where masked."""
    query, key, _, mask, bias, positions = inputs
    scores = jnp.einsum("BNTH,BNHS->BNTS", query, key, preferred_element_type=wide(query.dtype))
    scores = scores / jnp.sqrt(query.shape[-1]).astype(scores.dtype)
    if bias is not None:
        scores = scores + bias
    if positions is not None:
        mask = both(mask, (jnp.arange(key.shape[-1]) <= positions[:, None])[None, None])
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return scores
