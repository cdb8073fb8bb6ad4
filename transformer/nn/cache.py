# SPDX-License-Identifier: Apache-2.0
"""What a decoder layer keeps from one target position to the next."""

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, wide


@flax.struct.dataclass
class LayerCache:
    """What one decoder layer keeps between steps.

    Row by row: a row is a sentence, or one group of its beams where they are divided into groups
    that never go on from each other's. The K beams of a row have one cache, in which a beam's key
    and value stay where it wrote them: place m K + k is what beam k computed at position m. Which
    of them belong to a hypothesis is said by the ancestry in `model.DecodeCache`. The
    cross-attention keys and values are computed once from the memory and exist once a sentence,
    however many beams it has.
    """

    self_key: Float[Array, "R N H C"]
    self_value: Float[Array, "R N C Hv"]
    cross_key: Float[Array, "B N H S"]
    cross_value: Float[Array, "B N S Hv"]

    @classmethod
    def of_memory(
        cls,
        cross_key: Float[Array, "B S N H"],
        cross_value: Float[Array, "B S N Hv"],
        *,
        rows: int,
        places: int,
        widths: tuple[int, int],
    ) -> "LayerCache":
        """Room for so many places a row, of keys and values of these widths, and the memory's."""
        dtype, heads = _dtype_of_caches(cross_key.dtype), cross_key.shape[2]
        d_k, d_v = widths
        return cls(
            self_key=jnp.zeros((rows, heads, d_k, places), dtype),
            self_value=jnp.zeros((rows, heads, places, d_v), dtype),
            cross_key=cross_key.transpose(0, 2, 3, 1).astype(dtype),
            cross_value=cross_value.transpose(0, 2, 1, 3).astype(dtype),
        )

    def write(
        self,
        key: Float[Array, "R K N H"],
        value: Float[Array, "R K N Hv"],
        here: Int[Array, ""],
    ) -> "LayerCache":
        """The same with the K beams' key and value from place `here` on."""
        key, value = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
        update = jax.lax.dynamic_update_slice_in_dim
        return self.replace(
            self_key=update(self.self_key, key.astype(self.self_key.dtype), here, axis=3),
            self_value=update(self.self_value, value.astype(self.self_value.dtype), here, axis=2),
        )

    def grow(self, places: int) -> "LayerCache":
        """The same with so many places in a row; nothing is in those that are added."""
        none, more = (0, 0), (0, places - self.self_key.shape[3])
        return self.replace(
            self_key=jnp.pad(self.self_key, (none, none, none, more)),
            self_value=jnp.pad(self.self_value, (none, none, more, none)),
        )

    def take(self, sentences: Int[Array, " B"]) -> "LayerCache":
        """That of these sentences alone."""
        batch = self.cross_key.shape[0]
        return jax.tree.map(lambda leaf: rows_of(leaf, sentences, batch), self)


def rows_of(leaf: Array, sentences: Int[Array, " B"], batch: int) -> Array:
    """The rows of these of `batch` sentences; those of one sentence lie side by side."""
    per_sentence = leaf.reshape(batch, -1, *leaf.shape[1:])
    return per_sentence[sentences].reshape(-1, *leaf.shape[1:])


def _dtype_of_caches(dtype: jnp.dtype) -> jnp.dtype:
    """float32 for bfloat16 on the CPU, where XLA computes attention over few queries in float32 and
    would convert all of a cache at each step; what is in it is not changed.
    """
    return wide(dtype) if jax.default_backend() == "cpu" else dtype
