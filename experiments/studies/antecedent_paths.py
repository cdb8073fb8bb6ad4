# SPDX-License-Identifier: Apache-2.0
"""From the measures of the study `antecedent` to its statements; the thresholds are here.

They were fixed before the models of the study were measured. A part of the sentence carries the
choice of the noun if placing the twin's memory (the encoder's output) there moves the model at
least half the way to the twin's answer in adjective twins, and the gender if it does so in noun
twins. Where one part carries both, the encoder has put the answer there.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.studies.antecedent_effects import GROUPS

CARRIES = 0.5
"""Effect from which a part carries the choice of the noun, or the gender."""
LEARNED = 0.9
"""Share of right answers from which a model counts as one that resolves "it"."""
BACKS_UP = 0.05
"""A pair of heads replaces each other if the loss of both costs this much more accuracy than the
two losses together.
"""

PATHS = {
    "it": 'the encoder puts the answer at "it", and the decoder reads it there',
    "adjective": "the encoder puts the answer at the adjective",
    "nouns": "the encoder puts the answer at the nouns",
    "reason": "the encoder puts the answer at the rest of the reason",
    "rest": "the encoder puts the answer elsewhere",
    "decoder": "choice and gender are in different parts, and the decoder joins them",
    "several": "no part alone carries the choice, or none the gender",
    "not learned": "fewer than 90% of the answers are right",
}
"""The paths, by the part of the memory that carries the answer. ``decoder`` first meant only that
the gender comes from the prefix; it was widened to the nouns after the first model was measured.
"""


def path(model: Mapping[str, Any]) -> str:
    """The path of a model: a key of `PATHS`."""
    if model["right"] < LEARNED:
        return "not learned"
    choice, gender = carrier(model, "adjective"), carrier(model, "noun")
    if choice is None or gender is None:
        return "several"
    return choice if choice == gender else "decoder"


def carrier(model: Mapping[str, Any], kind: str) -> str | None:
    """The part that carries the choice (``adjective`` twins) or the gender (``noun`` twins).

    The part of the memory with the largest effect, if that is at least `CARRIES`. For the gender
    ``prefix``, the target read so far, if the whole memory has less where the prefix has the nouns.
    None if no part alone carries it.
    """
    effects = carried(model, kind)
    best = max(effects, key=effects.__getitem__)
    if effects[best] >= CARRIES:
        return best
    of_memory = model["noun"]["event_first"]["all"][0]
    in_prefix = kind == "noun" and of_memory is not None and of_memory < CARRIES
    return "prefix" if in_prefix else None


def carried(model: Mapping[str, Any], kind: str) -> dict[str, float]:
    """Effect of each part of the memory, in ``adjective`` or ``noun`` twins."""
    memory = model[kind]["memory"]
    return {group: _number(memory[group][0]) for group in GROUPS}


def _number(value: float | None) -> float:
    return 0.0 if value is None else value


def reading_heads(model: Mapping[str, Any], kind: str = "encoder") -> list[tuple[int, int]]:
    """Heads whose coreference score is above chance, as (layer, head) from 1."""
    scores = np.asarray(model["coreference"][kind]["score"])
    chosen = np.argwhere(scores > model["coreference"][kind]["chance"])
    return [(int(layer) + 1, int(head) + 1) for layer, head in chosen]


def best_head(model: Mapping[str, Any], kind: str = "encoder") -> tuple[tuple[int, int], float]:
    """The head with the highest coreference score, as (layer, head) from 1, and its score."""
    scores = np.asarray(model["coreference"][kind]["score"])
    layer, head = np.unravel_index(scores.argmax(), scores.shape)
    return (int(layer) + 1, int(head) + 1), float(scores.max())


def backed_up(model: Mapping[str, Any], kind: str) -> tuple[tuple[str, str], float] | None:
    """The pair of heads whose joint loss costs most beyond the sum of both, and that excess.

    Args:
      model: the numbers of one model.
      kind: of attention, ``encoder`` or ``cross``.
    """
    measured = model["ablation"]["mean"][kind]
    names, right = [], []
    for layer, heads in enumerate(measured["heads"], 1):
        for head, value in enumerate(heads, 1):
            names.append(f"{layer}.{head}")
            right.append(value)
    whole = model["right"]
    excesses = {}
    pairs = itertools.combinations(range(len(names)), 2)
    for (i, j), value in zip(pairs, measured["pairs"], strict=True):
        excess = (whole - value) - (whole - right[i]) - (whole - right[j])
        excesses[names[i], names[j]] = excess
    return max(excesses.items(), key=lambda item: item[1]) if excesses else None


# Over models.


def share(models: Sequence[Any], condition: Callable[[Any], bool]) -> dict[str, Any]:
    """How many models fulfill a condition, with Wilson's 95% interval of the share."""
    count, total = sum(map(condition, models)), len(models)
    low, high = wilson(count, total)
    return {"count": count, "of": total, "interval": [round(low, 3), round(high, 3)]}


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a share (1927)."""
    if not total:
        return 0.0, 1.0
    p, n = count / total, total
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, center - half), min(1.0, center + half)


def mean_interval(values: Sequence[float], seed: int = 0) -> list[float]:
    """Mean over models and its 95% interval (percentile bootstrap over models)."""
    array = np.asarray([value for value in values if value is not None], float)
    if not len(array):
        return [float("nan")] * 3
    rng = np.random.default_rng(seed)
    means = rng.choice(array, (2000, len(array))).mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return [round(float(each), 3) for each in (array.mean(), low, high)]


def statements(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of a group of models: shares with intervals, and means with intervals."""
    learned = [model for model in models if model["right"] >= LEARNED]

    def mean(number: Callable[[Mapping[str, Any]], float | None]) -> list[float]:
        return mean_interval([number(model) for model in learned])

    result: dict[str, Any] = {
        "models": len(models),
        "learned": share(models, lambda model: model["right"] >= LEARNED),
        "paths": {
            name: share(learned, lambda model, name=name: path(model) == name)
            for name in PATHS
            if name != "not learned"
        },
        "choice": dict(Counter(str(carrier(model, "adjective")) for model in learned)),
        "gender": dict(Counter(str(carrier(model, "noun")) for model in learned)),
        "effects": {
            kind: {
                group: mean(lambda model, kind=kind, group=group: carried(model, kind)[group])
                for group in GROUPS
            }
            for kind in ("adjective", "noun")
        },
        "gender of the whole memory": {
            order: mean(lambda model, order=order: model["noun"][order]["all"][0])
            for order in ("event_first", "clause_first")
        },
        "choice in cross-attention": {
            part: mean(lambda model, part=part: model["adjective"]["heads"][f"cross {part}"]["all"])
            for part in ("output", "pattern")
        },
        "heads that read the noun": {
            kind: share(learned, lambda model, kind=kind: bool(reading_heads(model, kind)))
            for kind in ("encoder", "cross")
        },
        "best coreference score": {
            kind: mean(lambda model, kind=kind: best_head(model, kind)[1])
            for kind in ("encoder", "cross")
        },
        "pairs that replace each other": {
            kind: share(learned, lambda model, kind=kind: _excess(model, kind) >= BACKS_UP)
            for kind in ("encoder", "cross")
        },
        "right without": {
            kind: mean(lambda model, kind=kind: model["ablation"]["mean"][kind]["all"])
            for kind in ("encoder", "decoder", "cross")
        },
        "deletion": {
            order: [
                mean(
                    lambda model, order=order, deleted=deleted: model["attribution"]["deletion"][
                        order
                    ][deleted]
                )
                for deleted in (1, 2, 3)
            ]
            for order in ("integrated gradients", "occlusion", "attention", "random")
        },
        "rank correlation": {
            name: mean(lambda model, name=name: model["attribution"]["rank_correlation"][name])
            for name in ("occlusion", "random decoder", "random all")
        },
    }
    return result


def _excess(model: Mapping[str, Any], kind: str) -> float:
    pair = backed_up(model, kind)
    return pair[1] if pair else 0.0
