# SPDX-License-Identifier: Apache-2.0
"""How a model resolves the pronoun "it", measured over many sentences.

The measures are those of `transformer.inspection`: coreference scores of heads, head ablation,
activation patching of the residual stream, and integrated gradients. They are aggregated by the
role of each token (`twins.ROLES`). The metric is always the same: the preference for the correct
pronoun over the twin's pronoun, in nats.
"""

import functools
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from experiments.corpora import registry
from experiments.corpora.pronouns import pronoun_metrics
from experiments.studies import twins
from experiments.studies.twins import PREFIX_ROLES, ROLES, Sentences
from transformer.arrays import Array, Float, Int, Params
from transformer.config import ModelConfig
from transformer.errors import InputError
from transformer.inspection import ablation, attribution, measures, patching
from transformer.inspection.alignment import untrained_params
from transformer.inspection.trace import describe, run
from transformer.nn.capture import KINDS, PerHead
from transformer.translator import Translator

TRANSLATED = 600
"""Sentences of a split whose pronouns are scored."""
TWINS = 150
"""Pairs of twins for all measures except attribution."""
ATTRIBUTED_TWINS = 20
STEPS = 1024
"""Steps of integrated gradients."""
MORE_STEPS = 16
"""Factor of the steps for sentences with a completeness gap above `LARGEST_GAP`."""
LARGEST_GAP = 0.02
PAIRS_AT_ONCE = 8
"""Sentences patched together, at all sites of a stack."""

RESULTS = pathlib.Path(__file__).parent / "results" / "antecedent.json"
"""Committed results of `experiments.studies.antecedent`."""


# Coreference scores.


@flax.struct.dataclass
class Coreference:
    """Coreference of every head of one kind of attention, over twins."""

    score: Float[np.ndarray, "L N"]
    """Mean coreference score: weight on the antecedent minus weight on the distractor."""
    standard_error: Float[np.ndarray, "L N"]
    """Of the mean, over twins."""
    antecedent_ahead: Float[np.ndarray, "L N"]
    """Share of sentences with more weight on the antecedent; a half by chance."""
    antecedent: Float[np.ndarray, "L N"]
    """Mean weight on the antecedent."""
    distractor: Float[np.ndarray, "L N"]
    adjective: Float[np.ndarray, "L N"]
    """Mean weight on the adjective; 0 in decoder self-attention, which does not see it."""
    chance: float
    """Threshold from `measures.chance_threshold`."""
    sentences: int


def coreference(
    params: Params, config: ModelConfig, sentences: Sentences
) -> dict[str, Coreference]:
    """Measure the coreference score of every head, by kind of attention.

    The query is "it" in the encoder, and the row that predicts the pronoun in the decoder and in
    cross-attention. In decoder self-attention the nouns are those of the translation so far, and
    only sentences with both of them count.

    Args:
      params: of the model.
      config: of the model.
      sentences: twins.
    """
    weights = _noun_weights(params, config, sentences)
    both_read = np.all(
        [sentences.has_prefix_role(noun).any(-1) for noun in ("antecedent", "distractor")], axis=0
    )
    results = {}
    for kind in KINDS:
        read = np.asarray(getattr(weights, kind), np.float64)
        antecedent, distractor, adjective = read[:, both_read] if kind == "decoder" else read
        scores = antecedent - distractor
        # Positional effects cancel within twins, whose nouns are at the same positions.
        twin_scores = scores.reshape(-1, 2, *scores.shape[1:]).mean(1)
        summary = measures.coreference_summary(twin_scores)
        results[kind] = Coreference(
            score=np.asarray(summary.mean),
            standard_error=np.asarray(summary.standard_error),
            antecedent_ahead=np.asarray(measures.coreference_summary(scores).share),
            antecedent=antecedent.mean(0),
            distractor=distractor.mean(0),
            adjective=adjective.mean(0),
            chance=measures.chance_threshold(twin_scores),
            sentences=len(scores),
        )
    return results


