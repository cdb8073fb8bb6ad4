# SPDX-License-Identifier: Apache-2.0
"""Measures of attention heads, computed from their weights.

Weights are ``Float[*L, T, S]``: rows over the last axis sum to 1, and all axes before the last two
(layers, heads, a batch) are kept. The functions are pure and accept arrays of any model, in JAX or
NumPy. `argument_checks.check_weights` rejects arrays that are not attention weights.

A weight says where a head reads, not why the model answers; see `ablation` and `patching` for that.
"""

import math

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.inspection.activations import PARTS, describe, stacked_kernels
from transformer.models.protocol import Kind, Model

Weights = Float[Array | np.ndarray, "*L T S"]


def entropy(weights: Weights) -> Float[Array, "*L T"]:
    """Entropy of each row in bits: 0 for all weight on one key, log2 S for a uniform row."""
    return entr(jnp.asarray(weights)).sum(-1) / math.log(2)


def attention_distance(weights: Weights) -> Float[Array, "*L T"]:
    """Mean distance ``|t - s|`` between each query and the keys it reads, in positions.

    In cross-attention t counts target positions and s counts source positions.
    """
    queries, keys = weights.shape[-2:]
    distance = jnp.abs(jnp.arange(queries)[:, None] - jnp.arange(keys))
    return (jnp.asarray(weights) * distance).sum(-1)


def row_mean(
    values: Float[Array, "*L T"], rows: Bool[Array | np.ndarray, " T"] | None = None
) -> Float[Array, "*L"]:
    """Mean over the queries, which gives one number a head.

    Args:
      values: one for each row of attention weights.
      rows: queries to include, for example those that are not padding; all by default. The mean
        over no query is 0.
    """
    rows = jnp.ones(values.shape[-1], bool) if rows is None else jnp.asarray(rows)
    return jnp.where(rows, values, 0).sum(-1) / jnp.maximum(rows.sum(), 1)


# Positional heads.


@flax.struct.dataclass
class HeadRoles:
    """Mean weight of a head on certain positions, between 0 and 1.

    Roles overlap where positions coincide: for the second token, the previous one is the first.
    """

    previous: Float[Array, "*L"]
    """Key t - 1, over the queries that have one."""
    next: Float[Array, "*L"]
    """Key t + 1, over the queries that have one; 0 in decoder self-attention."""
    first: Float[Array, "*L"]
    """Key 0."""
    end: Float[Array, "*L"]
    """The last key; EOS of a source."""
    diagonal: Float[Array, "*L"]
    """Key t; in self-attention the query's position."""

    def names(self, threshold: float = 0.5) -> np.ndarray:
        """Name of the role with the highest weight of each head, "" if it is below `threshold`.

        Ties go to the role that is declared first.
        """
        names = ("previous", "next", "first", "end", "diagonal")
        weights = np.stack([np.asarray(getattr(self, name)) for name in names])
        return np.where(weights.max(0) >= threshold, np.array(names)[weights.argmax(0)], "")


def head_roles(weights: Weights) -> HeadRoles:
    """Mean weight of each head on certain positions, of a sentence pair without padding."""
    weights = jnp.asarray(weights)
    queries, keys = weights.shape[-2:]
    query = jnp.arange(queries)

    def mean_weight(key: Int[Array, " T"]) -> Float[Array, "*L"]:
        """Mean weight on one key of each query, over the queries for which it exists."""
        read = weights[..., query, jnp.clip(key, 0, keys - 1)]
        return row_mean(read, (key >= 0) & (key < keys))

    return HeadRoles(
        previous=mean_weight(query - 1),
        next=mean_weight(query + 1),
        first=mean_weight(jnp.zeros_like(query)),
        end=mean_weight(jnp.full_like(query, keys - 1)),
        diagonal=mean_weight(query),
    )


# Coreference heads.


def coreference_score(
    weights: Weights,
    query: Bool[Array | np.ndarray, " T"],
    antecedent: Bool[Array | np.ndarray, " S"],
    distractor: Bool[Array | np.ndarray, " S"],
) -> Float[Array, "*L"]:
    """Weight of a pronoun on its antecedent minus its weight on the other noun, from -1 to 1.

    Over sentences in which the two nouns swap, a purely positional head has a mean of 0. Words of
    several subwords count as in `words.merge`: the sum over keys, the mean over queries.

    Args:
      weights: those of the encoder, where the query is "it"; or decoder self-attention or
        cross-attention, where the query reads or predicts the pronoun of the target.
      query: tokens of the pronoun.
      antecedent: tokens of the noun it refers to.
      distractor: tokens of the noun it could refer to but does not.
    """
    weights = jnp.asarray(weights)
    signed = jnp.asarray(antecedent, weights.dtype) - jnp.asarray(distractor, weights.dtype)
    return row_mean((weights * signed).sum(-1), query)


def share_above_zero(scores: Float[Array | np.ndarray, "B *L"]) -> Float[Array | np.ndarray, "*L"]:
    """Share of sentences with a score above 0; a score of exactly 0 counts half."""
    return ((scores > 0) + 0.5 * (scores == 0)).mean(0)


def chance_threshold(scores: Float[Array | np.ndarray, "B *L"]) -> float:
    """Threshold that the largest absolute mean score of all heads exceeds by chance in 5% of cases.

    The largest mean score, with its sign, exceeds it in about 2.5%. A permutation test: antecedent
    and distractor of each sentence are swapped at random, which flips the sign of its scores. It
    corrects for the best of many heads being above 0 by chance.

    Args:
      scores: scores of B independent sentences; for pairs of twins, the means of both.
    """
    scores = np.asarray(scores, np.float64).reshape(len(scores), -1)  # [B, heads]
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (1000, len(scores)))
    highest = np.abs(signs @ scores / len(scores)).max(-1)  # [permutations]
    return float(np.quantile(highest, 0.95))


# Weights and values.


def norm_weighted_attention(
    weights: Float[Array, "*L N T S"],
    value: Float[Array, "*L N S H"],
    output_kernel: Float[Array, "*L N H D"],
) -> Float[Array, "*L N T S"]:
    """Norm of the contribution of each key to the output of each query: ``|weight . value W^O|``.

    A large weight on a small vector contributes little (Kobayashi et al. 2020). Rows do not sum to
    1.

    Args:
      output_kernel: kernels of the same layers, from `output_kernels`.
    """
    transformed = jnp.einsum("...NSH,...NHD->...NSD", value, output_kernel)
    return weights * jnp.linalg.norm(transformed, axis=-1)[..., None, :]


def output_kernels(model: Model, params: Params, kind: Kind) -> Float[Array, "L N H D"]:
    """W^O of every layer and head of one kind of attention, of a Transformer."""
    side, name = PARTS[kind]
    depth = describe(model).attention[kind].layers
    return stacked_kernels(params[side], name, "output", depth)
