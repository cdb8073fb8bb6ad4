# SPDX-License-Identifier: Apache-2.0
"""The measures of the study `antecedent` for one model, as numbers for its JSON file."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies import interchange
from experiments.studies.antecedent_effects import GROUPS, TWINS, Effects, Subject
from experiments.studies.antecedent_faithfulness import faithfulness
from experiments.studies.antecedent_sentences import ADJECTIVE
from experiments.studies.interchange import Sites
from experiments.studies.twins import ROLES, Sentences
from transformer.arrays import Array, Float, Params
from transformer.inspection import measures
from transformer.models.protocol import KINDS, Kind, Model
from transformer.text.tokenizer import Tokenizer


def measure(
    model: Model, params: Params, batch: Sentences, headline: Sentences, tokenizer: Tokenizer
) -> dict[str, Any]:
    """All measures of a trained model."""
    subject = Subject.of(model, params, batch)
    measured = paths(subject) | {
        "ablation": ablations(subject),
        "coreference": coreference(subject),
        "attribution": faithfulness(subject),
        "headline": example(subject, headline, tokenizer),
    }
    return rounded(measured)


def paths(subject: Subject) -> dict[str, Any]:
    """Accuracy, and the effects of memory, layers and heads."""
    measured: dict[str, Any] = {
        "right": float((subject.preference > 0).mean()),
        "preference": float(subject.preference.mean()),
        "sentences": len(subject.batch),
    }
    for name, kind in TWINS.items():
        effects = Effects(subject, kind, subject.donor(kind))
        measured[name] = {
            "right": int(effects.right.sum()),
            **memory(effects),
            "encoder": encoder_map(effects),
            "decoder": decoder_map(effects),
            "heads": heads(effects),
            "paths": path_patching(effects),
        }
    return measured


def quick(model: Model, params: Params, batch: Sentences) -> dict[str, Any]:
    """The measures of a stage of training: accuracy, memory, and coreference scores."""
    subject = Subject.of(model, params, batch)
    measured: dict[str, Any] = {"right": float((subject.preference > 0).mean())}
    for name, kind in TWINS.items():
        effects = Effects(subject, kind, subject.donor(kind))
        measured[name] = {"right": int(effects.right.sum()), **memory(effects)}
    return rounded(measured | {"coreference": coreference(subject)})


# Activation patching.


def memory(effects: Effects) -> dict[str, Any]:
    """Effects of the encoder's output, by group of tokens.

    ``memory``: one group is the twin's; ``rest``: all except the group; ``clause_first`` and
    ``event_first``: ``memory`` of sentences of these two orders. In the first the target read so
    far has no noun; in the second it has the translations of both.
    """
    subject = effects.subject
    position = np.where(subject.has_roles(["it"]), np.arange(subject.batch.source.shape[1]), 99)
    noun = np.where(subject.has_roles(["antecedent"]), np.arange(position.shape[1]), 99)
    first = position.min(1) < noun.min(1)
    orders = {"clause_first": first, "event_first": ~first}
    result: dict[str, Any] = {"memory": {}, "rest": {}, **{order: {} for order in orders}}
    everything = tuple(role for roles in GROUPS.values() for role in roles)
    for name, roles in {**GROUPS, "all": everything}.items():
        edit = subject.nothing()
        chosen = subject.has_roles(roles)
        edit.encoder_residual[:, -1] = chosen
        preference, _ = subject.edited(effects.donor, edit)
        result["memory"][name] = effects.with_interval(preference)
        for order, rows in orders.items():
            part = dataclasses.replace(effects, rows=rows)
            result[order][name] = part.with_interval(preference)
        if name in ("it", "adjective", "nouns"):
            edit.encoder_residual[:, -1] = subject.has_roles(everything) & ~chosen
            result["rest"][name] = effects.of_edit(edit)
    return result


def encoder_map(effects: Effects) -> list[list[float]]:
    """Effect of each role after each layer of the encoder."""
    subject = effects.subject

    def effect(level: int, role: str) -> float:
        edit = subject.nothing()
        edit.encoder_residual[:, level] = subject.has_roles([role])
        return effects.of_edit(edit)

    levels = subject.nothing().encoder_residual.shape[1]
    return [[effect(level, role) for role in ROLES] for level in range(1, levels)]


def decoder_map(effects: Effects) -> dict[str, list[float]]:
    """Effect of the decoder's input and of each layer: the pronoun's row, and the rows before it.

    Rows before it are comparable in adjective twins only, whose prefixes are equal.
    """
    subject = effects.subject
    before = np.arange(subject.batch.target_in.shape[1]) < subject.batch.position[:, None]
    rows = {"pronoun": subject.has_pronoun_row}
    if effects.kind == ADJECTIVE:
        rows["before"] = before

    def effect(level: int, chosen: np.ndarray) -> float:
        edit = subject.nothing()
        edit.decoder_residual[:, level] = chosen
        return effects.of_edit(edit)

    levels = subject.nothing().decoder_residual.shape[1]
    return {
        name: [effect(level, chosen) for level in range(levels)] for name, chosen in rows.items()
    }


def heads(effects: Effects) -> dict[str, Any]:
    """Effects of each head, of each layer's heads, and of all heads of a kind.

    ``it``: encoder heads in the row of "it"; ``adjective``: in the adjective's row; ``cross`` and
    ``decoder``: in the row that predicts the pronoun. ``output`` is the head's output, ``pattern``
    its attention weights alone, which then read the values of the sentence itself. Patterns of the
    decoder's self-attention are left out: the keys of noun twins are not comparable.
    """
    subject = effects.subject
    pronoun = subject.has_pronoun_row
    rows: dict[str, tuple[str, Kind, np.ndarray]] = {
        "it output": ("heads", "encoder", subject.has_roles(["it"])),
        "it pattern": ("patterns", "encoder", subject.has_roles(["it"])),
        "adjective output": ("heads", "encoder", subject.has_roles(["adjective"])),
        "cross output": ("heads", "cross", pronoun),
        "cross pattern": ("patterns", "cross", pronoun),
        "decoder output": ("heads", "decoder", pronoun),
    }
    single = ("it output", "it pattern", "cross output") if effects.kind == ADJECTIVE else ()
    result: dict[str, Any] = {}
    for name, (site, kind, row) in rows.items():
        effect = functools.partial(_head_effect, effects, site, kind, row)
        layers, number = getattr(subject.nothing(), site)[kind].shape[1:3]
        result[name] = {
            "layers": [effect((layer, slice(None))) for layer in range(layers)],
            "all": effect((slice(None), slice(None))),
        }
        if name in single:
            result[name]["heads"] = [
                [effect((layer, head)) for head in range(number)] for layer in range(layers)
            ]
    return result


def _head_effect(
    effects: Effects, site: str, kind: Kind, row: np.ndarray, chosen: tuple[Any, Any]
) -> float:
    edit = effects.subject.nothing()
    layer, head = chosen
    mask = getattr(edit, site)[kind]  # [B, L, N, T]
    mask[:, layer, head] = row.reshape(len(row), *[1] * (mask[:, layer, head].ndim - 2), -1)
    return effects.of_edit(edit)


def path_patching(effects: Effects) -> dict[str, Any]:
    """Effects of paths: what a receiver computes after the sender alone is the twin's.

    ``to_cross``: from a group of the memory through the cross-attention of one layer in the
    pronoun's row, and through no other head; ``through_it``: from the heads of an encoder layer in
    the row of "it" through the memory of "it".
    """
    subject = effects.subject
    result: dict[str, Any] = {"to_cross": {}}
    for name, roles in GROUPS.items():
        sender = subject.nothing()
        sender.encoder_residual[:, -1] = subject.has_roles(roles)
        _, sent = subject.edited(effects.donor, sender)
        received = dataclasses.replace(effects, donor=sent)
        pronoun = subject.has_pronoun_row
        layers = range(sender.heads["cross"].shape[1])
        result["to_cross"][name] = [
            _head_effect(received, "heads", "cross", pronoun, (layer, slice(None)))
            for layer in layers
        ]
    through = []
    it = subject.has_roles(["it"])
    for layer in range(subject.nothing().heads["encoder"].shape[1]):
        sender = subject.nothing()
        sender.heads["encoder"][:, layer] = it[:, None]
        _, sent = subject.edited(effects.donor, sender)
        receiver = subject.nothing()
        receiver.encoder_residual[:, -1] = it
        through.append(dataclasses.replace(effects, donor=sent).of_edit(receiver))
    return result | {"through_it": through}


# Ablation.


def ablations(subject: Subject) -> dict[str, Any]:
    """Share of right answers without heads: one, a layer's, all of a kind, and pairs of a kind.

    ``zero``: outputs of 0; ``mean``: the mean over all tokens; ``resample``: those of another
    sentence, of equal lengths where there is one. In every row of the heads. ``pairs``, of the
    means, are in the order of `itertools.combinations`.
    """
    donors = {
        "zero": jax.tree.map(jnp.zeros_like, subject.activations),
        "mean": _means(subject),
        "resample": _resampled(subject),
    }
    result: dict[str, Any] = {}
    for mode, donor in donors.items():
        result[mode] = {}
        for kind in KINDS:
            right = functools.partial(_right_without, subject, donor, kind)
            layers, number = subject.nothing().heads[kind].shape[1:3]
            of_layer = [[(layer, head) for head in range(number)] for layer in range(layers)]
            every = [one for ones in of_layer for one in ones]
            result[mode][kind] = {"heads": [[right([one]) for one in ones] for ones in of_layer]}
            if mode == "mean":
                result[mode][kind]["layers"] = [right(ones) for ones in of_layer]
                result[mode][kind]["all"] = right(every)
                if kind != "decoder":
                    pairs = itertools.combinations(every, 2)
                    result[mode][kind]["pairs"] = [right(pair) for pair in pairs]
    return result


def _right_without(
    subject: Subject, donor: Sites, kind: Kind, removed: Sequence[tuple[int, int]]
) -> float:
    edit = subject.nothing()
    for layer, head in removed:
        edit.heads[kind][:, layer, head] = True
    return float((subject.edited(donor, edit)[0] > 0).mean())


def _means(subject: Subject) -> Sites:
    """The mean output of every head over all tokens, in the decoder up to the pronoun's row."""
    batch = subject.batch
    read = np.arange(batch.target_in.shape[1]) <= np.asarray(batch.position)[:, None]
    real = {"encoder": np.asarray(batch.source_roles) >= 0, "decoder": read, "cross": read}

    def mean(kind: Kind, array: Float[Array, "B L N T H"]) -> Float[Array, "B L N T H"]:
        weight = jnp.asarray(real[kind], array.dtype)
        average = jnp.einsum("BLNTH,BT->LNH", array, weight) / weight.sum()
        return jnp.broadcast_to(average[None, :, :, None], array.shape)

    heads = {kind: mean(kind, array) for kind, array in subject.activations.heads.items()}
    return subject.activations.replace(heads=heads)


