# SPDX-License-Identifier: Apache-2.0
"""Top-k of the extensions of all beams, by maxima of chunks."""

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, gather

_CHUNK_SIZES = range(64, 257)
"""The time hardly depends on the chunk size in this range; one that divides V saves a copy."""


def two_level_top_k(
    values: Float[Array, "B K V"], k: int
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k largest of the K V values of each sentence: the top k of the k best chunks.

    On a CPU `jax.lax.top_k` scans all values one by one, while maxima of chunks use the vector
    instructions. The result is that of `beam_search.top_k`, except that 0 and -0 are equal and that
    NaNs are unsupported. The k largest values are in the k chunks with the largest maxima: if one
    were in another chunk, each of the k chunks would contain a value that precedes it.
    """
    batch, beams, length = values.shape
    size = chunk_size(length)
    if beams * length <= 2 * k * size:
        largest, indices = jax.lax.top_k(values.reshape(batch, -1), k)
        return largest, indices
    num_chunks = -(-length // size)
    padding = ((0, 0), (0, 0), (0, num_chunks * size - length))
    # A chunk lies in one beam: XLA vectorizes no loop over chunks that cross from one to the next.
    chunks = jnp.pad(values, padding, constant_values=-jnp.inf)
    chunks = chunks.reshape(batch, beams, num_chunks, size)
    _, chosen = jax.lax.top_k(chunks.max(-1).reshape(batch, -1), k)  # [B, k]
    chosen = jnp.sort(chosen, axis=-1)  # keeps equal values in the order of their indices
    chunks = chunks.reshape(batch, beams * num_chunks, size)
    candidates = gather(chunks, chosen[..., None])  # [B, k, size]
    largest, indices = jax.lax.top_k(candidates.reshape(batch, k * size), k)  # [B, k]
    which, offset = jax.lax.div(indices, size), jax.lax.rem(indices, size)
    chosen = gather(chosen, which)
    beam, chunk = jax.lax.div(chosen, num_chunks), jax.lax.rem(chosen, num_chunks)
    return largest, beam * length + chunk * size + offset


def chunk_size(length: int) -> int:
    """The largest size that divides the row into equal chunks, or 128 if none does."""
    return max((size for size in _CHUNK_SIZES if length % size == 0), default=128)
