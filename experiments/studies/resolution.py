# SPDX-License-Identifier: Apache-2.0
"""How a model finds what "it" refers to: where heads read, what is lost without them, which places
carry the answer, which words it rests on. Over many sentences, not one.

The measures are those of `transformer.inspection`; here they are taken of all sentences and put
together by what each token is (`twins.ROLES`). The answer is in all of them the same number: by how
many nats the right pronoun is preferred to the one that the twin has in its place.
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
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import ablation, attribution, measures, patching
from transformer.inspection.alignment import untrained_params
from transformer.inspection.trace import run
from transformer.nn.capture import KINDS, PerHead
from transformer.translator import Translator

TRANSLATED = 600
"""Sentences of a split whose pronouns are counted."""
TWINS = 150
"""Pairs of sentences that all else but the attribution is measured on."""
ATTRIBUTED_TWINS = 20
STEPS = 1024
"""Of integrated gradients."""
MORE_STEPS = 16
"""Times so many for a sentence whose completeness gap is above this."""
LARGEST_GAP = 0.02

RESULTS = pathlib.Path(__file__).parent / "results" / "antecedent.json"
"""What `experiments.studies.antecedent` found, beside the code that it comes from."""

PAIRS_AT_ONCE = 8
"""Sentences that are computed together, times all the sites of a stack."""


# Where heads read.


@flax.struct.dataclass
class Coreference:
    """Of every head of one kind, over sentences that come in twins."""

    score: Float[np.ndarray, "L N"]
    """The mean coreference score: the weight on the antecedent less that on the distractor."""
    standard_error: Float[np.ndarray, "L N"]
    """Of the mean, over twins."""
    antecedent_ahead: Float[np.ndarray, "L N"]
    """The share of sentences in which the antecedent has more of the weight; by chance a half."""
    antecedent: Float[np.ndarray, "L N"]
    """The mean weight on the antecedent."""
    distractor: Float[np.ndarray, "L N"]
    adjective: Float[np.ndarray, "L N"]
    """The mean weight on the adjective, which tells the nouns apart; 0 in the decoder's own
    attention, which does not see it.
    """
    chance: float
    """Of as many heads that cannot tell the nouns apart, the best is below this in 95 of 100."""
    sentences: int


def coreference(
    params: Params, config: TransformerConfig, sentences: Sentences
) -> dict[str, Coreference]:
    """What every head reads for the pronoun, by kind of attention.

    In the encoder the row is that of "it". In the decoder and in encoder-decoder attention it is
    the row that predicts the pronoun. In the decoder the nouns are those of the translation so far,
    and only the sentences count in which it has both.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      sentences: twins.
    """
    weights = _noun_weights(params, config, sentences)
    both_read = np.all(
        [sentences.has_prefix_role(noun).any(-1) for noun in ("antecedent", "distractor")], axis=0
    )
    found = {}
    for kind in KINDS:
        read = np.asarray(getattr(weights, kind), np.float64)
        antecedent, distractor, adjective = read[:, both_read] if kind == "decoder" else read
        scores = antecedent - distractor
        # What goes by position alone cancels within twins, whose nouns stand in the same places.
        of_twins = scores.reshape(-1, 2, *scores.shape[1:]).mean(1)
        summary = measures.coreference_summary(of_twins)
        found[kind] = Coreference(
            score=np.asarray(summary.mean),
            standard_error=np.asarray(summary.standard_error),
            antecedent_ahead=np.asarray(measures.coreference_summary(scores).share),
            antecedent=antecedent.mean(0),
            distractor=distractor.mean(0),
            adjective=adjective.mean(0),
            chance=measures.chance_threshold(of_twins),
            sentences=len(scores),
        )
    return found


@functools.partial(jax.jit, static_argnames="config")
def _noun_weights(params: Params, config: TransformerConfig, sentences: Sentences) -> PerHead:
    """``[3,B,L,N]``: from the pronoun's row, the weight on antecedent, distractor and adjective."""

    def of_sentence(one: Sentences) -> PerHead:
        _, trace = run(params, config, one.source, one.target_in, capture="weights")
        predicting = jnp.arange(one.target_in.shape[0]) == one.position
        rows = {"encoder": one.has_role("it"), "decoder": predicting, "cross": predicting}

        def all_three(kind: str) -> Float[Array, "3 L N"]:
            of_keys = [one.has_role(word) for word in ("antecedent", "distractor", "adjective")]
            if kind == "decoder":
                nouns = [one.has_prefix_role(noun) for noun in ("antecedent", "distractor")]
                of_keys = [*nouns, jnp.zeros_like(nouns[0])]
            weights, nothing = trace.attention(kind).weights, jnp.zeros_like(of_keys[0])
            return jnp.stack(
                [measures.coreference_score(weights, rows[kind], key, nothing) for key in of_keys]
            )

        return PerHead(**{kind: all_three(kind) for kind in KINDS})

    each = jax.lax.map(of_sentence, sentences, batch_size=64)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), each)


# What is lost without a head.


