# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention (paper 3.2.1): Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.

A config selects a kernel by name. ``einsum`` is the formula itself and the tested reference.
``chunked`` computes it for a few queries at a time, for long sentences. ``fused`` calls
`jax.nn.dot_product_attention`. Only ``einsum`` returns attention weights and applies dropout to
them.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, wide


class AttentionOutput(NamedTuple):
    """The result of attention, with its weights and scores if they were requested."""

    z: Float[Array, "B T N Hv"]
    """For each query and head, the weighted sum of the values."""
    weights: Float[Array, "B N T S"] | None = None
    """After the softmax and before dropout; every row sums to 1."""
    scores: Float[Array, "B N T S"] | None = None
    """query . key / sqrt(d_k), plus the position bias if any, before the mask."""


def scaled_scores(
    query: Float[Array, "B T N H"], key: Float[Array, "B S N H"]
) -> Float[Array, "B N T S"]:
    """Q K^T / sqrt(d_k), in float32 or wider whatever the dtype of the inputs."""
    scores = jnp.einsum("BTNH,BSNH->BNTS", query, key, preferred_element_type=wide(query.dtype))
    return scores / jnp.sqrt(query.shape[-1]).astype(scores.dtype)


def masked_softmax(
    scores: Float[Array, "B N T S"], mask: Bool[Array, "#B #N #T S"] | None
) -> Float[Array, "B N T S"]:
    """Softmax over the keys that a query may attend to; every other weight is exactly 0.

    A query that may attend to no key (a row of padding) gets equal weights, so that no NaN arises;
    the model never reads such rows.
    """
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jax.nn.softmax(scores, axis=-1)


def einsum_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N Hv"],
    mask: Bool[Array, "#B #N #T S"] | None,
    bias: Float[Array, "#B N #T S"] | None = None,
    *,
    dropout: Callable[[Array], Array] = lambda weights: weights,
    with_weights: bool = False,
) -> AttentionOutput:
    """The formula of paper 3.2.1, step by step; the other kernels take the same arrays.

    Args:
      query: of T target positions.
      key: of S source positions.
      value: of S source positions.
      mask: true where a query may attend to a key.
      bias: added to the scores; see `positions.PositionTerm`.
      dropout: applied to the weights; the paper has none there.
      with_weights: also return the weights (before dropout) and the unmasked scores.
    """
    scores = scaled_scores(query, key)  # [B, N, T, S]
    if bias is not None:
        scores = scores + bias
    weights = masked_softmax(scores, mask)
    z = jnp.einsum("BNTS,BSNH->BTNH", dropout(weights).astype(value.dtype), value)
    return AttentionOutput(z, weights, scores) if with_weights else AttentionOutput(z)


CHUNK = 128
"""Queries per chunk of `chunked_attention`."""


def chunked_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N Hv"],
    mask: Bool[Array, "#B #N #T S"] | None,
    bias: Float[Array, "#B N #T S"] | None = None,
) -> AttentionOutput:
    """The formula for `CHUNK` queries at a time, in memory that grows with T + S.

    Queries are independent, so the result is unchanged. The backward pass recomputes a chunk's
    weights: seven matmuls instead of six, less memory, not less time. A mask or a bias that differs
    between queries still takes T S elements.
    """
    length = query.shape[1]
    size = min(CHUNK, length)
    count = -(-length // size)

    def chunked(x: Float[Array, "B N T _"] | Bool[Array, "B N T _"]) -> Array:
        """[B, N, T, _] to [count, B, N, size, _]; the padding is cut off below."""
        padded = jnp.pad(x, ((0, 0), (0, 0), (0, count * size - length), (0, 0)))
        return jnp.moveaxis(padded.reshape(*x.shape[:2], count, size, x.shape[3]), 2, 0)

    def chunked_if_by_query(x: Array | None) -> Array | None:
        return chunked(x) if x is not None and x.shape[2] > 1 else None

    keys = key.transpose(0, 2, 3, 1)  # [B, N, H, S]
    values = value.transpose(0, 2, 1, 3)  # [B, N, S, Hv]

    @jax.checkpoint
    def attend(chunk: tuple[Array, Array | None, Array | None]) -> Float[Array, "B N _ Hv"]:
        queries, chunk_mask, chunk_bias = chunk
        return cached_attention(
            queries,
            keys,
            values,
            mask if chunk_mask is None else chunk_mask,
            bias if chunk_bias is None else chunk_bias,
        )

    queries = chunked(query.transpose(0, 2, 1, 3))
    chunks = (queries, chunked_if_by_query(mask), chunked_if_by_query(bias))
    z = jnp.moveaxis(jax.lax.map(attend, chunks), 0, 2)  # [B, N, count, size, Hv]
    z = z.reshape(*z.shape[:2], -1, z.shape[-1])  # [B, N, count * size, Hv]
    return AttentionOutput(z[:, :, :length].swapaxes(1, 2))


def fused_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N H"],
    mask: Bool[Array, "#B #N #T S"] | None,
    bias: Float[Array, "#B N #T S"] | None = None,
) -> AttentionOutput:
    """`jax.nn.dot_product_attention`, which needs d_k == d_v."""
    return AttentionOutput(jax.nn.dot_product_attention(query, key, value, bias, mask=mask))


def cached_attention(
    query: Float[Array, "B N K H"],
    key: Float[Array, "B N H C"],
    value: Float[Array, "B N C Hv"],
    mask: Bool[Array, "#B #N #K C"] | None,
    bias: Float[Array, "#B #N #K C"] | None = None,
) -> Float[Array, "B N K Hv"]:
    """The formula in the layout of `cache.LayerCache`, for one query of each beam.

    A matmul reads this layout as it is: heads outside, and H before C for the keys. Any other would
    be copied into it at each step, which takes several times as long as the matmuls. Keys and
    values may have a wider dtype than the queries; the result has that of the queries.
    """
    dtype, accumulator = query.dtype, wide(query.dtype)
    scores = jnp.einsum(
        "BNKH,BNHC->BNKC", query.astype(key.dtype), key, preferred_element_type=accumulator
    )
    scores = scores / jnp.sqrt(query.shape[-1]).astype(accumulator)
    if bias is not None:
        scores = scores + bias
    weights = masked_softmax(scores, mask).astype(dtype).astype(value.dtype)
    z = jnp.einsum("BNKC,BNCH->BNKH", weights, value, preferred_element_type=accumulator)
    return z.astype(dtype)


KERNELS: dict[str, Callable[..., AttentionOutput]] = {
    "einsum": einsum_attention,
    "chunked": chunked_attention,
    "fused": fused_attention,
}