def _resampled(subject: Subject) -> Sites:
    """The activations of another sentence for each, of another quadruple."""
    batch = subject.batch
    lengths = np.asarray((batch.source_roles >= 0).sum(1))
    it = np.asarray(batch.has_role("it").argmax(1))
    shape = np.stack([it, lengths, batch.position], 1)
    rng = np.random.default_rng(0)
    rows = []
    for row in range(len(batch)):
        distance = np.abs(shape - shape[row]).sum(1) + rng.random(len(batch)) / 2
        distance[4 * (row // 4) : 4 * (row // 4) + 4] = np.inf
        rows.append(int(distance.argmin()))
    shift = batch.position - batch.position[rows]
    return interchange.aligned(subject.activations[np.array(rows)], shift)


# Attention weights.


def coreference(subject: Subject) -> dict[str, Any]:
    """Coreference scores of all heads, with the threshold that chance exceeds in 2.5% of cases.

    Of the encoder in the row of "it", and of cross-attention in the row that predicts the pronoun.
    """
    batch, number = subject.batch, np.arange(len(subject.batch))
    signs = subject.has_roles(["antecedent"]) * 1.0 - subject.has_roles(["distractor"])
    rows = {"encoder": batch.has_role("it").argmax(1), "cross": np.asarray(batch.position)}
    result = {}
    for kind, row in rows.items():
        weights = np.asarray(subject.activations.patterns[kind], np.float64)[number, :, :, row]
        scores = np.einsum("BLNS,BS->BLN", weights, signs)
        # Quadruples are independent; positional effects cancel within twins.
        chance = measures.chance_threshold(scores.reshape(-1, 4, *scores.shape[1:]).mean(1))
        result[kind] = {
            "score": scores.mean(0),
            "ahead": measures.share_above_zero(scores),
            "chance": chance,
        }
    return result


# One example.


def example(subject: Subject, headline: Sentences, tokenizer: Tokenizer) -> dict[str, Any]:
    """The published twins: attention of every head, and the effect of every encoder site."""
    if not len(headline):
        return {}
    number = len(subject.batch)
    twice = headline[np.arange(number) % 2]
    of_headline = Subject.of(subject.model, subject.params, twice)
    edit = of_headline.nothing()
    levels, length = edit.encoder_residual.shape[1:]
    sites = [(level, s) for level in range(levels) for s in range(length)]
    effects = np.zeros((2, levels, length))
    # Rows 2i and 2i + 1 are the twins, of which each batch edits one site.
    for start in range(0, len(sites), number // 2):
        chunk = sites[start : start + number // 2]
        edit.encoder_residual[:] = False
        for row, site in enumerate(chunk):
            edit.encoder_residual[2 * row : 2 * row + 2, *site] = True
        preference, _ = of_headline.edited(of_headline.donor(ADJECTIVE), edit)
        before = of_headline.preference[:2]
        for row, (level, s) in enumerate(chunk):
            moved = before - preference[2 * row : 2 * row + 2]
            effects[:, level, s] = moved / before.sum()
    patterns = jax.tree.map(np.asarray, of_headline.activations.patterns)
    twins = []
    for row, one in enumerate(headline):
        real = np.asarray(one.source_roles) >= 0
        it = int(one.has_role("it").argmax())
        twins.append(
            {
                "words": tokenizer.pieces(one.source[real].tolist()),
                "target": tokenizer.pieces([int(t) for t in one.target if t]),
                "position": int(one.position),
                "preference": float(of_headline.preference[row]),
                "it": patterns["encoder"][row, :, :, it][..., real],
                "cross": patterns["cross"][row, :, :, int(one.position)][..., real],
                "effect": effects[row][:, real],
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
