# SPDX-License-Identifier: Apache-2.0
"""From the measures of a model to its path, and from many models to shares and means.

The thresholds were fixed before the models of the study were measured. A part of the sentence
carries the choice of the noun if placing the twin's memory (the encoder's output) there moves the
model at least half the way to the twin's answer in adjective twins, and the gender if it does so in
noun twins. Where one part carries both, the encoder has put the answer there. Two rules are newer:
the class `ELIMINATION` was widened after the first model was measured, and a part counts only if
its interval lies above those of all other parts since the study was complete.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.studies.antecedent.effects import GROUPS
from transformer.models.protocol import KINDS

CARRIES = 0.5
"""Effect from which a part carries the choice of the noun, or the gender."""
LEARNED = 0.9
"""Share of right answers from which a model counts as one that resolves "it"."""
BACKS_UP = 0.05
"""A pair of heads replaces each other if the loss of both costs this much more accuracy than the
two losses together.
"""
ELIMINATION = "decoder by elimination"
UNDECIDED = "undecided"
NOT_LEARNED = "not learned"
PATHS = {
    "it": 'the encoder puts the answer at "it", and the decoder reads it there',
    "adjective": "the encoder puts the answer at the adjective",
    "nouns": "the encoder puts the answer at the nouns",
    "reason": "the encoder puts the answer at the rest of the reason",
    "rest": "the encoder puts the answer elsewhere",
    ELIMINATION: "choice and gender are in different parts, so what remains is that the decoder "
    "joins them",
    UNDECIDED: "no part carries the choice, or none the gender, with an interval above those of "
    "the other parts",
    NOT_LEARNED: "fewer than 90% of the answers are right",
}
"""The paths, by the part of the memory that carries the answer."""

Numbers = Mapping[str, Any]
"""The measures of one model, as its JSON file has them."""


def path(model: Numbers) -> str:
    """The path of a model: a key of `PATHS`."""
    if model["right"] < LEARNED:
        return NOT_LEARNED
    choice, gender = carrier(model, "adjective"), carrier(model, "noun")
    if choice is None or gender is None:
        return UNDECIDED
    return choice if choice == gender else ELIMINATION


def carrier(model: Numbers, kind: str) -> str | None:
    """The part that carries the choice (``adjective`` twins) or the gender (``noun`` twins).

    It is the part of the memory with the largest effect, if that is at least `CARRIES` and its
    interval lies above those of all other parts. The gender may also be in the ``prefix``, the
    target read so far: then less than half of it is in the whole memory where the prefix has the
    nouns, by its interval.

    Returns:
      None if no part alone carries it.
    """
    memory, best = model[kind]["memory"], leading(model, kind)
    if carried(model, kind)[best] >= CARRIES:
        runner_up = max(memory[group][2] for group in GROUPS if group != best)
        return best if memory[best][1] > runner_up else None
    if kind == "noun":
        high = model["noun"]["event_first"][2]
        return "prefix" if high is not None and high < CARRIES else None
    return None


def leading(model: Numbers, kind: str) -> str:
    """The part of the memory with the largest effect, in ``adjective`` or ``noun`` twins."""
    effects = carried(model, kind)
    return max(effects, key=effects.__getitem__)


def carried(model: Numbers, kind: str) -> dict[str, float]:
    """Effect of each part of the memory, in ``adjective`` or ``noun`` twins."""
    return {group: model[kind]["memory"][group][0] or 0.0 for group in GROUPS}


def reading_heads(model: Numbers, kind: str = "encoder") -> list[tuple[int, int]]:
    """Heads whose coreference score is above chance, as (layer, head) from 1."""
    measured = model["coreference"][kind]
    chosen = np.argwhere(np.asarray(measured["score"]) > measured["chance"])
    return [(int(layer) + 1, int(head) + 1) for layer, head in chosen]


def best_head(model: Numbers, kind: str = "encoder") -> tuple[tuple[int, int], float]:
    """The head with the highest coreference score, as (layer, head) from 1, and its score."""
    scores = np.asarray(model["coreference"][kind]["score"])
    layer, head = np.unravel_index(scores.argmax(), scores.shape)
    return (int(layer) + 1, int(head) + 1), float(scores.max())


def backed_up(model: Numbers, kind: str) -> tuple[tuple[str, str], float] | None:
    """The pair of heads whose joint loss costs most beyond the sum of both, and that excess."""
    measured = model["ablation"][kind]
    cost = {
        f"{layer}.{head}": model["right"] - right
        for layer, heads in enumerate(measured["heads"], 1)
        for head, right in enumerate(heads, 1)
    }
    excess = {
        (first, second): model["right"] - right - cost[first] - cost[second]
        for (first, second), right in zip(
            itertools.combinations(cost, 2), measured["pairs"], strict=True
        )
    }
    return max(excess.items(), key=lambda item: item[1]) if excess else None


# Over models.


class Share(NamedTuple):
    """Number of models that fulfill a condition, of all of them."""

    count: int
    total: int

    def __str__(self) -> str:
        low, high = wilson(self.count, self.total)
        return f"{self.count} of {self.total} ({low:.0%} to {high:.0%})"


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a share (1927)."""
    if not total:
        return 0.0, 1.0
    p, n = count / total, total
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, center - half), min(1.0, center + half)


