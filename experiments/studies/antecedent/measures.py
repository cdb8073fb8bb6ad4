# SPDX-License-Identifier: Apache-2.0
"""The measures of the study for one model, as numbers for its JSON file."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.antecedent import resolution
from experiments.studies.antecedent.effects import GROUPS, TWINS, Effects, Subject
from experiments.studies.antecedent.faithfulness import faithfulness
from experiments.studies.antecedent.interchange import Sites
from experiments.studies.antecedent.sentences import ADJECTIVE
from experiments.studies.antecedent.twins import ROLES, Sentences
from transformer.arrays import Array, Float, Params
from transformer.models.protocol import Kind, Model
from transformer.text.tokenizer import Tokenizer

VERSION = 1
"""Part of the key of the measured files; increase it with every change of a measure."""


def measure(
    model: Model, params: Params, batch: Sentences, headline: Sentences, tokenizer: Tokenizer
) -> dict[str, Any]:
    """All measures of a trained model."""
    subject = Subject.of(model, params, batch)
    measured = {"sentences": len(batch), **_answers(subject)}
    for name, kind in TWINS.items():
        effects = Effects(subject, kind)
        measured[name] |= {
            "encoder": encoder_map(effects),
            "cross_attention": cross_attention(effects),
        }
    measured |= {
        "ablation": ablation(subject),
        "attribution": faithfulness(subject),
        "headline": example(subject, headline, tokenizer),
    }
    return rounded(measured)


def quick(model: Model, params: Params, batch: Sentences) -> dict[str, Any]:
    """The measures of a stage of training: accuracy, memory, and coreference scores."""
    return rounded(_answers(Subject.of(model, params, batch)))


def _answers(subject: Subject) -> dict[str, Any]:
    measured: dict[str, Any] = {"right": float((subject.preference > 0).mean())}
    for name, kind in TWINS.items():
        effects = Effects(subject, kind)
        measured[name] = {"right": int(effects.right.sum()), **memory(effects)}
    coreference = resolution.coreference(subject.model, subject.params, subject.batch, 4)
    heads = {
        kind: {"score": coreference[kind].score, "chance": coreference[kind].chance}
        for kind in ("encoder", "cross")
    }
    return measured | {"coreference": heads}


# Activation patching.


def memory(effects: Effects) -> dict[str, Any]:
    """Effects of the encoder's output, by group of tokens.

    ``memory``: one group is the twin's, or all are. ``event_first``: all are, in the sentences in
    which the decoder has read both nouns when it writes the pronoun ("Because it was too tired,
    ..." is not one of these).
    """
    subject = effects.subject
    event_first = subject.has_roles("antecedent").argmax(1) < subject.has_roles("it").argmax(1)
    preferences = {
        group: subject.with_residual(effects.donor, -1, subject.has_roles(*roles))
        for group, roles in {**GROUPS, "all": ROLES}.items()
    }
    return {
        "memory": {group: effects.with_interval(each) for group, each in preferences.items()},
        "event_first": dataclasses.replace(effects, rows=event_first).with_interval(
            preferences["all"]
        ),
    }


def encoder_map(effects: Effects) -> list[list[float]]:
    """Effect of each role after each layer of the encoder."""
    subject = effects.subject

    def effect(level: int, role: str) -> float:
        return effects.effect(subject.with_residual(effects.donor, level, subject.has_roles(role)))

    levels = subject.activations.residual.shape[1]
    return [[effect(level, role) for role in ROLES] for level in range(1, levels)]


def cross_attention(effects: Effects) -> dict[str, float]:
    """Effects of cross-attention in the row that predicts the pronoun.

    ``output`` is that of all heads; ``pattern`` their attention weights alone, which then read the
    values of the sentence itself.
    """
    measured = {}
    for name, field in {"output": "heads", "pattern": "patterns"}.items():
        edit = effects.subject.no_edit()
        getattr(edit, field)["cross"][:] = effects.subject.has_pronoun_row[:, None, None]
        measured[name] = effects.effect(effects.subject.edited(effects.donor, edit))
    return measured


# Ablation.


def ablation(subject: Subject) -> dict[str, Any]:
    """Share of right answers without heads: one, all of a kind, and pairs of a kind.

    Their outputs are replaced in every row by the mean over all tokens. ``pairs`` are in the order
    of `itertools.combinations`.
    """
    means, result = _means(subject), {}

    def right(kind: Kind, removed: Iterable[tuple[int, int]]) -> float:
        edit = subject.no_edit()
        for layer, head in removed:
            edit.heads[kind][:, layer, head] = True
        return float((subject.edited(means, edit) > 0).mean())

    for kind, array in subject.activations.heads.items():
        layers, number = map(range, array.shape[1:3])
        every = list(itertools.product(layers, number))
        result[kind] = {
            "heads": [[right(kind, [(layer, head)]) for head in number] for layer in layers],
            "all": right(kind, every),
        }
        if kind != "decoder":
            pairs = itertools.combinations(every, 2)
            result[kind]["pairs"] = [right(kind, pair) for pair in pairs]
    return result


def _means(subject: Subject) -> Sites:
    """The mean output of every head over all tokens, in the decoder up to the pronoun's row."""
    batch = subject.batch
    decoded = np.arange(batch.target_in.shape[1]) <= np.asarray(batch.position)[:, None]
    counted = {"encoder": np.asarray(batch.source_roles) >= 0, "decoder": decoded, "cross": decoded}

    def mean(kind: Kind, array: Float[Array, "B L N T H"]) -> Float[Array, "B L N T H"]:
        weight = jnp.asarray(counted[kind], array.dtype)
        average = jnp.einsum("BLNTH,BT->LNH", array, weight) / weight.sum()
        return jnp.broadcast_to(average[None, :, :, None], array.shape)

    heads = {kind: mean(kind, array) for kind, array in subject.activations.heads.items()}
    return subject.activations.replace(heads=heads)


# One example.


def example(subject: Subject, headline: Sentences, tokenizer: Tokenizer) -> dict[str, Any]:
    """The published twins: weights of every head, and the effect of each vector of the memory."""
    if not len(headline):
        return {}
    # As many rows as the quadruples have, so that one program serves both.
    rows = np.arange(len(subject.batch)) % 2
    repeated = Subject.of(subject.model, subject.params, headline[rows])
    effects, length = Effects(repeated, ADJECTIVE), headline.source.shape[1]
    before = repeated.preference[:2]
    patched = [
        repeated.with_residual(effects.donor, -1, np.arange(length) == s)[:2] for s in range(length)
    ]
    moved = (before[:, None] - np.stack(patched, 1)) / before.sum()
    patterns = jax.tree.map(np.asarray, repeated.activations.patterns)
    twins = []
    for row, sentence in enumerate(headline):
        tokens = np.asarray(sentence.source_roles) >= 0
        it, position = int(sentence.has_role("it").argmax()), int(sentence.position)
        twins.append(
            {
                "words": tokenizer.pieces(sentence.source[tokens].tolist()),
                "target": tokenizer.pieces([int(t) for t in sentence.target if t]),
                "position": position,
                "it": patterns["encoder"][row, :, :, it][..., tokens],
                "cross": patterns["cross"][row, :, :, position][..., tokens],
                "effect": moved[row][tokens],
            }
        )
    return {"twins": twins}


def rounded(values: Any) -> Any:
    """Numbers with 4 decimals, in lists and dictionaries; None for NaN."""
    if isinstance(values, Mapping):
        return {key: rounded(value) for key, value in values.items()}
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [rounded(value) for value in values]
    if isinstance(values, float | np.floating):
        return round(float(values), 4) if np.isfinite(values) else None
    return values