@flax.struct.dataclass
class PronounAblation:
    """What is lost without each head."""

    preference: float
    """With every head: by how many nats the right pronoun is preferred to the twin's."""
    right: float
    """The share of sentences in which it is preferred."""
    damage: PerHead
    """By how many nats the preference falls without the head."""
    right_without: PerHead
    """The share of sentences in which the right pronoun is still preferred."""
    loss: float
    """With every head, in nats a target token."""
    loss_increase: PerHead


def pronoun_ablation(
    params: Params, config: TransformerConfig, sentences: Sentences
) -> PronounAblation:
    """Removes every head alone, and measures the pronoun and the loss.

    Args:
      params: of the model that `config` describes.
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


# Which places carry the answer.


@flax.struct.dataclass
class RolePatching:
    """What comes back of the answer when one site of the twin's run is overwritten."""

    encoder: Float[np.ndarray, "P R"]
    """At the encoder's input and after each layer, by `ROLES`: the mean over a sentence's tokens of
    that role, then over sentences; NaN for a role that no token has.
    """
    strongest: Float[np.ndarray, "P R"]
    """The share of sentences whose site with the greatest effect has this role."""
    decoder: Float[np.ndarray, "Q 2"]
    """In the decoder: at the row that predicts the pronoun, and the mean of the rows before it."""
    estimate_correlation: Float[np.ndarray, " P"]
    """Of attribution patching with this, over all encoder sites after each layer."""
    sentences: int
    """Those in which the model prefers the right pronoun, in their twins too."""


def role_patching(params: Params, config: TransformerConfig, sentences: Sentences) -> RolePatching:
    """Patches every sentence's twin with the sentence's own run, site by site.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      sentences: twins.

    Raises:
      InputError: when the model is right about no two twins.
    """
    found = jax.tree.map(np.asarray, _patched(params, config, sentences))
    exact, estimate, decoder = found
    right = (exact.clean > 0) & (exact.corrupt < 0)
    if not right.any():
        raise InputError(
            "the model prefers the right pronoun in no two twins, so there is no answer to look "
            "for; train it first"
        )
    kept = sentences[right]
    effects, estimated, later = (
        jax.vmap(lambda each: each.effect)(jax.tree.map(lambda leaf: leaf[right], each))
        for each in (exact, estimate, decoder)
    )
    effects, estimated, later = (np.asarray(each) for each in (effects, estimated, later))
    real = kept.source_roles >= 0
    greatest = np.where(real[:, None], effects, -np.inf).argmax(-1)
    roles = np.take_along_axis(kept.source_roles, greatest, axis=-1)
    rows = np.arange(kept.target_in.shape[1])
    asked = np.where(
        rows == kept.position[:, None], 0, np.where(rows < kept.position[:, None], 1, -1)
    )
    return RolePatching(
        encoder=role_means(effects, kept.source_roles, len(ROLES)),
        strongest=(roles[..., None] == np.arange(len(ROLES))).mean(0),
        decoder=role_means(later, asked, 2),
        estimate_correlation=np.array(
            [
                np.corrcoef(effects[:, place][real], estimated[:, place][real])[0, 1]
                for place in range(1, effects.shape[1])
            ]
        ),
        sentences=len(kept),
    )


@functools.partial(jax.jit, static_argnames="config")
def _patched(
    params: Params, config: TransformerConfig, sentences: Sentences
) -> tuple[patching.Patching, patching.Patching, patching.Patching]:
    """Encoder patching, its estimate by attribution, and decoder patching, of each sentence."""

    def of_sentence(both: tuple[Sentences, Int[Array, " S"]]):
        one, corrupt = both
        pair = (params, config, one.source, corrupt, one.target_in, one.preference)
        return (
            patching.patch_sites(*pair),
            patching.attribution_patching(*pair),
            patching.patch_sites(*pair, side="decoder"),
        )

    both = (sentences, sentences.twins().source)
    return jax.lax.map(of_sentence, both, batch_size=PAIRS_AT_ONCE)


# Which words the answer rests on.


@flax.struct.dataclass
class RoleAttribution:
    """Integrated gradients of the preference, in nats, on average over sentences."""

    source: Float[np.ndarray, " R"]
    """By `ROLES`: the sum over a sentence's tokens of that role."""
    prefix: Float[np.ndarray, " P"]
    """By `PREFIX_ROLES`, the tokens that the decoder has read."""
    value: float
    """The preference, to which all of the above and the baseline add up."""
    baseline: float
    """The preference where no position has a word."""
    relative_gap: Float[np.ndarray, " B"]
    """Of each sentence, by how much its contributions miss what they should add up to."""


