# SPDX-License-Identifier: Apache-2.0
"""Faithfulness of integrated gradients.

It is measured by deleting the token that they rank first, and by comparing them with those of a
model of random parameters (Adebayo et al. 2018).
"""

import functools
from typing import Any

import jax
import numpy as np

from experiments.studies.antecedent.effects import Subject
from experiments.studies.antecedent.twins import Sentences
from transformer.arrays import Array, Float, Params
from transformer.inspection import attribution, run
from transformer.inspection.alignment import untrained_params
from transformer.models.protocol import Model

IG_STEPS = 32
IG_SENTENCES = 24


def faithfulness(subject: Subject) -> dict[str, Any]:
    """Compare integrated gradients with deletion, occlusion, and randomized parameters.

    ``deletion``: the preference that is left, as a share, after the embedding of the first source
    token of an order is set to zero. ``rank_correlation``: Spearman's, with the preference that the
    deletion of single tokens costs (``occlusion``), and with the integrated gradients of models
    whose parameters are initial ones.
    """
    roles = np.asarray(subject.batch.source_roles)
    tokens = roles >= 0  # without padding
    chosen = (np.arange(len(roles)) < IG_SENTENCES) & (subject.preference > 0)
    trained, without = _attributions(subject.params, subject), _without_token(subject)
    occlusion = subject.preference[:, None] - without
    # Arrays of the same sharding, so that one program serves all three.
    initial = jax.tree.map(
        lambda fresh, trained: jax.device_put(np.asarray(fresh), trained.sharding),
        untrained_params(subject.model, seed=1),
        subject.params,
    )
    decoder = {**subject.params, "decoder": initial["decoder"]}
    last_cross = np.asarray(subject.activations.patterns["cross"]).mean((1, 2))  # [B, T, S]
    orders = {
        "integrated gradients": trained,
        "occlusion": occlusion,
        "attention": last_cross[np.arange(len(roles)), np.asarray(subject.batch.position)],
        "random": np.random.default_rng(0).random(roles.shape),
    }

    def left(scores: np.ndarray) -> float:
        first = np.where(tokens, scores, -np.inf).argmax(1)
        deleted = without[np.arange(len(roles)), first]
        return float(deleted[chosen].mean() / subject.preference[chosen].mean())

    def correlation(first: np.ndarray, second: np.ndarray) -> float:
        return _rank_correlation(first, second, tokens, chosen)

    def with_random(params: Params) -> float:
        return correlation(np.abs(trained), np.abs(_attributions(params, subject)))

    return {
        "sentences": int(chosen.sum()),
        "deletion": {name: left(scores) for name, scores in orders.items()},
        "rank_correlation": {
            "occlusion": correlation(trained, occlusion),
            "random decoder": with_random(decoder),
            "random all": with_random(initial),
        },
    }


def _attributions(params: Params, subject: Subject) -> Float[np.ndarray, "B S"]:
    """Integrated gradients of the source tokens; 0 for sentences that are not attributed."""
    part = subject.batch[np.arange(min(IG_SENTENCES, len(subject.batch)))]
    result = np.zeros(subject.batch.source.shape)
    result[: len(part)] = _integrated(subject.model, params, part)
    return result


@functools.partial(jax.jit, static_argnames="model")
def _integrated(model: Model, params: Params, batch: Sentences) -> Float[Array, "B S"]:
    def attribute(sentence: Sentences) -> Float[Array, " S"]:
        return attribution.integrated_gradients(
            model,
            params,
            sentence.source,
            sentence.target_in,
            sentence.preference,
            steps=IG_STEPS,
        ).source

    return jax.lax.map(attribute, batch, batch_size=8)


def _without_token(subject: Subject) -> Float[np.ndarray, "B S"]:
    """Preference after the embedding of each source token is set to zero; its position stays."""

    @jax.jit
    def positions(params: Params) -> Float[Array, "S D"]:
        tokens = subject.batch.source[0], subject.batch.target_in[0]
        return run(subject.model, params, *tokens, capture="full")[1].encoder.positions

    residual = subject.activations.residual.at[:, 0].set(positions(subject.params))
    donor = subject.activations.replace(residual=residual)
    length = subject.batch.source.shape[1]
    without = [subject.with_residual(donor, 0, np.arange(length) == s) for s in range(length)]
    return np.stack(without, 1)


def _rank_correlation(
    first: np.ndarray, second: np.ndarray, tokens: np.ndarray, chosen: np.ndarray
) -> float:
    """Mean over sentences of Spearman's rank correlation over tokens."""
    correlations = []
    for a, b, kept in zip(first[chosen], second[chosen], tokens[chosen], strict=True):
        ranks = [np.argsort(np.argsort(each[kept])) for each in (a, b)]
        correlations.append(np.corrcoef(*ranks)[0, 1])
    return float(np.mean(correlations)) if correlations else float("nan")
