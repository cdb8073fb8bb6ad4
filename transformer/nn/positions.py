# SPDX-License-Identifier: Apache-2.0
"""Positional encoding, and the shift that makes the decoder predict the next token (paper 3.5,
3.1).
"""

import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import BOS_ID, Array, Bool, Float, Int
from transformer.errors import InputError


def interleaved_sinusoids(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """The paper's table: PE[p, 2i] = sin(p / 10000^(2i/d_model)), PE[p, 2i+1] = cos(the same)."""
    position = np.arange(length)[:, None]
    angle = position / 10000 ** (np.arange(0, d_model, 2) / d_model)
    table = np.empty((length, d_model))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : d_model // 2])
    return table


def halves_sinusoids(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """The table of Tensor2Tensor and Marian: all sines, then all cosines.

    The wavelengths form a geometric series from 2 pi to exactly 10000 * 2 pi, so the exponent is
    i / (d_model/2 - 1) where the paper's is 2i / d_model. An odd d_model leaves the last column 0.
    """
    half = d_model // 2
    rate = 10000.0 ** (-np.arange(half) / max(half - 1, 1))
    angle = np.arange(length)[:, None] * rate
    return np.pad(np.concatenate([np.sin(angle), np.cos(angle)], -1), ((0, 0), (0, d_model % 2)))


SINUSOIDS = {"interleaved": interleaved_sinusoids, "halves": halves_sinusoids}


def sinusoids(length: int, d_model: int, layout: str = "interleaved") -> Float[np.ndarray, "T D"]:
    """The sinusoidal table of `length` positions in the named layout.

    A NumPy constant in float64: position 10,000 in float32 would already be off in the third digit.

    Raises:
      InputError: for an unknown layout.
    """
    if layout not in SINUSOIDS:
        raise InputError(f"sinusoid layout {layout!r} is unknown; choose one of {list(SINUSOIDS)}")
    return SINUSOIDS[layout](length, d_model)


def shift_right(
    target: Int[Array, "B T"], segments: Int[Array, "B T"] | None = None
) -> Int[Array, "B T"]:
    """The decoder input: the target moved right by one, beginning with the start token.

    While it reads target[t-1] the decoder predicts target[t]. In a packed row every sentence begins
    with the start token.
    """
    shifted = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    return shifted if segments is None else jnp.where(_begins(segments), BOS_ID, shifted)


def within_segments(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Each position of a packed row, counted from 0 in its own sentence."""
    position = jnp.arange(segments.shape[1])
    begin = jax.lax.cummax(jnp.where(_begins(segments), position, 0), axis=1)
    return position - begin


def _begins(segments: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """Where a sentence of a packed row has its first token."""
    before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return segments != before
