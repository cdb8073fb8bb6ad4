# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention (paper 3.2.1): Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.

`transformer.kernels` computes the same without keeping the weights, and
`transformer.models.cached_attention` for one target position of a search.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, wide
from transformer.nn.linear import einsum, wide_einsum
from transformer.nn.masks import both, causal_mask
from transformer.nn.positions import NO_POSITIONS, PositionTerm


def scaled_scores(
    query: Float[Array, "B T N H"], key: Float[Array, "..."], spec: str = "BTNH,BSNH->BNTS"
) -> Float[Array, "B N T S"]:
    """Q K^T / sqrt(d_k), in float32 or wider whatever the dtype of the inputs."""
    scores = wide_einsum(spec, query, key)
    return scores / jnp.sqrt(query.shape[-1]).astype(scores.dtype)


def additive_scores(
    query: Float[Array, "B T N H"], key: Float[Array, "B S N H"], vector: Float[Array, "H N"]
) -> Float[Array, "B N T S"]:
    """v . tanh(query + key) (Bahdanau et al. 2015, appendix A.1.2), in float32 or wider.

    The projections of query and key are the W and U of that formula. Needs memory for B N T S H
    numbers.
    """
    dtype, vector = wide(query.dtype), vector.astype(query.dtype)
    query, key = query.swapaxes(1, 2).astype(dtype), key.swapaxes(1, 2).astype(dtype)
    sums = query[..., :, None, :] + key[..., None, :, :]  # [B, N, T, S, H]
    return jnp.einsum("BNTSH,HN->BNTS", jnp.tanh(sums), vector.astype(dtype))


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


def attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N Hv"],
    mask: Bool[Array, "#B #N #T S"] | None = None,
    *,
    causal: bool = False,
    positions: PositionTerm = NO_POSITIONS,
    score: Callable[[Array, Array], Array] = scaled_scores,
    tap: Callable[[str, Array], Array] = lambda name, x: x,
    dropout: Callable[[Array], Array] = lambda weights: weights,
) -> Float[Array, "B T N Hv"]:
    """For each query and head, the sum of the values weighted by the softmax of the scores.

    Args:
      query: queries of T target positions.
      key: keys of S source positions.
      value: values of S source positions.
      mask: true where a query may attend to a key; None: everywhere.
      causal: a query may attend only to keys up to its own position, besides what `mask` forbids.
      positions: what relative positions add to scores, keys and values.
      score: from query and key to the scores.
      tap: called with ``scores`` and ``weights`` and their values, which it may replace.
      dropout: applied to the weights.
    """
    scores = score(query, key)  # [B, N, T, S]
    if positions.keys is not None:
        # The scores' part by relative position (Shaw et al. 2018).
        spec = "BTNH,BTSH->BNTS" if positions.keys.ndim == 4 else "BTNH,TSH->BNTS"
        scores = scores + scaled_scores(query, positions.keys.astype(query.dtype), spec)
    if positions.bias is not None:
        scores = scores + positions.bias
    scores = tap("scores", scores)
    if causal:
        mask = both(mask, causal_mask(query.shape[1]))
    weights = tap("weights", masked_softmax(scores, mask))  # [B, N, T, S], rows sum to 1
    weights = dropout(weights).astype(value.dtype)
    z = einsum("BNTS,BSNH->BTNH", weights, value)
    if positions.values is not None:
        spec = "BNTS,BTSH->BTNH" if positions.values.ndim == 4 else "BNTS,TSH->BTNH"
        z = z + jnp.einsum(spec, weights, positions.values.astype(weights.dtype))
    return z


def repeat_heads(x: Float[Array, "B S _ H"], num_heads: int) -> Float[Array, "B S N H"]:
    """Repeat each head of keys or values for the adjacent query heads that share it."""
    heads = x.shape[2]
    return x if heads == num_heads else jnp.repeat(x, num_heads // heads, axis=2)
