# SPDX-License-Identifier: Apache-2.0
"""Numbers that say what a head does, from its attention weights.

Weights are ``Float[*L, T, S]``: rows over the last axis sum to 1, and whatever stands before the
last two axes (layers, heads, a batch) stays. These are pure functions of arrays from any model, in
JAX or NumPy; `weights.check_weights` refuses arrays that are not attention weights.

A weight says where a head reads, not why the model answered; `ablation` and `patching` ask that.
"""

import math
from collections.abc import Sequence
from numbers import Real

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.config import TransformerConfig
from transformer.nn.capture import Kind

Weights = Float[Array | np.ndarray, "*L T S"]


def entropy(weights: Weights) -> Float[Array, "*L T"]:
    """Of each row, in bits: 0 where one key has all the weight, log2 S where all have the same."""
    return entr(jnp.asarray(weights)).sum(-1) / math.log(2)


def mean_distance(weights: Weights) -> Float[Array, "*L T"]:
    """How far from its own position each query reads: the mean of |t - s|, in positions.

    In encoder-decoder attention t counts target positions and s counts source positions.
    """
    queries, keys = weights.shape[-2:]
    distance = jnp.abs(jnp.arange(queries)[:, None] - jnp.arange(keys))
    return (jnp.asarray(weights) * distance).sum(-1)


def row_mean(
    values: Float[Array, "*L T"], rows: Bool[Array | np.ndarray, " T"] | None = None
) -> Float[Array, "*L"]:
    """The mean over the queries, for one number a head.

    Args:
      values: one for each row of attention weights.
      rows: the queries that count; those that are not padding, for instance. All unless given.
        Over no query the mean is 0.
    """
    rows = jnp.ones(values.shape[-1], bool) if rows is None else jnp.asarray(rows)
    return jnp.where(rows, values, 0).sum(-1) / jnp.maximum(rows.sum(), 1)


# Where a head reads by position alone.


@flax.struct.dataclass
class HeadRoles:
    """The mean weight that a head gives to certain positions, between 0 and 1.

    They overlap where positions do: to the second token the previous one is the first.
    """

    previous: Float[Array, "*L"]
    """Key t - 1, over the queries that have one."""
    next: Float[Array, "*L"]
    """Key t + 1, over the queries that have one; 0 in the decoder's self-attention."""
    first: Float[Array, "*L"]
    """Key 0."""
    end: Float[Array, "*L"]
    """The last key, the end token of a source."""
    diagonal: Float[Array, "*L"]
    """Key t: in self-attention a position's own."""

    def names(self, least: float = 0.5) -> np.ndarray:
        """For each head the role that has most of its weight, "" where that is below `least`.

        Of equal weights, the one that is named first above.
        """
        names = ("previous", "next", "first", "end", "diagonal")
        weights = np.stack([np.asarray(getattr(self, name)) for name in names])
        return np.where(weights.max(0) >= least, np.array(names)[weights.argmax(0)], "")


def head_roles(
    weights: Weights,
    *,
    rows: Bool[Array | np.ndarray, " T"] | None = None,
    end: Int[Array, ""] | int | None = None,
) -> HeadRoles:
    """How much each head gives to the previous, next, first and last position and to its own.

    Args:
      weights: of any kind of attention.
      rows: the queries that count, as in `row_mean`.
      end: the last key that is not padding; the last of all unless given.
    """
    weights = jnp.asarray(weights)
    queries, keys = weights.shape[-2:]
    end = keys - 1 if end is None else end
    query = jnp.arange(queries)
    counted = jnp.ones(queries, bool) if rows is None else jnp.asarray(rows)

    def share(key: Int[Array, " T"]) -> Float[Array, "*L"]:
        """The mean weight of each query's key, over the queries whose key there is."""
        there = (key >= 0) & (key <= end)
        read = weights[..., query, jnp.clip(key, 0, keys - 1)]
        return row_mean(read, counted & there)

    return HeadRoles(
        previous=share(query - 1),
        next=share(query + 1),
        first=share(jnp.zeros_like(query)),
        end=share(jnp.full_like(query, end)),
        diagonal=share(query),
    )


# What a pronoun reads.