def role_attribution(
    params: Params, config: TransformerConfig, sentences: Sentences, *, steps: int = 256
) -> RoleAttribution:
    """Attributes the preference to the words of source and translation so far.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      sentences: twins or not.
      steps: as in `attribution.integrated_gradients`; `MORE_STEPS` times as many for sentences
        whose completeness gap is above `LARGEST_GAP` with them.
    """
    found = jax.tree.map(np.array, _attributed(params, config, sentences, steps))
    [short] = np.nonzero(_relative_gaps(found) > LARGEST_GAP)
    if len(short):
        again = _attributed(params, config, sentences[short], MORE_STEPS * steps)
        for leaf, better in zip(*map(jax.tree.leaves, (found, again)), strict=True):
            leaf[short] = better
    return RoleAttribution(
        source=_role_sums(found.source, sentences.source_roles, len(ROLES)),
        prefix=_role_sums(found.target, sentences.prefix_roles, len(PREFIX_ROLES)),
        value=float(found.value.mean()),
        baseline=float(found.baseline.mean()),
        relative_gap=_relative_gaps(found),
    )


@functools.partial(jax.jit, static_argnames=("config", "steps"))
def _attributed(
    params: Params, config: TransformerConfig, sentences: Sentences, steps: int
) -> attribution.Attribution:
    def of_sentence(one: Sentences) -> attribution.Attribution:
        return attribution.integrated_gradients(
            params, config, one.source, one.target_in, one.preference, steps=steps
        )

    return jax.lax.map(of_sentence, sentences)


def _relative_gaps(found: attribution.Attribution) -> Float[np.ndarray, " B"]:
    return np.asarray(jax.vmap(lambda each: each.relative_gap)(found))


# Numbers of tokens put together by what the tokens are.


def role_means(
    values: Float[np.ndarray, "B *P S"], roles: Int[np.ndarray, "B S"], number: int
) -> Float[np.ndarray, "*P R"]:
    """For each role the mean over a sentence's tokens that have it, then over the sentences.

    Args:
      values: a number for each token; of several places, for instance.
      roles: of the tokens, from 0; below 0 where a token does not count.
      number: of roles, R.

    Returns:
      NaN for a role that no token has.
    """
    of_role = np.eye(number)[roles] * (roles >= 0)[..., None]
    tokens = of_role.sum(1)
    sums = np.einsum("B...S,BSR->B...R", values, of_role)
    shape = (len(values), *[1] * (values.ndim - 2), number)
    with np.errstate(invalid="ignore"):
        means = sums / tokens.reshape(shape)
        return np.nansum(means, 0) / (tokens > 0).sum(0)


def _role_sums(
    values: Float[np.ndarray, "B S"], roles: Int[np.ndarray, "B S"], number: int
) -> Float[np.ndarray, " R"]:
    """For each role the sum over a sentence's tokens that have it, on average over sentences."""
    return np.array([(values * (roles == role)).sum(-1).mean() for role in range(number)])


# All of it, of one model.


def measure(
    translator: Translator,
    *,
    translated: int = TRANSLATED,
    pairs: int = TWINS,
    attributed: int = ATTRIBUTED_TWINS,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Everything that the study knows of one model, as JSON has it: lists in place of arrays.

    Args:
      translator: of a model that was trained on `pronouns`, to German.
      translated: how many sentences of each split are translated.
      pairs: how many pairs of twins of the test split are measured.
      attributed: and how many with integrated gradients.
      steps: of integrated gradients.
    """
    params, config = translator.params, translator.config.model
    split = registry.load(translator.config.data, "test")
    sentences = twins.read(translator.tokenizer, split.examples, pairs)
    few = sentences[: 2 * attributed]
    untrained = untrained_params(config, translator.config.training.seed)
    trained = coreference(params, config, sentences)
    removed = pronoun_ablation(params, config, sentences)
    result = {
        "model": {
            "layers": [config.depth(side) for side in ("encoder", "decoder")],
            "d_model": config.d_model,
            "heads": [config.heads(side) for side in ("encoder", "decoder")],
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
        "attribution": role_attribution(params, config, few, steps=steps),
    }
    return _plain(result)


def pronoun_accuracy(translator: Translator, split: str, most: int | None = None) -> float:
    """The share of the sentences that take understanding whose pronoun is translated rightly.

    Args:
      translator: of a model that was trained on `pronouns`.
      split: of the corpus.
      most: so many sentences, the first; all unless given.
    """
    examples = [
        example
        for example in registry.load(translator.config.data, split).examples
        if example["resolution"]
    ][:most]
    translations = translator([example["source"] for example in examples])
    return pronoun_metrics(examples, [each.text for each in translations])["pronoun_accuracy"]


def _rank_correlations(
    read: Mapping[str, Coreference], removed: PronounAblation
) -> dict[str, float]:
    """Of a head's coreference score with the damage that its removal does, by kind and of all."""
    scores = [read[kind].score.ravel() for kind in KINDS]
    damages = [getattr(removed.damage, kind).ravel() for kind in KINDS]
    return {
        name: measures.rank_correlation(score, damage)
        for name, score, damage in zip(
            [*KINDS, "all"],
            [*scores, np.concatenate(scores)],
            [*damages, np.concatenate(damages)],
            strict=True,
        )
    }


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries, arrays as lists, numbers with four digits, NaN as None."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 4) if math.isfinite(value) else None
    return int(value)


def results() -> dict[str, Any]:
    """The committed results: ``command``, and under ``models`` what `measure` gave of each."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))
