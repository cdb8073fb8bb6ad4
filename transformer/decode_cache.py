# SPDX-License-Identifier: Apache-2.0
"""What a decoder keeps from one target position of a search to the next: keys, values, ancestry."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Shown, gather
from transformer.platforms import operation


@flax.struct.dataclass(repr=False)
class KeyValueCache(Shown):
    """Keys and values of one attention; N counts their heads.

    Self-attention: the leading axis BG counts sentences times beam groups. The K beams of a group
    share the slots; slot m K + k holds what beam k computed at position m, and never moves. The
    ancestry of the search (`DecodeCache`) records which slots belong to a hypothesis.
    Cross-attention: one copy for each sentence, computed once from the memory.
    """

    key: Float[Array, "BG N H C"]
    value: Float[Array, "BG N C Hv"]

    @classmethod
    def of(cls, key: Float[Array, "B C N H"], value: Float[Array, "B C N Hv"]) -> "KeyValueCache":
        """The cache of these keys and values."""
        dtype = operation("cache_dtype", jnp.dtype)(key.dtype)
        key, value = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
        return cls(key.astype(dtype), value.astype(dtype))

    def write(
        self, key: Float[Array, "BG K N H"], value: Float[Array, "BG K N Hv"], index: Int[Array, ""]
    ) -> "KeyValueCache":
        """Write the keys and values of the K beams at target position `index`."""
        new, slot = KeyValueCache.of(key, value), index * key.shape[1]
        update = jax.lax.dynamic_update_slice_in_dim
        return KeyValueCache(
            update(self.key, new.key, slot, axis=3), update(self.value, new.value, slot, axis=2)
        )

    def grow(self, slots: int) -> "KeyValueCache":
        """Append empty slots up to this number."""
        more = [(0, slots - self.key.shape[3])]
        none = [(0, 0)]
        return KeyValueCache(
            jnp.pad(self.key, none * 3 + more), jnp.pad(self.value, none * 2 + more + none)
        )

    def reorder(self, parents: Int[Array, "BG K"]) -> "KeyValueCache":
        """Nothing moves when beams continue others' hypotheses: the ancestry tells them apart."""
        return self


@flax.struct.dataclass(repr=False)
class LayerCache(Shown):
    """The caches of one decoder layer."""

    self_attention: Any
    """A `KeyValueCache`, or what another class of attention has with these methods."""
    cross_attention: KeyValueCache | None = None
    cross_mask: Bool[Array, "B 1 1 S"] | None = None

    def grow(self, slots: int) -> "LayerCache":
        """Extend the capacity to `slots`: target positions times the beams of a group."""
        return self.replace(self_attention=self.self_attention.grow(slots))

    def reorder(self, parents: Int[Array, "BG K"]) -> "LayerCache":
        """Let beam k of a group continue the hypothesis of its beam ``parents[g, k]``."""
        return self.replace(self_attention=self.self_attention.reorder(parents))


@flax.struct.dataclass(repr=False)
class DecodeCache(Shown):
    """The state of cached decoding, and what a search does to it."""

    layers: tuple[LayerCache, ...]
    ancestry: Int[Array, "BG K M"]
    """`ancestry[g, k, m]`: the beam of group g that computed the keys and values of hypothesis k at
    position m.
    """
    index: Int[Array, ""]
    """The target position that the next step computes."""
    num_groups: int = flax.struct.field(pytree_node=False)

    @classmethod
    def of(
        cls, layers: tuple[LayerCache, ...], sizes: tuple[int, int, int], num_groups: int
    ) -> "DecodeCache":
        """The state before the first step; the sizes are those of the ancestry, (BG, K, M)."""
        return cls(layers, jnp.zeros(sizes, jnp.int32), jnp.zeros((), jnp.int32), num_groups)

    @property
    def length(self) -> int:
        """Capacity in target positions."""
        return self.ancestry.shape[2]

    def row(self, table: Float[Array, "M D"]) -> Float[Array, "1 D"]:
        """The row of the next target position."""
        return jax.lax.dynamic_slice_in_dim(table, self.index, 1)

    def self_mask(self) -> Bool[Array, "BG 1 K C"]:
        """Select the slots of each hypothesis, up to the position that is computed."""
        groups, num_beams, length = self.ancestry.shape
        written = jnp.arange(length) <= self.index  # [M]
        is_ancestor = self.ancestry[..., None] == jnp.arange(num_beams)  # [BG, K, M, K]
        mask = is_ancestor & written[:, None]
        return mask.reshape(groups, 1, num_beams, length * num_beams)

    def key_positions(self) -> Int[Array, " C"]:
        """The target position of the key in each slot: slot m K + k has one of position m."""
        _, num_beams, length = self.ancestry.shape
        return jnp.arange(length * num_beams) // num_beams

    def begin_step(self) -> "DecodeCache":
        """Every hypothesis has the keys and values that its beam computes at the next position."""
        beam = jnp.arange(self.ancestry.shape[1], dtype=jnp.int32)[:, None]  # [K, 1]
        is_current = jnp.arange(self.length) == self.index  # [M]
        return self.replace(ancestry=jnp.where(is_current, beam, self.ancestry))

    def reorder(self, parents: Int[Array, "B K"]) -> "DecodeCache":
        """Let beam k continue the hypothesis of beam ``parents[b, k]``, which is in its group.

        Keys and values stay where they are: only the ancestry is copied.
        """
        num_beams = self.ancestry.shape[1]
        parents = parents.reshape(-1, num_beams) % num_beams  # [BG, K]
        return self.replace(
            layers=tuple(layer.reorder(parents) for layer in self.layers),
            ancestry=gather(self.ancestry, parents[..., None]),
        )

    def grow(self, length: int) -> "DecodeCache":
        """Extend the capacity to `length` target positions."""
        _, num_beams, before = self.ancestry.shape
        return self.replace(
            layers=tuple(layer.grow(length * num_beams) for layer in self.layers),
            ancestry=jnp.pad(self.ancestry, ((0, 0), (0, 0), (0, length - before))),
        )

    def take(self, sentences: Int[Array, "_"]) -> "DecodeCache":
        """Select these sentences of the batch."""
        batch = len(self.ancestry) // self.num_groups

        def take(leaf: Array) -> Array:
            rows = len(leaf) // batch  # The groups of a sentence are adjacent.
            per_sentence = leaf.reshape(batch, rows, *leaf.shape[1:])  # [B, G, ...]
            return per_sentence[sentences].reshape(len(sentences) * rows, *leaf.shape[1:])

        return jax.tree.map(take, self.replace(index=None)).replace(index=self.index)