class Mean(NamedTuple):
    """A mean and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:z.2f} ({self.low:z.2f} to {self.high:z.2f})"


def mean(values: Iterable[float | None]) -> Mean:
    """Mean over models and its 95% interval (percentile bootstrap over models)."""
    array = np.asarray([value for value in values if value is not None], float)
    if not len(array):
        return Mean(*[float("nan")] * 3)
    means = np.random.default_rng(0).choice(array, (2000, len(array))).mean(1)
    numbers = (array.mean(), *np.quantile(means, [0.025, 0.975]))
    return Mean(*(round(float(number), 3) for number in numbers))


def counts(models: Sequence[Numbers]) -> dict[str, int]:
    """Number of models of each path that occurs, in the order of `PATHS`."""
    occurring = Counter(map(path, models))
    return {name: occurring[name] for name in PATHS if occurring[name]}


def count_labels(models: Sequence[Numbers]) -> dict[str, str]:
    """The label of each path that occurs: ``it (1 of 25)`` that learned the task."""
    numbers = counts(models)
    learned = len(models) - numbers.get(NOT_LEARNED, 0)
    totals = {NOT_LEARNED: len(models)}
    return {
        name: f"{name} ({number} of {totals.get(name, learned)})"
        for name, number in numbers.items()
    }


def small_recipe(models: Sequence[Numbers]) -> list[Numbers]:
    """The models that README, page, atlas and picture count: those of the small recipe."""
    return [model for model in models if model.get("recipe") == "small"]


def statements(models: Sequence[Numbers]) -> dict[str, Any]:
    """Shares and means of a group of models; means are over those that have learned the task."""
    learned = [model for model in models if model["right"] >= LEARNED]
    kinds = ("encoder", "cross")

    def share(conditions: Iterable[bool]) -> Share:
        return Share(sum(conditions), len(learned))

    def excess(model: Numbers, kind: str) -> float:
        pair = backed_up(model, kind)
        return pair[1] if pair else 0.0

    return {
        "models": len(models),
        "learned": len(learned),
        "paths": {name: Share(number, len(learned)) for name, number in counts(learned).items()},
        "effects": {
            kind: {part: mean(carried(model, kind)[part] for model in learned) for part in GROUPS}
            for kind in ("adjective", "noun")
        },
        "gender": mean(model["noun"]["event_first"][0] for model in learned),
        "choice": {
            part: mean(model["adjective"]["cross_attention"][part] for model in learned)
            for part in ("output", "pattern")
        },
        "reading": {
            kind: share(bool(reading_heads(model, kind)) for model in learned) for kind in kinds
        },
        "score": {kind: mean(best_head(model, kind)[1] for model in learned) for kind in kinds},
        "pairs": {
            kind: share(excess(model, kind) >= BACKS_UP for model in learned) for kind in kinds
        },
        "without": {
            kind: mean(model["ablation"][kind]["all"] for model in learned) for kind in KINDS
        },
        "deletion": {
            order: mean(model["attribution"]["deletion"][order] for model in learned)
            for order in ("integrated gradients", "occlusion", "attention", "random")
        },
        "rank": {
            name: mean(model["attribution"]["rank_correlation"][name] for model in learned)
            for name in ("occlusion", "random decoder", "random all")
        },
    }
