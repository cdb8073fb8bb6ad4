# SPDX-License-Identifier: Apache-2.0
"""Attention for one target position of a search, over the keys and values of a cache."""

import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer.arrays import Array, Bool, Float, Int, wide
from transformer.decode_cache import KeyValueCache
from transformer.nn.attention import additive_scores, masked_softmax, repeat_heads
from transformer.nn.linear import project
from transformer.nn.multi_head_attention import MultiHeadAttention
from transformer.nn.positions import NO_POSITIONS, PositionTerm


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


class CachedAttention(MultiHeadAttention):
    """Multi-head attention that a search can also compute position by position."""

    def keys_values(
        self,
        keys_from: Float[Array, "B S D"],
        values_from: Float[Array, "B S D"],
        positions: PositionTerm = NO_POSITIONS,
    ) -> tuple[Float[Array, "B S _ H"], Float[Array, "B S _ Hv"]]:
        """K W^K, rotated if the position scheme rotates, and V W^V, for all their heads."""
        key = project("BSD,DNH->BSNH", keys_from, self.key_kernel, self.key_bias)
        value = project("BSD,DNH->BSNH", values_from, self.value_kernel, self.value_bias)
        return positions.rotate(self.adjust(key, "key")), value

    def init_cache(
        self, groups: int, num_beams: int, length: int, dtype: DTypeLike
    ) -> KeyValueCache:
        """An empty cache of self-attention for `length` positions of the beams of each group."""
        shape = (groups, length * num_beams, self.config.kv_heads(self.side))
        d_k, d_v = self.config.head_widths(self.side)
        return KeyValueCache.of(jnp.zeros((*shape, d_k), dtype), jnp.zeros((*shape, d_v), dtype))

    def step(
        self,
        x: Float[Array, "BG K D"],
        cache: KeyValueCache,
        index: Int[Array, ""],
        mask: Bool[Array, "BG 1 K C"],
        positions: PositionTerm = NO_POSITIONS,
    ) -> tuple[Float[Array, "BG K D"], KeyValueCache]:
        """Self-attention at target position `index` of every beam, whose keys join the cache."""
        cache = cache.write(*self.keys_values(x, x, positions), index)
        return self.attend_cached(x, cache, mask, positions), cache

    def attend_cached(
        self,
        x: Float[Array, "B K D"],
        cache: KeyValueCache,
        mask: Bool[Array, "#B 1 #K C"],
        positions: PositionTerm = NO_POSITIONS,
    ) -> Float[Array, "B K D"]:
        """Attention over cached keys and values; the beams of a sentence are query positions."""
        query = project("BTD,DNH->BTNH", x, self.query_kernel, self.query_bias)
        query = positions.rotate(self.adjust(query, "query")).swapaxes(1, 2)  # [B, N, K, H]
        z = cached_attention(query, cache.key, cache.value, mask, positions, self.score_vector)
        z = z.swapaxes(1, 2).reshape(*x.shape[:2], -1)  # [B, K, J]
        # Heads and head size are one axis J here: over two, XLA would copy both operands.
        kernel = self.output_kernel.reshape(-1, self.config.d_model)  # [J, D]
        return project("BKJ,JD->BKD", z, kernel, self.output_bias)
