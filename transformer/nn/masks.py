# SPDX-License-Identifier: Apache-2.0
"""Which positions may attend to which: padding, causal and packed masks (paper 3.2.3).

A mask is ``Bool[B|1, 1, T|1, S]``; true means "may attend". Masks combine with ``&``.
"""

import jax.numpy as jnp

from transformer.arrays import PAD_ID, Array, Bool, Int


def padding_mask(tokens: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Every query may attend to every key that is not padding."""
    return (tokens != PAD_ID)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Position t may attend to positions up to and including t (paper 3.2.3, third item)."""
    position = jnp.arange(length)
    return (position[None, :] <= position[:, None])[None, None]


def packed_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """Where several sentences share a row, a query may attend only within its own sentence.

    Segment 0 is padding and may not be attended to.
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & (key_segments != 0)[:, None, :])[:, None]


def ancestry_mask(ancestry: Int[Array, "B K M"], index: Int[Array, ""]) -> Bool[Array, "B 1 K C"]:
    """True where a beam's query at position `index` may attend to what stands in a shared cache.

    Args:
      ancestry: `ancestry[b, k, m]` is the beam whose key at position m belongs to hypothesis k.
      index: later positions may not be attended to.

    Returns:
      the mask over all keys of a sentence, position by position, and in each beam by beam.
    """
    batch, beams, length = ancestry.shape
    so_far = jnp.arange(length) <= index
    own = (ancestry[..., None] == jnp.arange(beams)) & so_far[:, None]
    return own.reshape(batch, 1, beams, length * beams)
