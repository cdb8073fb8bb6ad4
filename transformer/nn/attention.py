# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention (paper 3.2.1): Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.

`attention` is the formula. `cached_attention` is the same for one target position of a search.
`transformer.kernels` computes it without keeping the weights.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, wide
from transformer.nn.linear import einsum, wide_einsum
from transformer.nn.masks import both, causal_mask
from transformer.nn.positions import NO_POSITIONS, PositionTerm


def scaled_scores(
    query: Float[Array, "B T N H"], key: Float[Array, "B S N H"]
) -> Float[Array, "B N T S"]:
    """Q K^T / sqrt(d_k), in float32 or wider whatever the dtype of the inputs."""
    scores = wide_einsum("BTNH,BSNH->BNTS", query, key)
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
      query: of T target positions.
      key: of S source positions.
      value: of S source positions.
      mask: true where a query may attend to a key; None: everywhere.
      causal: a query may attend only to keys up to its own position, besides what `mask` forbids.
      positions: what relative positions add to scores, keys and values.
      score: from query and key to the scores.
      tap: called with ``scores`` and ``weights`` and their values, which it may replace.
      dropout: applied to the weights.
    """
    scores = score(query, key)  # [B, N, T, S]
    if positions.keys is not None:
        scores = scores + _key_term_scores(query, positions.keys)
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


def _key_term_scores(
    query: Float[Array, "B T N H"], term: Float[Array, "*#B T S H"]
) -> Float[Array, "B N T S"]:
    """query . term / sqrt(d_k): the scores' part by relative position (Shaw et al. 2018)."""
    spec = "BTNH,BTSH->BNTS" if term.ndim == 4 else "BTNH,TSH->BNTS"
    scores = wide_einsum(spec, query, term.astype(query.dtype))
    return scores / jnp.sqrt(query.shape[-1]).astype(scores.dtype)


def cached_attention(
    query: Float[Array, "B N K H"],
    key: Float[Array, "B _ H C"],
    value: Float[Array, "B _ C Hv"],
    mask: Bool[Array, "#B #N #K C"],
    positions: PositionTerm = NO_POSITIONS,
    score_vector: Float[Array, "H N"] | None = None,
) -> Float[Array, "B N K Hv"]:
    """The formula in the layout of `cache.KeyValueCache`, for one query of each beam.

    A matmul reads this layout as it is: heads outside, and H before C for the keys. Any other would
    be copied into it at each step. Keys and values may be wider than the queries, and may have
    fewer heads, of which each serves equally many adjacent query heads: their queries are further
    rows of the same matmuls.
    """
    dtype, accumulator = query.dtype, wide(query.dtype)
    batch, heads, beams, d_k = query.shape
    rows = (batch, key.shape[1], heads * beams // key.shape[1])  # By head of the keys.
    scale = jnp.sqrt(d_k).astype(accumulator)
    if score_vector is None:
        queries = query.reshape(*rows, d_k).astype(key.dtype)
        scores = jnp.einsum("BNKH,BNHC->BNKC", queries, key, preferred_element_type=accumulator)
        scores = scores.reshape(batch, heads, beams, -1) / scale
    else:
        keys = repeat_heads(key.transpose(0, 3, 1, 2), heads)  # [B, C, N, H]
        queries = query.swapaxes(1, 2).astype(key.dtype)
        scores = additive_scores(queries, keys, score_vector.astype(dtype))
    if positions.keys is not None:  # Of one query position, that of every beam.
        term = positions.keys[0].astype(dtype)
        term = jnp.einsum("BNKH,CH->BNKC", query, term, preferred_element_type=accumulator)
        scores = scores + term / scale
    if positions.bias is not None:
        scores = scores + positions.bias
    weights = masked_softmax(scores, mask).astype(dtype).astype(value.dtype)  # [B, N, K, C]
    z = jnp.einsum(
        "BNKC,BNCH->BNKH",
        weights.reshape(*rows, -1),
        value,
        preferred_element_type=accumulator,
    ).reshape(batch, heads, beams, -1)
    if positions.values is not None:
        z = z + jnp.einsum("BNKC,CH->BNKH", weights, positions.values[0].astype(value.dtype))
    return z.astype(dtype)


def repeat_heads(x: Float[Array, "B S _ H"], num_heads: int) -> Float[Array, "B S N H"]:
    """Repeat each head of keys or values for the adjacent query heads that share it."""
    heads = x.shape[2]
    return x if heads == num_heads else jnp.repeat(x, num_heads // heads, axis=2)
