# SPDX-License-Identifier: Apache-2.0
"""Faithfulness of integrated gradients, for the study `antecedent`.

Deletion of the tokens that they rank first, and comparison with a model of random parameters
(Adebayo et al. 2018).
"""

import functools
from typing import Any

import jax
import numpy as np

from experiments.studies.antecedent_effects import Subject
from experiments.studies.interchange import Sites
from experiments.studies.twins import ROLES, Sentences
from transformer.arrays import Array, Float, Params
from transformer.inspection import attribution, run
from transformer.inspection.alignment import untrained_params
from transformer.models.protocol import Model

DELETIONS = 4
IG_STEPS = 32
IG_SENTENCES = 24


def faithfulness(subject: Subject) -> dict[str, Any]:
    """How integrated gradients fare: deletion, occlusion, and randomized parameters.

    ``deletion``: the preference that is left, as a share, after the embeddings of the k first
    source tokens of an order are set to zero, k = 0 ... `DELETIONS`. ``rank_correlation``:
    Spearman's, with the preference that the deletion of single tokens costs (``occlusion``), and
    with the integrated gradients of models whose parameters are initial ones.
    """
    rows = np.arange(len(subject.batch)) < IG_SENTENCES
    chosen = rows & (subject.preference > 0)
    real = np.asarray(subject.batch.source_roles) >= 0
    of_trained = _attributions(subject.params, subject)
    donor = _without_embeddings(subject)
    occlusion = _occlusion(subject, donor)
    # As arrays of the same sharding, so that one program serves all three.
    initial = jax.tree.map(
        lambda fresh, trained: jax.device_put(np.asarray(fresh), trained.sharding),
        _initial_params(subject.model),
        subject.params,
    )
    decoder = {**subject.params, "decoder": initial["decoder"]}
    of_random = {
        "decoder": _attributions(decoder, subject),
        "all": _attributions(initial, subject),
    }
    last_cross = np.asarray(subject.activations.patterns["cross"]).mean((1, 2))  # [B, T, S]
    attention = last_cross[np.arange(len(real)), np.asarray(subject.batch.position)]
    rng = np.random.default_rng(0)
    orders = {
        "integrated gradients": of_trained,
        "occlusion": occlusion,
        "attention": attention,
        "random": rng.random(real.shape),
    }
    first_role = [
        ROLES[int(roles[np.where(roles >= 0, scores, -np.inf).argmax()])]
        for roles, scores in zip(
            np.asarray(subject.batch.source_roles)[chosen], of_trained[chosen], strict=True
        )
    ]
    return {
        "sentences": int(chosen.sum()),
        "deletion": {
            name: _deletion_curve(subject, donor, scores, chosen) for name, scores in orders.items()
        },
        "rank_correlation": {
            "occlusion": _rank_correlation(of_trained, occlusion, real, chosen),
            **{
                f"random {name}": _rank_correlation(np.abs(of_trained), np.abs(other), real, chosen)
                for name, other in of_random.items()
            },
        },
        "largest": {role: first_role.count(role) for role in ROLES if role in first_role},
    }


def _attributions(params: Params, subject: Subject) -> Float[np.ndarray, "B S"]:
    """Integrated gradients of the source tokens; 0 for sentences that are not attributed."""
    part = subject.batch[np.arange(min(IG_SENTENCES, len(subject.batch)))]
    result = np.zeros(subject.batch.source.shape)
    result[: len(part)] = _integrated(subject.model, params, part)
    return result


@functools.partial(jax.jit, static_argnames="model")
def _integrated(model: Model, params: Params, batch: Sentences) -> Float[Array, "B S"]:
    def one(sentence: Sentences) -> Float[Array, " S"]:
        return attribution.integrated_gradients(
            model,
            params,
            sentence.source,
            sentence.target_in,
            sentence.preference,
            steps=IG_STEPS,
        ).source

    return jax.lax.map(one, batch, batch_size=8)


def _without_embeddings(subject: Subject) -> Sites:
    """A donor whose encoder input is the positions alone."""
    residual = subject.activations.encoder_residual.at[:, 0].set(_positions(subject))
    return subject.activations.replace(encoder_residual=residual)


def _deleted(subject: Subject, donor: Sites, tokens: np.ndarray) -> Float[np.ndarray, " B"]:
    """Preference after the embeddings of the tokens [B,S] are set to zero; positions stay."""
    edit = subject.nothing()
    edit.encoder_residual[:, 0] = tokens
    return subject.edited(donor, edit)[0]


def _positions(subject: Subject) -> Float[Array, "S D"]:
    """What is added to the embeddings of the source."""

    @jax.jit
    def positions(params: Params) -> Float[Array, "S D"]:
        tokens = subject.batch.source[0], subject.batch.target_in[0]
        _, seen = run(subject.model, params, *tokens, capture="full")
        return seen.encoder.positions

    return positions(subject.params)


@functools.lru_cache(maxsize=4)
def _initial_params(model: Model) -> Params:
    return untrained_params(model, seed=1)


def _occlusion(subject: Subject, donor: Sites) -> Float[np.ndarray, "B S"]:
    """Preference that the deletion of each source token costs."""
    length = subject.batch.source.shape[1]
    each = [_deleted(subject, donor, np.arange(length)[None] == s) for s in range(length)]
    return subject.preference[:, None] - np.stack(each, 1)


def _deletion_curve(
    subject: Subject, donor: Sites, scores: np.ndarray, chosen: np.ndarray
) -> list[float]:
    """Mean preference of the chosen sentences after 0, 1, ... deletions, as a share."""
    real = np.asarray(subject.batch.source_roles) >= 0
    order = np.argsort(-np.where(real, scores, -np.inf), axis=1)
    rank = np.argsort(order, axis=1)
    left = [subject.preference[chosen].mean()]
    left += [
        _deleted(subject, donor, (rank < k) & real)[chosen].mean() for k in range(1, DELETIONS + 1)
    ]
    return [float(each / left[0]) for each in left]


def _rank_correlation(
    first: np.ndarray, second: np.ndarray, real: np.ndarray, chosen: np.ndarray
) -> float:
    """Mean over sentences of Spearman's rank correlation over tokens."""
    correlations = []
    for a, b, kept in zip(first[chosen], second[chosen], real[chosen], strict=True):
        ranks = [np.argsort(np.argsort(each[kept])) for each in (a, b)]
        correlations.append(np.corrcoef(*ranks)[0, 1])
    return float(np.mean(correlations)) if correlations else float("nan")
