# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints of a run are the best, are kept, and are averaged (paper 6.1)."""

import dataclasses
import math
from typing import Literal

import jax

from transformer.arrays import Params
from transformer.config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What is known of a checkpoint before its arrays are read."""

    step: int
    metrics: dict[str, float] | None
    """Validation scores at this step, if it was validated."""
    problem: str | None = None
    verifiable: bool = True
    """Whether its digests can be read."""


def score(metrics: dict[str, float], best_by: Literal["nll", "bleu"]) -> float:
    """Validation score by which checkpoints are ranked; higher is better."""
    return metrics["bleu"] if best_by == "bleu" else -metrics["nll"]


def best(checkpoints: list[Checkpoint], best_by: Literal["nll", "bleu"]) -> Checkpoint | None:
    """Return the checkpoint with the best score, or the newest if none was validated.

    Checkpoints with a problem count only if all have one. The newest of equal scores wins.
    """
    candidates = [one for one in checkpoints if one.problem is None] or checkpoints

    def rank(checkpoint: Checkpoint) -> tuple[float, int]:
        value = score(checkpoint.metrics, best_by)
        return (value if math.isfinite(value) else -math.inf), checkpoint.step

    validated = [one for one in candidates if one.metrics is not None]
    return max(validated, key=rank, default=candidates[-1] if candidates else None)


def retained(checkpoints: list[Checkpoint], config: TrainingConfig) -> list[Checkpoint]:
    """Return the last `keep_last` checkpoints, the best one and its neighbors."""
    center = checkpoints.index(best(checkpoints, config.best_by))
    neighbors = range(center - config.keep_around_best, center + config.keep_around_best + 1)
    first_of_last = len(checkpoints) - config.keep_last
    return [
        checkpoint
        for index, checkpoint in enumerate(checkpoints)
        if index >= first_of_last or index in neighbors
    ]


def averaged(
    checkpoints: list[Checkpoint], count: int, around: Checkpoint | None = None
) -> list[Checkpoint]:
    """Return the last `count` checkpoints, or the `count` nearest to the one given.

    Half of the neighbors are older and half are newer, as far as they exist.
    """
    first = len(checkpoints) - count
    if around is not None:
        first = max(min(checkpoints.index(around) - count // 2, first), 0)
    return checkpoints[first : first + count]


def average_params(params: list[Params]) -> Params:
    """Return the mean of several parameter trees, leaf by leaf."""
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *params)
