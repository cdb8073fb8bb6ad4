# SPDX-License-Identifier: Apache-2.0
"""Schemes of relative positions, from query and key positions to a `PositionTerm`.

A new scheme is one entry of `SCHEMES`.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import normal

from transformer.arrays import Array, Float, Int
from transformer.config import TransformerConfig
from transformer.nn.parameters import declare, glorot_uniform
from transformer.nn.positions import NO_POSITIONS, PositionTerm

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
    """Standard deviation of the initial biases."""

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


def rotation_angles(positions: Int[Array, "*#B T"], size: int) -> Float[Array, "*#B T pairs"]:
    """position / 10000^(2i/H) for the pair i of a head of size H (Su et al. 2021, section 3.2.2).

    The dot product of a rotated query and a rotated key depends on their positions through the
    difference alone.
    """
    rate = jnp.asarray(10000.0 ** (-np.arange(0, size, 2) / size))  # [H / 2]
    return positions[..., None] * rate


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
    d_k, _ = config.head_widths(side)
    return lambda query_positions, key_positions: PositionTerm(
        angles=rotation_angles(query_positions, d_k)
    )


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
