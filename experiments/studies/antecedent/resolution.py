# SPDX-License-Identifier: Apache-2.0
"""Measures of how one model resolves the pronoun "it", over many sentences, as in notebook 06.

They are those of `transformer.inspection`: coreference scores of heads, head ablation and
activation patching of the residual stream. Effects of patches are aggregated by the role of each
token (`twins.ROLES`). The metric is always the preference for the correct pronoun over the twin's
pronoun, in nats.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from experiments.data import registry
from experiments.data.grammars.pronouns import pronoun_metrics
from experiments.studies.antecedent.twins import NOUNS, ROLES, Sentences
from transformer.arrays import Array, Float, Int, Params
from transformer.errors import InputError
from transformer.inspection import ablation, measures, patching, run
from transformer.inspection.activations import PerHead
from transformer.models.protocol import KINDS, Kind, Model
from transformer.translator import Translator

PAIRS_AT_ONCE = 8
"""Sentences patched together, at all sites of a stack."""


def pronoun_accuracy(translator: Translator, split: str, limit: int | None = None) -> float:
    """Share of ambiguous sentences whose pronoun is translated correctly.

    Args:
      translator: a model that was trained on `pronouns`.
      split: name of a split of the corpus.
      limit: number of sentences, from the start; all by default.
    """
    examples = [
        example
        for example in registry.load(translator.config.data, split).examples
        if example["resolution"]
    ][:limit]
    translations = translator([example["source"] for example in examples])
    return pronoun_metrics(examples, [each.text for each in translations])["pronoun_accuracy"]


# Coreference scores.


@flax.struct.dataclass
class Coreference:
    """Coreference of every head of one kind of attention, over twins."""

    score: Float[np.ndarray, "L N"]
    """Mean coreference score: weight on the antecedent minus weight on the distractor."""
    antecedent_ahead: Float[np.ndarray, "L N"]
    """Share of sentences with more weight on the antecedent; a half by chance."""
    chance: float
    """Threshold from `measures.chance_threshold`."""
    sentences: int


def coreference(
    model: Model, params: Params, sentences: Sentences, group: int = 2
) -> dict[Kind, Coreference]:
    """Measure the coreference score of every head, by kind of attention.

    The query is "it" in the encoder, and the row that predicts the pronoun in the decoder and in
    cross-attention. In decoder self-attention the nouns are those of the translation so far, and
    only sentences with both of them count.

    Args:
      sentences: twins, or the quadruples of `sentences.read`.
      group: number of consecutive sentences that are not independent, 2 or 4.
    """
    both_nouns = np.all([sentences.has_prefix_role(noun).any(-1) for noun in NOUNS], axis=0)
    results = {}
    for kind, scores in vars(_coreference_scores(model, params, sentences)).items():
        scores = np.asarray(scores, np.float64)[both_nouns if kind == "decoder" else slice(None)]
        # Positional effects cancel within twins, whose nouns are at the same positions.
        means = scores.reshape(-1, group, *scores.shape[1:]).mean(1)
        results[kind] = Coreference(
            score=scores.mean(0),
            antecedent_ahead=measures.share_above_zero(scores),
            chance=measures.chance_threshold(means),
            sentences=len(scores),
        )
    return results


@functools.partial(jax.jit, static_argnames="model")
def _coreference_scores(model: Model, params: Params, sentences: Sentences) -> PerHead:
    """``[B,L,N]``: the score of every sentence and head."""

    def score(sentence: Sentences) -> PerHead:
        _, trace = run(model, params, sentence.source, sentence.target_in, capture="weights")
        predicts = jnp.arange(sentence.target_in.shape[0]) == sentence.position
        source_nouns = [sentence.has_role(noun) for noun in NOUNS]
        target_nouns = [sentence.has_prefix_role(noun) for noun in NOUNS]
        rows = {
            "encoder": (sentence.has_role("it"), *source_nouns),
            "decoder": (predicts, *target_nouns),
            "cross": (predicts, *source_nouns),
        }
        scores = {
            kind: measures.coreference_score(trace.attention(kind).weights, *rows[kind])
            for kind in KINDS
        }
        return PerHead(**scores)

    return jax.lax.map(score, sentences, batch_size=64)


# Head ablation.


@flax.struct.dataclass
class PronounAblation:
    """Effect of removing each head."""

    preference: float
    """Mean preference for the correct pronoun with all heads, in nats."""
    right: float
    """Share of sentences in which it is preferred."""
    damage: PerHead
    """Decrease of the preference without the head, in nats."""
    right_without: PerHead
    """Share of sentences in which the correct pronoun is still preferred."""


def pronoun_ablation(model: Model, params: Params, sentences: Sentences) -> PronounAblation:
    """Remove every head in turn and measure the preference."""
    pronoun = ablation.ablate_heads_for_metric(
        model, params, sentences.source, sentences.target_in, sentences.preference
    )
    return PronounAblation(
        preference=float(pronoun.value.mean()),
        right=float((pronoun.value > 0).mean()),
        damage=jax.tree.map(np.asarray, pronoun.damage),
        right_without=jax.tree.map(lambda each: np.asarray((each > 0).mean(0)), pronoun.without),
    )


# Activation patching.


@flax.struct.dataclass
class RolePatching:
    """Restored share of the answer when one site of the twin's run is overwritten."""

    encoder: Float[np.ndarray, "P R"]
    """At the encoder's input and after each layer, by `ROLES`: the mean over a sentence's tokens of
    that role, then over sentences; NaN for a role without tokens.
    """
    decoder: Float[np.ndarray, "Q 2"]
    """In the decoder: at the row that predicts the pronoun, and the mean of the rows before it."""
    estimate_correlation: Float[np.ndarray, " P"]
    """Correlation with attribution patching, over all encoder sites after each layer."""
    sentences: int
    """Sentences in which the model prefers the correct pronoun, as in their twins."""