def coreference_score(
    weights: Weights,
    query: Bool[Array | np.ndarray, " T"],
    antecedent: Bool[Array | np.ndarray, " S"],
    distractor: Bool[Array | np.ndarray, " S"],
) -> Float[Array, "*L"]:
    """How much more a pronoun reads what it refers to than the other noun.

    The weight on the antecedent minus the weight on the distractor, between -1 and 1: 0 for a head
    that does not tell them apart. Over sentences in which the two change places, a head that goes
    by position alone has a mean of 0. Words of several sub-words count as `words.merge` counts
    them: the sum over keys, the mean over queries.

    Args:
      weights: of the encoder, where the query is "it"; or of the decoder or of encoder-decoder
        attention, where it is the row that reads or the row that predicts the target's pronoun.
      query: the pronoun's tokens.
      antecedent: the tokens of the noun that it refers to.
      distractor: the tokens of the noun that it might refer to and does not.
    """
    weights = jnp.asarray(weights)
    signed = jnp.asarray(antecedent, weights.dtype) - jnp.asarray(distractor, weights.dtype)
    return row_mean((weights * signed).sum(-1), query)


@flax.struct.dataclass
class CoreferenceSummary:
    """Scores of many sentences; by chance the mean is 0 and the share is a half."""

    mean: Float[Array, "*L"]
    standard_error: Float[Array, "*L"]
    """Of the mean; NaN for one sentence, which proves nothing."""
    share: Float[Array, "*L"]
    """Of sentences whose score is above 0; those with exactly 0 count half."""


def coreference_summary(scores: Float[Array | np.ndarray, "B *L"]) -> CoreferenceSummary:
    """What the coreference scores of many sentences say of each head."""
    sentences = scores.shape[0]
    deviation = jnp.where(sentences > 1, scores.std(0, ddof=min(sentences - 1, 1)), jnp.nan)
    return CoreferenceSummary(
        mean=jnp.asarray(scores.mean(0)),
        standard_error=deviation / math.sqrt(sentences),
        share=((scores > 0) + 0.5 * (scores == 0)).mean(0),
    )


def greatest_by_chance(
    scores: Float[Array | np.ndarray, "B *L"],
    *,
    shuffles: int = 1000,
    quantile: float = 0.95,
    seed: int = 0,
) -> float:
    """What the greatest mean score of all heads stays below when the gold is shuffled.

    In each shuffle the antecedent and the distractor of every sentence change places or not, by the
    toss of a coin, which changes the sign of its scores. The best of many heads is always somewhat
    above 0; above this limit, chance would rarely have brought it.

    Args:
      scores: of B independent sentences; where sentences come in twins, the mean of each two.
      shuffles: how often the gold is shuffled.
      quantile: the share of shuffles in which |mean| of every head is below the limit.
      seed: of the coins.
    """
    of_heads = np.asarray(scores, np.float64).reshape(len(scores), -1)
    coins = np.random.default_rng(seed).choice((-1.0, 1.0), (shuffles, len(of_heads)))
    greatest = np.abs(coins @ of_heads / len(of_heads)).max(-1)
    return float(np.quantile(greatest, quantile))


def rank_correlation(
    first: Float[Array | np.ndarray, " N"] | Sequence[Real],
    second: Float[Array | np.ndarray, " N"] | Sequence[Real],
) -> float:
    """Spearman's: 1 where both put the heads in one order, -1 where in opposite ones.

    Equal values share the mean of their ranks. NaN where one of the two has no order at all.

    Args:
      first: a number for each of N heads, or of whatever else is ranked.
      second: another number for each.
    """

    def centred_ranks(values) -> Float[np.ndarray, " N"]:
        values = np.asarray(values, np.float64)
        return np.sign(values[:, None] - values).sum(-1) / 2

    one, other = centred_ranks(first), centred_ranks(second)
    scale = math.sqrt((one @ one) * (other @ other))
    return float(one @ other) / scale if scale else math.nan


# Weights times what they weigh.


def norm_weighted_attention(
    weights: Float[Array, "*L N T S"],
    value: Float[Array, "*L N S H"],
    output_kernel: Float[Array, "*L N H D"],
) -> Float[Array, "*L N T S"]:
    """The length of what each key adds to each query's output: |weight . value W^O|.

    A large weight on a small vector moves little (Kobayashi et al. 2020). Rows do not sum to 1.

    Args:
      weights: `AttentionTrace.weights`.
      value: `AttentionTrace.value`.
      output_kernel: of the same layers, from `output_kernels`.
    """
    moved = jnp.einsum("...NSH,...NHD->...NSD", value, output_kernel)
    return weights * jnp.linalg.norm(moved, axis=-1)[..., None, :]


def output_kernels(
    params: Params, config: TransformerConfig, kind: Kind
) -> Float[Array, "L N H D"]:
    """W^O of every layer's attention of one kind, head by head."""
    stack = "encoder" if kind == "encoder" else "decoder"
    sublayer = "cross_attention" if kind == "cross" else "self_attention"
    layers = range(config.depth(stack))
    return jnp.stack([params[stack][f"layer_{i}"][sublayer]["output"] for i in layers])