@functools.partial(jax.jit, static_argnames="config")
def _noun_weights(params: Params, config: ModelConfig, sentences: Sentences) -> PerHead:
    """``[3,B,L,N]``: the pronoun's weight on antecedent, distractor and adjective."""

    def of_sentence(one: Sentences) -> PerHead:
        _, trace = run(params, config, one.source, one.target_in, capture="weights")
        predicts = jnp.arange(one.target_in.shape[0]) == one.position
        queries = {"encoder": one.has_role("it"), "decoder": predicts, "cross": predicts}
        source_keys = [one.has_role(word) for word in ("antecedent", "distractor", "adjective")]
        target_keys = [one.has_prefix_role(noun) for noun in ("antecedent", "distractor")]
        target_keys.append(jnp.zeros_like(target_keys[0]))

        def weights_on(kind: str) -> Float[Array, "3 L N"]:
            weights = trace.attention(kind).weights
            keys = jnp.stack(target_keys if kind == "decoder" else source_keys)  # [3, S]
            on_keys = jnp.einsum("LNTS,KS->KLNT", weights, keys.astype(weights.dtype))
            return measures.row_mean(on_keys, queries[kind])

        return PerHead(**{kind: weights_on(kind) for kind in KINDS})

    each = jax.lax.map(of_sentence, sentences, batch_size=64)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), each)


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
    loss: float
    """With all heads, in nats per target token."""
    loss_increase: PerHead


def pronoun_ablation(params: Params, config: ModelConfig, sentences: Sentences) -> PronounAblation:
    """Remove every head in turn and measure the preference and the loss.

    Args:
      params: of the model.
      config: of the model.
      sentences: twins.
    """
    pronoun = ablation.ablate_heads_for_metric(
        params, config, sentences.source, sentences.target_in, sentences.preference
    )
    loss = ablation.ablate_heads(params, config, sentences.source, sentences.target)
    return PronounAblation(
        preference=float(pronoun.value.mean()),
        right=float((pronoun.value > 0).mean()),
        damage=jax.tree.map(np.asarray, pronoun.damage),
        right_without=jax.tree.map(lambda each: np.asarray((each > 0).mean(0)), pronoun.without),
        loss=float(loss.loss),
        loss_increase=jax.tree.map(np.asarray, loss.increase),
    )


# Activation patching.


@flax.struct.dataclass
class RolePatching:
    """Restored share of the answer when one site of the twin's run is overwritten."""

    encoder: Float[np.ndarray, "P R"]
    """At the encoder's input and after each layer, by `ROLES`: the mean over a sentence's tokens of
    that role, then over sentences; NaN for a role without tokens.
    """
    strongest: Float[np.ndarray, "P R"]
    """Share of sentences whose most effective site has this role."""
    decoder: Float[np.ndarray, "Q 2"]
    """In the decoder: at the row that predicts the pronoun, and the mean of the rows before it."""
    estimate_correlation: Float[np.ndarray, " P"]
    """Correlation with attribution patching, over all encoder sites after each layer."""
    sentences: int
    """Sentences in which the model prefers the correct pronoun, as in their twins."""


def role_patching(params: Params, config: ModelConfig, sentences: Sentences) -> RolePatching:
    """Patch the run of every sentence's twin with the sentence's activations, site by site.

    Args:
      params: of the model.
      config: of the model.
      sentences: twins.

    Raises:
      InputError: when the model is right in no pair of twins.
    """
    exact, estimate, decoder = jax.tree.map(np.asarray, _patched(params, config, sentences))
    right = (exact.clean > 0) & (exact.corrupt < 0)
    if not right.any():
        raise InputError(
            "the model prefers the right pronoun in no two twins, so there is no answer to look "
            "for; train it first"
        )
    kept = sentences[right]
    effects, estimates, decoder_effects = (
        np.asarray(jax.vmap(lambda each: each.effect)(jax.tree.map(lambda leaf: leaf[right], each)))
        for each in (exact, estimate, decoder)
    )
    real = kept.source_roles >= 0
    strongest = np.where(real[:, None], effects, -np.inf).argmax(-1)
    roles = np.take_along_axis(kept.source_roles, strongest, axis=-1)
    after_prediction = np.sign(np.arange(kept.target_in.shape[1]) - kept.position[:, None])
    row_roles = np.where(after_prediction > 0, -1, -after_prediction)  # 0: predicts, 1: before
    return RolePatching(
        encoder=role_means(effects, kept.source_roles, len(ROLES)),
        strongest=(roles[..., None] == np.arange(len(ROLES))).mean(0),
        decoder=role_means(decoder_effects, row_roles, 2),
        estimate_correlation=np.array(
            [
                np.corrcoef(effects[:, level][real], estimates[:, level][real])[0, 1]
                for level in range(1, effects.shape[1])
            ]
        ),
        sentences=len(kept),
    )


