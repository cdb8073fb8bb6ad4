# SPDX-License-Identifier: Apache-2.0
"""Attention for a few queries at a time: the formula of paper 3.2.1 for long sentences.

Memory grows with T + S instead of T S, and what a causal mask hides is mostly not computed. The
backward pass is written by hand, as in FlashAttention (Dao et al. 2022).
"""

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, wide
from transformer.nn.attention import AttentionOutput
from transformer.nn.masks import both

CHUNK = 128
"""Queries per chunk of `chunked_attention`."""
CAUSAL_PARTS = 8
"""Parts of the queries of a causal `chunked_attention`: 16 take longer to compile."""


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
    cache. A mask or a bias that differs between queries still takes T S elements; a causal one is
    computed chunk by chunk.

    If it is causal, the queries are divided into parts, each of which reads the keys up to its last
    query: of P parts, (P + 1) / 2P of the work.
    """
    length = query.shape[1]
    parts = CAUSAL_PARTS if causal else 1
    part = -(-length // (CHUNK * parts)) * CHUNK  # queries
    queries = query.transpose(0, 2, 1, 3)  # [B, N, T, H]
    keys = key.transpose(0, 2, 3, 1)  # [B, N, H, S]
    values = value.transpose(0, 2, 3, 1)  # [B, N, Hv, S]
    z = []
    for start in range(0, length, part):
        end = start + part if causal else key.shape[1]

        def seen(x: Array | None, start: int = start, end: int = end) -> Array | None:
            """The part's rows and columns of a mask or a bias."""
            if x is None:
                return None
            return (x[:, :, start : start + part] if x.shape[2] > 1 else x)[..., :end]

        z.append(
            _in_chunks(
                queries[:, :, start : start + part],
                keys[..., :end],
                values[..., :end],
                seen(mask),
                seen(bias),
                first_position=start if causal else None,
            )
        )
    return AttentionOutput(jnp.concatenate(z, axis=2).swapaxes(1, 2))


def _in_chunks(
    query: Float[Array, "B N T H"],
    key: Float[Array, "B N H S"],
    value: Float[Array, "B N Hv S"],
    mask: Bool[Array, "#B #N #T S"] | None,
    bias: Float[Array, "#B N #T S"] | None,
    first_position: int | None,
) -> Float[Array, "B N T Hv"]:
    """Attention, chunk by chunk; causal if the position of the first query is given."""
    length = query.shape[2]
    size = min(CHUNK, length)
    count = -(-length // size)

    def chunked(x: Float[Array, "B N T _"] | Bool[Array, "B N T _"]) -> Array:
        """[B, N, T, _] to [count, B, N, size, _]; the padding is cut off below."""
        padded = jnp.pad(x, ((0, 0), (0, 0), (0, count * size - length), (0, 0)))
        return jnp.moveaxis(padded.reshape(*x.shape[:2], count, size, x.shape[3]), 2, 0)

    def chunked_if_by_query(x: Array | None) -> Array | None:
        return chunked(x) if x is not None and x.shape[2] > 1 else None

    def attend(chunk: tuple[Array, Array | None, Array | None, Array | None]) -> Array:
        queries, chunk_mask, chunk_bias, positions = chunk
        allowed = mask if chunk_mask is None else chunk_mask
        added = bias if chunk_bias is None else chunk_bias
        return _chunk_attention(queries, key, value, allowed, added, positions)

    positions = None
    if first_position is not None:
        positions = first_position + jnp.arange(count * size).reshape(count, size)
    chunks = (chunked(query), chunked_if_by_query(mask), chunked_if_by_query(bias), positions)
    z = jnp.moveaxis(jax.lax.map(attend, chunks), 0, 2)  # [B, N, count, size, Hv]
    return z.reshape(*z.shape[:2], -1, z.shape[-1])[:, :, :length]


@jax.custom_vjp
def _chunk_attention(
    query: Float[Array, "B N T H"],
    key: Float[Array, "B N H S"],
    value: Float[Array, "B N Hv S"],
    mask: Bool[Array, "#B #N #T S"] | None,
    bias: Float[Array, "#B N #T S"] | None,
    positions: Int[Array, " T"] | None,
) -> Float[Array, "B N T Hv"]:
    """The formula, causal if the positions of the queries are given.

    For the backward pass it keeps its result and, for each query, the maximum of the scores and the
    sum of their exponentials; with these, the weights are one exponential (Dao et al. 2022,
    FlashAttention, appendix B).
    """
    return _chunk_forward(query, key, value, mask, bias, positions)[0]


def _chunk_scores(
    query: Array, key: Array, mask: Array | None, bias: Array | None, positions: Array | None
) -> tuple[Float[Array, "B N T S"], Bool[Array, "#B #N #T S"] | None]:
    """The masked scores and the mask."""
    scores = jnp.einsum("BNTH,BNHS->BNTS", query, key, preferred_element_type=wide(query.dtype))
    scores = scores / jnp.sqrt(query.shape[-1]).astype(scores.dtype)
    if bias is not None:
        scores = scores + bias
    if positions is not None:
        mask = both(mask, (jnp.arange(key.shape[3]) <= positions[:, None])[None, None])
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return scores, mask


def _chunk_forward(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    bias: Array | None,
    positions: Array | None,
) -> tuple[Float[Array, "B N T Hv"], tuple[Array | None, ...]]:
    scores, _ = _chunk_scores(query, key, mask, bias, positions)
    largest = scores.max(-1, keepdims=True)  # [B, N, T, 1]
    exponentials = jnp.exp(scores - largest)
    total = exponentials.sum(-1, keepdims=True)  # [B, N, T, 1]
    z = jnp.einsum(
        "BNTS,BNHS->BNTH",
        exponentials.astype(value.dtype),
        value,
        preferred_element_type=scores.dtype,
    )
    z = (z / total).astype(query.dtype)
    return z, (query, key, value, mask, bias, positions, z, largest, total)


def _chunk_backward(
    kept: tuple[Array | None, ...], z_gradient: Float[Array, "B N T Hv"]
) -> tuple[Array | None, ...]:
    """The gradients of query, key, value and bias from that of z."""
    query, key, value, mask, bias, positions, z, largest, total = kept
    scores, mask = _chunk_scores(query, key, mask, bias, positions)
    weights = jnp.exp(scores - largest) / total  # [B, N, T, S]
    accumulator = scores.dtype
    # The gradient of softmax is w (g - sum(w g)), and sum(w g) over the keys is z . dz.
    mean = (z_gradient.astype(accumulator) * z).sum(-1, keepdims=True)  # [B, N, T, 1]
    weights_gradient = jnp.einsum(
        "BNTH,BNHS->BNTS", z_gradient, value, preferred_element_type=accumulator
    )
    scores_gradient = weights * (weights_gradient - mean)
    if mask is not None:
        scores_gradient = jnp.where(mask, scores_gradient, 0)
    bias_gradient = None
    if bias is not None:
        broadcast = [axis for axis, size in enumerate(bias.shape) if size == 1]
        bias_gradient = scores_gradient.sum(broadcast, keepdims=True).astype(bias.dtype)
    scaled = (scores_gradient / jnp.sqrt(query.shape[-1])).astype(query.dtype)
    return (
        jnp.einsum("BNTS,BNHS->BNTH", scaled, key),
        jnp.einsum("BNTH,BNTS->BNHS", query, scaled),
        jnp.einsum("BNTH,BNTS->BNHS", z_gradient, weights.astype(value.dtype)),
        None,
        bias_gradient,
        None,
    )


_chunk_attention.defvjp(_chunk_forward, _chunk_backward)
