# SPDX-License-Identifier: Apache-2.0
"""Positions: absolute encodings, schemes that act inside attention, and the shift of the target.

An absolute encoding (sinusoidal, learned) is added to the token embeddings (paper 3.5). Every other
scheme reaches self-attention through one argument, a `PositionTerm`, in training and in cached
decoding alike. A new scheme is one entry of `SCHEMES`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import normal

from transformer.arrays import Array, Bool, Float, Int, SpecialIds, wide
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.nn.parameters import declare, glorot_uniform

# Absolute encodings.


def interleaved_sinusoids(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """The paper's table: PE[p, 2i] = sin(p / 10000^(2i/d_model)), PE[p, 2i+1] = cos(the same)."""
    position = np.arange(length)[:, None]
    angle = position / 10000 ** (np.arange(0, d_model, 2) / d_model)  # [T, ceil(D/2)]
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
    angle = np.arange(length)[:, None] * rate  # [T, D // 2]
    return np.pad(np.concatenate([np.sin(angle), np.cos(angle)], -1), ((0, 0), (0, d_model % 2)))


def halves_paper_sinusoids(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """All sines, then all cosines, with the wavelengths of the paper.

    The columns of `interleaved_sinusoids` in another order. Hugging Face and CTranslate2 compute
    Marian models with this table, although Marian itself trains them with `halves_sinusoids`.
    """
    table = interleaved_sinusoids(length, d_model)
    return np.concatenate([table[:, 0::2], table[:, 1::2]], -1)


SINUSOIDS = {
    "interleaved": interleaved_sinusoids,
    "halves": halves_sinusoids,
    "halves_paper": halves_paper_sinusoids,
}


def sinusoids(length: int, d_model: int, layout: str = "interleaved") -> Float[np.ndarray, "T D"]:
    """The sinusoidal table of the first `length` positions in the named layout.

    A NumPy constant in float64: in float32, position 10,000 would be wrong in the third digit.

    Raises:
      InputError: for an unknown layout.
    """
    if layout not in SINUSOIDS:
        raise InputError(f"sinusoid layout {layout!r} is unknown; choose one of {list(SINUSOIDS)}")
    return SINUSOIDS[layout](length, d_model)


# Schemes inside attention.


class PositionTerm(NamedTuple):
    """How positions enter one self-attention; a scheme sets what it needs."""

    bias: Float[Array, "#B N #T S"] | None = None
    """Added to query . key / sqrt(d_k), before the mask."""
    rotate: Callable[[Float[Array, "B T N H"]], Float[Array, "B T N H"]] = lambda x: x
    """Applied to the queries and to the keys, both at the query positions. In cached decoding a
    key is rotated when it is written to the cache.
    """
    keys: Float[Array, "*#B T S H"] | None = None
    """Added to each key as each query sees it; the same in all heads."""
    values: Float[Array, "*#B T S Hv"] | None = None
    """Added to each value as each query sees it; the same in all heads."""

    def of_attention(self) -> dict[str, Array]:
        """The terms that a function of `attention` adds, by the names of its arguments."""
        terms = {"bias": self.bias, "key_term": self.keys, "value_term": self.values}
        return {name: term for name, term in terms.items() if term is not None}


NO_POSITIONS = PositionTerm()
"""The term of cross-attention, and of self-attention with absolute encodings."""


PositionScheme = Callable[[Int[Array, "*#B T"], Int[Array, "*#B S"]], PositionTerm]
"""From query and key positions, counted from 0 within a sentence, to the term of attention.

In training both have the shape [T], or [B,T] in packed rows. In cached decoding the query position
is the step, [1], and slot c of the cache has the key position c // K, [C].
"""


def bucket_boundaries(num_buckets: int, max_distance: int) -> Int[np.ndarray, "_"]:
    """The smallest distance of each bucket but the first (Raffel et al. 2020).

    The first half of the buckets hold one distance each. The others hold ranges that grow
    logarithmically up to `max_distance`; the last also holds all distances beyond.
    """
    exact = num_buckets // 2
    share = np.arange(1, num_buckets - exact) / (num_buckets - exact)
    logarithmic = np.ceil(exact * (max_distance / exact) ** share - 1e-9)
    return np.concatenate([np.arange(1, exact + 1), logarithmic]).astype(np.int32)


def relative_buckets(
    distance: Int[Array, "*B T S"], *, bidirectional: bool, num_buckets: int, max_distance: int
) -> Int[Array, "*B T S"]:
    """The bucket of each distance, key position minus query position.

    With `bidirectional` the second half of the buckets is for keys after the query. Without, such
    keys share the bucket of distance 0.
    """
    if not bidirectional:
        boundaries = bucket_boundaries(num_buckets, max_distance)
        return jnp.searchsorted(boundaries, jnp.maximum(-distance, 0), side="right")
    half = num_buckets // 2
    bucket = jnp.searchsorted(
        bucket_boundaries(half, max_distance), jnp.abs(distance), side="right"
    )
    return bucket + jnp.where(distance > 0, half, 0)


class RelativeBias(nn.Module):
    """T5's relative positions: a learned bias for each bucket of distances and each head.

    As in T5, the layers of a stack share one table, and cross-attention has none. Unlike T5, scores
    are divided by sqrt(d_k), as in the paper.
    """

    num_heads: int
    num_buckets: int
    max_distance: int
    bidirectional: bool
    stddev: float
    """Of the initial biases."""

    @nn.compact
    def __call__(
        self, query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
    ) -> PositionTerm:
        """The bias [N,T,S] or [B,N,T,S], with a leading axis of 1 in the first case."""
        biases = declare(
            self,
            "bias",
            "bias",
            ("position", "heads"),
            normal(self.stddev),
            (self.num_buckets, self.num_heads),
        )
        buckets = relative_buckets(
            relative_distance(query_positions, key_positions),
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )  # [T, S] or [B, T, S]
        bias = jnp.moveaxis(biases[buckets], -1, -3)  # [N, T, S] or [B, N, T, S]
        return PositionTerm(bias=bias if bias.ndim == 4 else bias[None])


class RelativeVectors(nn.Module):
    """Relative position representations (Shaw et al. 2018, section 3.2).

    A query reads key j from position i as k_j + a^K[clip(j - i)] and value j as v_j +
    a^V[clip(j - i)], where clip limits a distance to [-max_distance, max_distance]. Heads share the
    vectors (section 3.3), and so do the layers of a stack.
    """

    d_k: int
    d_v: int
    max_distance: int
    bidirectional: bool
    """Without, no key is after its query, so the vectors of positive distances are left out."""

    @nn.compact
    def __call__(
        self, query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
    ) -> PositionTerm:
        """The vectors of every distance, [T,S,H] and [T,S,Hv], with the axis B in packed rows."""
        largest = self.max_distance if self.bidirectional else 0
        number = self.max_distance + 1 + largest
        distance = relative_distance(query_positions, key_positions)
        row = jnp.clip(distance, -self.max_distance, largest) + self.max_distance

        def vectors(name: str, width: int) -> Float[Array, "*#B T S _"]:
            axes, shape = ("position", "kv"), (number, width)
            return declare(self, name, "embedding", axes, glorot_uniform(0, 1), shape)[row]

        return PositionTerm(keys=vectors("keys", self.d_k), values=vectors("values", self.d_v))


def relative_distance(
    query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
) -> Int[Array, "*#B T S"]:
    """Key position minus query position, for all pairs."""
    return key_positions[..., None, :] - query_positions[..., :, None]


def rotate_pairs(
    x: Float[Array, "B T N H"], position: Int[Array, "*#B #T"]
) -> Float[Array, "B T N H"]:
    """Rotate the pair (x[2i], x[2i+1]) by position / 10000^(2i/H) (Su et al. 2021, equation 34).

    The dot product of a rotated query and a rotated key depends on their positions through the
    difference alone.
    """
    size, dtype = x.shape[-1], wide(x.dtype)
    rate = jnp.asarray(10000.0 ** (-np.arange(0, size, 2) / size), dtype)  # [H / 2]
    angle = (position[..., None] * rate)[..., None, :]  # [*B, T, 1, H / 2]
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    even, odd = x[..., 0::2].astype(dtype), x[..., 1::2].astype(dtype)
    rotated = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return rotated.reshape(x.shape).astype(x.dtype)


def alibi_slopes(num_heads: int) -> Float[np.ndarray, " N"]:
    """The slopes of ALiBi's heads (Press et al. 2022, section 3): 2^(-8/N), 2^(-16/N), ...

    If N is no power of 2, the slopes of the next lower power come first, then every other slope of
    the next higher one, as in the authors' code.
    """
    lower = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 / lower * np.arange(1, lower + 1))
    between = 2.0 ** (-4 / lower * np.arange(1, 2 * lower + 1, 2))
    return np.concatenate([slopes, between[: num_heads - lower]])