@functools.partial(jax.jit, static_argnames="config")
def _patched(
    params: Params, config: ModelConfig, sentences: Sentences
) -> tuple[patching.Patching, patching.Patching, patching.Patching]:
    """Encoder patching, its estimate, and decoder patching of each sentence."""

    def of_sentence(both: tuple[Sentences, Int[Array, " S"]]):
        one, corrupt = both
        runs = (params, config, one.source, corrupt, one.target_in, one.preference)
        return (
            patching.patch_sites(*runs),
            patching.attribution_patching(*runs),
            patching.patch_sites(*runs, side="decoder"),
        )

    both = (sentences, sentences.twins().source)
    return jax.lax.map(of_sentence, both, batch_size=PAIRS_AT_ONCE)


# Attribution.


@flax.struct.dataclass
class RoleAttribution:
    """Integrated gradients of the preference, in nats, averaged over sentences."""

    source: Float[np.ndarray, " R"]
    """By `ROLES`: the sum over a sentence's tokens of that role."""
    prefix: Float[np.ndarray, " P"]
    """By `PREFIX_ROLES`: the tokens that the decoder has read."""
    value: float
    """The preference, which equals the sum of all contributions and the baseline."""
    baseline: float
    relative_gap: Float[np.ndarray, " B"]
    """Relative completeness gap of each sentence."""


def role_attribution(
    params: Params, config: ModelConfig, sentences: Sentences, *, steps: int = 256
) -> RoleAttribution:
    """Attribute the preference to the tokens of the source and of the translation so far.

    Args:
      params: of the model.
      config: of the model.
      sentences: of `twins.read`.
      steps: as in `attribution.integrated_gradients`; `MORE_STEPS` times as many for sentences
        with a completeness gap above `LARGEST_GAP`.
    """
    result = jax.tree.map(np.array, _attributed(params, config, sentences, steps))
    [imprecise] = np.nonzero(_relative_gaps(result) > LARGEST_GAP)
    if len(imprecise):
        again = _attributed(params, config, sentences[imprecise], MORE_STEPS * steps)
        for leaf, better in zip(*map(jax.tree.leaves, (result, again)), strict=True):
            leaf[imprecise] = better
    return RoleAttribution(
        source=_role_sums(result.source, sentences.source_roles, len(ROLES)),
        prefix=_role_sums(result.target, sentences.prefix_roles, len(PREFIX_ROLES)),
        value=float(result.value.mean()),
        baseline=float(result.baseline.mean()),
        relative_gap=_relative_gaps(result),
    )


@functools.partial(jax.jit, static_argnames=("config", "steps"))
def _attributed(
    params: Params, config: ModelConfig, sentences: Sentences, steps: int
) -> attribution.Attribution:
    def of_sentence(one: Sentences) -> attribution.Attribution:
        return attribution.integrated_gradients(
            params, config, one.source, one.target_in, one.preference, steps=steps
        )

    return jax.lax.map(of_sentence, sentences)


def _relative_gaps(result: attribution.Attribution) -> Float[np.ndarray, " B"]:
    return np.asarray(jax.vmap(lambda each: each.relative_gap)(result))


# Aggregation by role.


