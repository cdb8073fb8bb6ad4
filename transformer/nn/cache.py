# SPDX-License-Identifier: Apache-2.0
"""The keys and values that attention keeps from one target position of a search to the next."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int
from transformer.platforms import operation


@flax.struct.dataclass
class KeyValueCache:
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


@flax.struct.dataclass
class LayerCache:
    """The caches of one decoder layer."""

    self_attention: Any
    """A `KeyValueCache`, or what another class of attention has with these methods."""
    cross_attention: KeyValueCache | None = None

    def grow(self, slots: int) -> "LayerCache":
        """Extend the capacity to `slots`: target positions times the beams of a group."""
        return self.replace(self_attention=self.self_attention.grow(slots))

    def reorder(self, parents: Int[Array, "BG K"]) -> "LayerCache":
        """Let beam k of a group continue the hypothesis of its beam ``parents[g, k]``."""
        return self.replace(self_attention=self.self_attention.reorder(parents))
