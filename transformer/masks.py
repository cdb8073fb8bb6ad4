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
