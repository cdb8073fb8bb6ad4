# SPDX-License-Identifier: Apache-2.0
"""Positions: sinusoids (paper 3.5), terms inside attention, and the shift of the target.

Sinusoids are added to the token embeddings. Relative positions (`models.relative_positions`) reach
self-attention as a `PositionTerm`, in training and in cached decoding alike.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Bool, Float, Int, SpecialIds, wide
from transformer.errors import InputError

# Absolute encodings.


SINUSOID_LAYOUTS = ("interleaved", "halves", "halves_paper")


def sinusoids(length: int, d_model: int, layout: str = "interleaved") -> Float[np.ndarray, "T D"]:
    """PE[p, 2i] = sin(p / 10000^(2i/d_model)), PE[p, 2i+1] = cos(the same): the paper's table.

    With ``halves`` all sines come first, then all cosines, and the wavelengths go from 2 pi to
    exactly 10000 * 2 pi, as in Tensor2Tensor and Marian: the exponent is i / (d_model/2 - 1). An
    odd d_model leaves the last column 0. ``halves_paper`` has this order and the paper's
    wavelengths: Hugging Face and CTranslate2 compute Marian models so, although Marian trains them
    with ``halves``.

    A NumPy constant in float64: in float32, position 10,000 would be wrong in the third digit.

    Raises:
      InputError: for an unknown layout.
    """
    if layout not in SINUSOID_LAYOUTS:
        raise InputError(f"sinusoid layout {layout!r} is unknown; choose one of {SINUSOID_LAYOUTS}")
    half = d_model // 2
    exponent = np.arange(0, d_model, 2) / d_model
    if layout == "halves":
        exponent = np.arange(half) / max(half - 1, 1)
    angle = np.arange(length)[:, None] / 10000**exponent
    sine, cosine = np.sin(angle), np.cos(angle[:, :half])
    table = np.zeros((length, d_model))
    if layout == "interleaved":
        table[:, 0::2], table[:, 1::2] = sine, cosine
    else:
        table[:, : sine.shape[1] + half] = np.concatenate([sine, cosine], axis=1)
    return table


# Relative positions.


class PositionTerm(NamedTuple):
    """How positions enter one self-attention; a scheme sets what it needs."""

    bias: Float[Array, "#B N #T S"] | None = None
    """Added to query . key / sqrt(d_k), before the mask."""
    angles: Float[Array, "*#B #T pairs"] | None = None
    """By which the pairs of every query and key are rotated, at the query positions; in cached
    decoding when a key is written to the cache.
    """
    keys: Float[Array, "*#B T S H"] | None = None
    """Added to each key as each query sees it; the same in all heads."""
    values: Float[Array, "*#B T S Hv"] | None = None
    """Added to each value as each query sees it; the same in all heads."""

    def rotate(self, x: Float[Array, "B T _ H"]) -> Float[Array, "B T _ H"]:
        """Queries or keys, rotated if the scheme rotates."""
        return x if self.angles is None else rotate_pairs(x, self.angles)


NO_POSITIONS = PositionTerm()
"""The term of cross-attention, and of self-attention with absolute encodings."""


def rotate_pairs(
    x: Float[Array, "B T N H"], angles: Float[Array, "*#B #T pairs"]
) -> Float[Array, "B T N H"]:
    """Rotate the pair (x[2i], x[2i+1]) by the angle i (Su et al. 2021, equation 34)."""
    dtype, angles = wide(x.dtype), angles[..., None, :]  # [*B, T, 1, H / 2]
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    even, odd = x[..., 0::2].astype(dtype), x[..., 1::2].astype(dtype)
    rotated = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return rotated.reshape(x.shape).astype(x.dtype)


# The decoder input, and positions in packed rows.


def shift_right(
    target: Int[Array, "B T"],
    segments: Int[Array, "B T"] | None = None,
    bos_id: int = SpecialIds().bos,
) -> Int[Array, "B T"]:
    """The decoder input: BOS, then the target without its last token.

    While the decoder reads target[t-1] it predicts target[t]. In a packed row every sentence begins
    with BOS.
    """
    shifted = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=bos_id)
    return shifted if segments is None else jnp.where(_is_first(segments), bos_id, shifted)


def positions_within_segments(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """The positions of a packed row, counted from 0 in each sentence."""
    position = jnp.arange(segments.shape[1])
    begin = jax.lax.cummax(jnp.where(_is_first(segments), position, 0), axis=1)
    return position - begin


def _is_first(segments: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """Whether a token of a packed row is the first of its sentence."""
    before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return segments != before