def role_means(
    values: Float[np.ndarray, "B *P S"], roles: Int[np.ndarray, "B S"], number: int
) -> Float[np.ndarray, "*P R"]:
    """Mean over a sentence's tokens of each role, then over the sentences that have the role.

    Args:
      values: a number for each token, for example at several layers.
      roles: of the tokens, from 0; negative for tokens to ignore.
      number: of roles, R.

    Returns:
      NaN for a role without tokens.
    """
    of_role = np.eye(number)[roles] * (roles >= 0)[..., None]  # [B, S, R]
    tokens = of_role.sum(1)
    sums = np.einsum("B...S,BSR->B...R", values, of_role)
    shape = (len(values), *[1] * (values.ndim - 2), number)
    with np.errstate(invalid="ignore"):
        means = sums / tokens.reshape(shape)
        return np.nansum(means, 0) / (tokens > 0).sum(0)


def _role_sums(
    values: Float[np.ndarray, "B S"], roles: Int[np.ndarray, "B S"], number: int
) -> Float[np.ndarray, " R"]:
    """Sum over a sentence's tokens of each role, averaged over sentences."""
    return np.array([(values * (roles == role)).sum(-1).mean() for role in range(number)])


# The complete study of one model.


def measure(
    translator: Translator,
    *,
    translated: int = TRANSLATED,
    pairs: int = TWINS,
    attributed: int = ATTRIBUTED_TWINS,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Measure one model; returns values that JSON can represent.

    Args:
      translator: of a model trained on `pronouns`, to German.
      translated: number of sentences of each split to translate.
      pairs: number of pairs of twins of the test split to measure.
      attributed: number of pairs of twins for integrated gradients.
      steps: of integrated gradients.
    """
    params, config = translator.params, translator.config.model
    split = registry.load(translator.config.data, "test")
    sentences = twins.read(translator.tokenizer, split.examples, pairs)
    untrained = untrained_params(config, translator.config.training.seed)
    trained = coreference(params, config, sentences)
    removed = pronoun_ablation(params, config, sentences)
    description = describe(config)
    attention = [description.attention[side] for side in ("encoder", "decoder")]
    result = {
        "model": {
            "layers": [size.layers for size in attention],
            "d_model": description.d_model,
            "heads": [size.heads for size in attention],
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        },
        "pronoun_accuracy": {
            name: pronoun_accuracy(translator, name, translated) for name in ("test", "test_unseen")
        },
        "coreference": trained,
        "untrained": coreference(untrained, config, sentences),
        "ablation": removed,
        "rank_correlation": _rank_correlations(trained, removed),
        "patching": role_patching(params, config, sentences),
        "attribution": role_attribution(params, config, sentences[: 2 * attributed], steps=steps),
    }
    return _jsonable(result)


def pronoun_accuracy(translator: Translator, split: str, limit: int | None = None) -> float:
    """Share of ambiguous sentences whose pronoun is translated correctly.

    Args:
      translator: of a model trained on `pronouns`.
      split: of the corpus.
      limit: number of sentences, from the start; all by default.
    """
    examples = [
        example
        for example in registry.load(translator.config.data, split).examples
        if example["resolution"]
    ][:limit]
    translations = translator([example["source"] for example in examples])
    return pronoun_metrics(examples, [each.text for each in translations])["pronoun_accuracy"]


def _rank_correlations(
    read: Mapping[str, Coreference], removed: PronounAblation
) -> dict[str, float]:
    """Rank correlation of coreference score and damage, by kind of attention and overall."""
    scores = {kind: read[kind].score.ravel() for kind in KINDS}
    damages = {kind: getattr(removed.damage, kind).ravel() for kind in KINDS}
    scores["all"] = np.concatenate(list(scores.values()))
    damages["all"] = np.concatenate(list(damages.values()))
    return {kind: measures.rank_correlation(scores[kind], damages[kind]) for kind in scores}


def _jsonable(value: Any) -> Any:
    """Dataclasses as dicts, arrays as lists, floats rounded to four digits, NaN as None."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: _jsonable(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_jsonable(each) for each in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 4) if math.isfinite(value) else None
    return int(value)


def results() -> dict[str, Any]:
    """The committed results: ``command``, and ``models`` with what `measure` returned for each."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))
