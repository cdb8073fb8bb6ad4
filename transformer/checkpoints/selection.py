# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints of a run are the best, are kept, and are averaged (paper 6.1)."""

import dataclasses
import math
from typing import Literal

from transformer.config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as far as it is known before its arrays are read."""

    step: int
    score: float | None
    """Validation score at this step, if it was validated; higher is better."""


def score(metrics: dict[str, float], best_by: Literal["nll", "bleu"]) -> float:
    """Validation score by which checkpoints are ranked; higher is better."""
    return metrics["bleu"] if best_by == "bleu" else -metrics["nll"]


def best(checkpoints: list[Checkpoint]) -> Checkpoint | None:
    """Return the checkpoint with the best score, or the newest if none was validated.

    The newest of equal scores wins.
    """

    def rank(checkpoint: Checkpoint) -> tuple[float, int]:
        finite = math.isfinite(checkpoint.score)
        return checkpoint.score if finite else -math.inf, checkpoint.step

    validated = [one for one in checkpoints if one.score is not None]
    return max(validated, key=rank, default=checkpoints[-1] if checkpoints else None)


def retained(checkpoints: list[Checkpoint], config: TrainingConfig) -> list[Checkpoint]:
    """Return the last `keep_last` checkpoints, the best one and its neighbors.

    If more neighbors are kept than that, as many of the last are, because one may be the best next.
    """
    if not checkpoints:
        return []
    center = checkpoints.index(best(checkpoints))
    first = max(center - config.keep_around_best, 0)
    around = checkpoints[first : center + config.keep_around_best + 1]
    last = max(config.keep_last, config.keep_around_best)
    return [one for one in checkpoints if one in around + checkpoints[-last:]]


def averaged(
    checkpoints: list[Checkpoint], count: int, around: Checkpoint | None = None
) -> list[Checkpoint]:
    """Return the last `count` checkpoints, or those around the one given."""
    first = len(checkpoints) - count
    if around is not None:
        first = max(min(checkpoints.index(around) - count // 2, first), 0)
    return checkpoints[first : first + count]
