# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention (paper 3.2.1): Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.

`einsum_attention` is the formula and the tested reference of the other kernels
(`attention_kernels.py`). `cached_attention` is the same for one target position of a search.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, wide
from transformer.nn.masks import both, causal_mask
from transformer.nn.matmul import batched_einsum


class AttentionOutput(NamedTuple):
    """The result of attention, with its weights and scores if they were requested."""

    z: Float[Array, "B T N Hv"]
    """For each query and head, the weighted sum of the values."""
    weights: Float[Array, "B N T S"] | None = None
    """After the softmax and before dropout; every row sums to 1."""
    scores: Float[Array, "B N T S"] | None = None
    """query . key / sqrt(d_k), or the additive score, plus the position bias, before the mask."""


def scaled_scores(
    query: Float[Array, "B T N H"], key: Float[Array, "B S N H"]
) -> Float[Array, "B N T S"]:
    """Q K^T / sqrt(d_k), in float32 or wider whatever the dtype of the inputs."""
    scores = batched_einsum("BTNH,BSNH->BNTS", query, key, wide(query.dtype))
    return scores / jnp.sqrt(query.shape[-1]).astype(scores.dtype)


def additive_scores(
    query: Float[Array, "B N T H"], key: Float[Array, "B N S H"], vector: Float[Array, "H N"]
) -> Float[Array, "B N T S"]:
    """v . tanh(query + key) (Bahdanau et al. 2015, appendix A.1.2), in float32 or wider.

    The projections of query and key are the W and U of that formula. Needs memory for B N T S H
    numbers.
    """
    dtype = wide(query.dtype)
    vector = vector.astype(query.dtype)
    sums = query.astype(dtype)[..., :, None, :] + key.astype(dtype)[..., None, :, :]
    return jnp.einsum("BNTSH,HN->BNTS", jnp.tanh(sums), vector.astype(dtype))


def key_term_scores(
    query: Float[Array, "B T N H"], key_term: Float[Array, "*#B T S H"]
) -> Float[Array, "B N T S"]:
    """query . key_term / sqrt(d_k): the scores' part by relative position (Shaw et al. 2018)."""
    spec = "BTNH,BTSH->BNTS" if key_term.ndim == 4 else "BTNH,TSH->BNTS"
    term = key_term.astype(query.dtype)
    scores = jnp.einsum(spec, query, term, preferred_element_type=wide(query.dtype))
    return scores / jnp.sqrt(query.shape[-1]).astype(scores.dtype)


def value_term_sum(
    weights: Float[Array, "B N T S"], value_term: Float[Array, "*#B T S Hv"]
) -> Float[Array, "B T N Hv"]:
    """The weighted sum of the terms that relative positions add to the values."""
    spec = "BNTS,BTSH->BTNH" if value_term.ndim == 4 else "BNTS,TSH->BTNH"
    return jnp.einsum(spec, weights, value_term.astype(weights.dtype))


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
    causal: bool = False,
    key_term: Float[Array, "*#B T S H"] | None = None,
    value_term: Float[Array, "*#B T S Hv"] | None = None,
    score_vector: Float[Array, "H N"] | None = None,
    edit: Callable[[Array], Array] = lambda weights: weights,
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
      causal: a query may attend only to keys up to its own position, besides what `mask` forbids.
      key_term: added to each key as each query sees it.
      value_term: added to each value as each query sees it.
      score_vector: of the additive score, which replaces the scaled dot product.
      edit: applied to the weights before they are returned and used, for interventions.
      dropout: applied to the weights; the paper has none there.
      with_weights: also return the weights (before dropout) and the unmasked scores.
    """
    if score_vector is None:
        scores = scaled_scores(query, key)  # [B, N, T, S]
    else:
        scores = additive_scores(query.swapaxes(1, 2), key.swapaxes(1, 2), score_vector)
    if key_term is not None:
        scores = scores + key_term_scores(query, key_term)
    if bias is not None:
        scores = scores + bias
    if causal:
        mask = both(mask, causal_mask(query.shape[1]))
    weights = edit(masked_softmax(scores, mask))
    dropped = dropout(weights).astype(value.dtype)
    z = batched_einsum("BNTS,BSNH->BTNH", dropped, value, value.dtype)
    if value_term is not None:
        z = z + value_term_sum(dropped, value_term)
    return AttentionOutput(z, weights, scores) if with_weights else AttentionOutput(z)


def cached_attention(
    query: Float[Array, "B N K H"],
    key: Float[Array, "B _ H C"],
    value: Float[Array, "B _ C Hv"],
    mask: Bool[Array, "#B #N #K C"] | None,
    bias: Float[Array, "#B #N #K C"] | None = None,
    *,
    key_term: Float[Array, "1 C H"] | None = None,
    value_term: Float[Array, "1 C Hv"] | None = None,
    score_vector: Float[Array, "H N"] | None = None,
) -> Float[Array, "B N K Hv"]:
    """The formula in the layout of `cache.LayerCache`, for one query of each beam.

    A matmul reads this layout as it is: heads outside, and H before C for the keys. Any other would
    be copied into it at each step, which takes several times as long as the matmuls. Keys and
    values may have a wider dtype than the queries; the result has that of the queries.

    Keys and values may have fewer heads, of which each serves equally many adjacent query heads.
    The queries of those heads are further rows of the same matmuls, so the cache is not copied.
    """
    dtype, accumulator = query.dtype, wide(query.dtype)
    batch, heads, beams, d_k = query.shape
    rows = (batch, key.shape[1], heads * beams // key.shape[1])  # By head of the keys.
    if score_vector is None:
        scores = jnp.einsum(
            "BNKH,BNHC->BNKC",
            query.reshape(*rows, d_k).astype(key.dtype),
            key,
            preferred_element_type=accumulator,
        ).reshape(batch, heads, beams, key.shape[3])
        scores = scores / jnp.sqrt(query.shape[-1]).astype(accumulator)
    else:
        keys = repeat_heads(key.swapaxes(2, 3), heads, axis=1)  # [B, N, C, H]
        scores = additive_scores(query.astype(key.dtype), keys, score_vector.astype(dtype))
    if key_term is not None:  # Of one query position, that of every beam.
        of_term = jnp.einsum(
            "BNKH,CH->BNKC", query, key_term[0].astype(dtype), preferred_element_type=accumulator
        )
        scores = scores + of_term / jnp.sqrt(query.shape[-1]).astype(accumulator)
    if bias is not None:
        scores = scores + bias
    weights = masked_softmax(scores, mask).astype(dtype).astype(value.dtype)
    z = jnp.einsum(
        "BNKC,BNCH->BNKH",
        weights.reshape(*rows, value.shape[2]),
        value,
        preferred_element_type=accumulator,
    ).reshape(batch, heads, beams, value.shape[3])
    if value_term is not None:
        z = z + jnp.einsum("BNKC,CH->BNKH", weights, value_term[0].astype(value.dtype))
    return z.astype(dtype)


def repeat_heads(x: Array, num_heads: int, axis: int) -> Array:
    """Repeat each head of keys or values for the adjacent query heads that share it."""
    heads = x.shape[axis]
    return x if heads == num_heads else jnp.repeat(x, num_heads // heads, axis)