def role_patching(model: Model, params: Params, sentences: Sentences) -> RolePatching:
    """Patch the run of every sentence's twin with the sentence's activations, site by site."""
    patched = jax.tree.map(np.asarray, _patched(model, params, sentences))
    exact = patched[0]
    right = (exact.clean > 0) & (exact.corrupt < 0)
    if not right.any():
        raise InputError(
            "the model prefers the right pronoun in no pair of twins, so there is no answer to "
            "look for; train it first"
        )
    kept = sentences[right]
    effects, estimates, decoder_effects = (
        np.asarray(jax.vmap(lambda each: each.effect)(jax.tree.map(lambda leaf: leaf[right], each)))
        for each in patched
    )
    tokens = kept.source_roles >= 0
    distance = np.sign(np.arange(kept.target_in.shape[1]) - kept.position[:, None])
    row_roles = np.where(distance > 0, -1, -distance)  # 0: predicts the pronoun, 1: before it
    return RolePatching(
        encoder=role_means(effects, kept.source_roles, len(ROLES)),
        decoder=role_means(decoder_effects, row_roles, 2),
        estimate_correlation=np.array(
            [
                np.corrcoef(effects[:, level][tokens], estimates[:, level][tokens])[0, 1]
                for level in range(1, effects.shape[1])
            ]
        ),
        sentences=len(kept),
    )


@functools.partial(jax.jit, static_argnames="model")
def _patched(
    model: Model, params: Params, sentences: Sentences
) -> tuple[patching.Patching, patching.Patching, patching.Patching]:
    """Encoder patching, its estimate, and decoder patching of each sentence."""

    def patch(both: tuple[Sentences, Int[Array, " S"]]):
        one, corrupt = both
        runs = (model, params, one.source, corrupt, one.target_in, one.preference)
        return (
            patching.patch_sites(*runs),
            patching.attribution_patching(*runs),
            patching.patch_sites(*runs, side="decoder"),
        )

    both = (sentences, sentences.twins().source)
    return jax.lax.map(patch, both, batch_size=PAIRS_AT_ONCE)


def role_means(
    values: Float[np.ndarray, "B *P S"], roles: Int[np.ndarray, "B S"], number: int
) -> Float[np.ndarray, "*P R"]:
    """Mean over a sentence's tokens of each role, then over the sentences that have the role.

    Args:
      values: a number for each token, for example at several layers.
      roles: role of each token, from 0; negative for tokens to ignore.
      number: number of roles, R.

    Returns:
      means, NaN for a role without tokens.
    """
    has_role = np.eye(number)[roles] * (roles >= 0)[..., None]  # [B, S, R]
    tokens = has_role.sum(1)
    sums = np.einsum("B...S,BSR->B...R", values, has_role)
    shape = (len(values), *[1] * (values.ndim - 2), number)
    with np.errstate(invalid="ignore"):
        means = sums / tokens.reshape(shape)
        return np.nansum(means, 0) / (tokens > 0).sum(0)
