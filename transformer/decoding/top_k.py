# SPDX-License-Identifier: Apache-2.0
"""The k largest of many values, in two levels: what `jax.lax.top_k` finds, sooner."""

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int

_CHUNK_SIZES = range(64, 257)
"""Of these, the time hardly depends on the size of a chunk; one that divides V saves a copy."""


def top_k(values: Float[Array, "B V"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k largest values of each row, largest first, and their places.

    Equal values come in the order of their places. All is as in `jax.lax.top_k`, except that 0 and
    -0 count as equal and that nothing is promised of rows in which something is not a number.

    `jax.lax.top_k` keeps its k best while it walks through all values one by one. Here the row is
    first divided into chunks, of which only the maxima are compared: the k largest values lie in
    the k chunks with the largest maxima. (Were one of them in another chunk, then each of these k
    would hold a value that is before it.) Maxima of chunks are found many at a time, by the vector
    instructions of a processor.

    Args:
      k: static; at most V.
    """
    rows, length = values.shape
    size = chunk_size(length)
    if length <= 2 * k * size:
        largest, places = jax.lax.top_k(values, k)
        return largest, places
    count = -(-length // size)
    values = jnp.pad(values, ((0, 0), (0, count * size - length)), constant_values=-jnp.inf)
    chunks = values.reshape(rows, count, size)
    _, chosen = jax.lax.top_k(chunks.max(-1), k)
    chosen = jnp.sort(chosen, axis=-1)  # so that places among the candidates are in order
    candidates = jnp.take_along_axis(chunks, chosen[..., None], axis=1).reshape(rows, k * size)
    largest, places = jax.lax.top_k(candidates, k)
    return largest, jnp.take_along_axis(chosen, places // size, axis=1) * size + places % size


def chunk_size(length: int) -> int:
    """The largest size that divides the row into equal chunks, or 128 if none does."""
    return max((size for size in _CHUNK_SIZES if length % size == 0), default=128)