def absolute(config: TransformerConfig, side: str) -> PositionScheme:
    """No term inside attention: `embedding.Embedding` adds these positions to the tokens."""
    return lambda query_positions, key_positions: NO_POSITIONS


def t5(config: TransformerConfig, side: str) -> PositionScheme:
    """Relative positions; the decoder's buckets all serve earlier keys."""
    return RelativeBias(
        num_heads=config.heads(side),
        num_buckets=config.position_buckets,
        max_distance=config.position_max_distance,
        bidirectional=side == "encoder",
        stddev=config.d_model**-0.5,
    )


def shaw(config: TransformerConfig, side: str) -> PositionScheme:
    """Vectors by relative position, added to keys and values."""
    d_k, d_v = config.head_widths(side)
    return RelativeVectors(d_k, d_v, config.max_relative_position, side == "encoder")


def rotary(config: TransformerConfig, side: str) -> PositionScheme:
    """A rotation of queries and keys."""

    def scheme(
        query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
    ) -> PositionTerm:
        return PositionTerm(rotate=lambda x: rotate_pairs(x, query_positions))

    return scheme


def alibi(config: TransformerConfig, side: str) -> PositionScheme:
    """A bias of -slope times distance; in the encoder the distance counts in both directions."""

    def scheme(
        query_positions: Int[Array, "*#B T"], key_positions: Int[Array, "*#B S"]
    ) -> PositionTerm:
        slopes = jnp.asarray(alibi_slopes(config.heads(side)))[:, None, None]  # [N, 1, 1]
        distance = jnp.abs(relative_distance(query_positions, key_positions))
        bias = -slopes * distance[..., None, :, :]  # [N, T, S] or [B, N, T, S]
        return PositionTerm(bias=bias if bias.ndim == 4 else bias[None])

    return scheme


SCHEMES: dict[str, Callable[[TransformerConfig, str], PositionScheme]] = {
    "sinusoidal": absolute,
    "learned": absolute,
    "none": absolute,
    "t5": t5,
    "shaw": shaw,
    "rotary": rotary,
    "alibi": alibi,
}
"""From `model.positions` to the scheme of the ``encoder`` or the ``decoder``."""


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
