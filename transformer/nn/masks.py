# SPDX-License-Identifier: Apache-2.0
"""Masks that select which keys a query may attend to: padding, causal, packed (paper 3.2.3).

A mask is ``Bool[B|1, 1, T|1, S]``; true means "may attend". Masks combine with ``&``, or with
`both` where one may be missing.
"""

import jax.numpy as jnp

from transformer.arrays import Array, Bool, Int, SpecialIds


def padding_mask(
    tokens: Int[Array, "B S"], pad_id: int = SpecialIds().pad
) -> Bool[Array, "B 1 1 S"]:
    """Every query may attend to every key that is not padding."""
    return (tokens != pad_id)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Position t may attend to positions up to and including t (paper 3.2.3, third item)."""
    position = jnp.arange(length)
    return (position[None, :] <= position[:, None])[None, None]


def packed_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """In a row of several sentences, a query may attend within its own sentence only.

    Segment 0 is padding, to which no query may attend.
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]  # [B, T, S]
    return (same & (key_segments != 0)[:, None, :])[:, None]


def neighborhood_mask(
    query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"], size: int
) -> Bool[Array, "#B 1 T S"]:
    """A query may attend to the `size` positions centered on its own (paper 4, "restricted")."""
    distance = jnp.abs(key_positions[..., None, :] - query_positions[..., :, None])
    near = distance <= size // 2  # [T, S] or [B, T, S]
    return near.reshape(-1, 1, *near.shape[-2:])


def both(
    mask: Bool[Array, "#B #N #T S"] | None, other: Bool[Array, "#B #N #T S"]
) -> Bool[Array, "#B #N #T S"]:
    """A query may attend to the keys that both masks allow; None allows all."""
    return other if mask is None else mask & other
