# SPDX-License-Identifier: Apache-2.0
"""The keys and values that a decoder layer keeps from one target position to the next."""

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, wide
from transformer.nn.matmul import cpu_forms


@flax.struct.dataclass
class LayerCache:
    """The cache of one decoder layer.

    The leading axis BG counts sentences times beam groups: beams attend only within their group.
    The K beams of a group share one cache. Slot m K + k holds what beam k computed at position m;
    keys and values never move. `DecodeCache.ancestry` records which slots belong to a hypothesis.
    The cross-attention keys and values are computed once from the memory, one copy per sentence.
    N counts the heads of the keys and values, of which there may be fewer than of the queries.
    """

    self_key: Float[Array, "BG N H C"]
    self_value: Float[Array, "BG N C Hv"]
    cross_key: Float[Array, "B N H S"]
    cross_value: Float[Array, "B N S Hv"]

    @classmethod
    def create(
        cls,
        cross_key: Float[Array, "B S N H"],
        cross_value: Float[Array, "B S N Hv"],
        *,
        num_groups: int,
        cache_length: int,
    ) -> "LayerCache":
        """An empty cache over the memory's keys and values.

        Args:
          cross_key: of the memory; self-attention has as many heads of the same sizes.
          cross_value: of the memory.
          num_groups: beam groups of a sentence.
          cache_length: C, target positions times the beams of a group.
        """
        batch, _, heads, d_k = cross_key.shape
        d_v = cross_value.shape[-1]
        dtype = _cache_dtype(cross_key.dtype)
        return cls(
            self_key=jnp.zeros((batch * num_groups, heads, d_k, cache_length), dtype),
            self_value=jnp.zeros((batch * num_groups, heads, cache_length, d_v), dtype),
            cross_key=cross_key.transpose(0, 2, 3, 1).astype(dtype),  # [B, N, H, S]
            cross_value=cross_value.transpose(0, 2, 1, 3).astype(dtype),  # [B, N, S, Hv]
        )

    def write(
        self,
        key: Float[Array, "BG K N H"],
        value: Float[Array, "BG K N Hv"],
        slot: Int[Array, ""],
    ) -> "LayerCache":
        """Write the K beams' keys and values of one position, starting at `slot`."""
        key = key.transpose(0, 2, 3, 1).astype(self.self_key.dtype)  # [BG, N, H, K]
        value = value.transpose(0, 2, 1, 3).astype(self.self_value.dtype)  # [BG, N, K, Hv]
        update = jax.lax.dynamic_update_slice_in_dim
        return self.replace(
            self_key=update(self.self_key, key, slot, axis=3),
            self_value=update(self.self_value, value, slot, axis=2),
        )

    def grow(self, cache_length: int) -> "LayerCache":
        """Append empty slots up to a cache length of `cache_length`."""
        none, more = (0, 0), (0, cache_length - self.self_key.shape[3])
        return self.replace(
            self_key=jnp.pad(self.self_key, (none, none, none, more)),
            self_value=jnp.pad(self.self_value, (none, none, more, none)),
        )

    def take(self, sentences: Int[Array, "_"]) -> "LayerCache":
        """Select these sentences of the batch."""
        batch = self.cross_key.shape[0]
        return jax.tree.map(lambda leaf: take_sentences(leaf, sentences, batch), self)


def take_sentences(leaf: Array, sentences: Int[Array, "_"], batch: int) -> Array:
    """Select the rows of these of `batch` sentences; the rows of a sentence are adjacent."""
    rows = len(leaf) // batch  # Not -1: the memory of a decoder-only model has no elements.
    per_sentence = leaf.reshape(batch, rows, *leaf.shape[1:])  # [B, G, ...]
    return per_sentence[sentences].reshape(len(sentences) * rows, *leaf.shape[1:])


def _cache_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """float32 for bfloat16 on the CPU (CPU form).

    There XLA computes attention over few queries in float32 and would convert the complete cache at
    each step. The values are unchanged.
    """
    return wide(dtype) if cpu_forms() else dtype
