# SPDX-License-Identifier: Apache-2.0
"""Draw a validation score of several trainings as they learned.

python -m experiments.studies.learning_curves --workdirs=runs/best,runs/hour --output=curves.png
python -m experiments.studies.learning_curves --workdirs=... --score=bleu --output=curves.svg

The scores are those of the metrics.jsonl that `train` writes, so a training that still runs can be
drawn too. The axis has target tokens, not steps, as the batches of two configs may differ in size.
"""

import dataclasses

import numpy as np
from etils import epath

from experiments.cli import command_line
from experiments.pages import evaluation
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.inspection import figures


@dataclasses.dataclass(frozen=True)
class Options:
    """The trainings, the score, and the picture."""

    workdirs: tuple[str, ...] | None = None
    """Directories written by train: A,B,..."""
    score: str = "nll"
    """Validation score: nll, bleu, perplexity, ..."""
    output: str = "curves.png"
    """Path of the picture (.png, .svg or .pdf)."""


def run(options: Options) -> str:
    """Draw one curve for each workdir; returns the path of the picture."""
    if not options.workdirs:
        raise InputError("missing --workdirs=A,B,...: the directories of the trainings to draw")
    score = options.score
    label = {"nll": "NLL", "bleu": "BLEU"}.get(score, score)
    figure = figures.plot_curves(
        {name: learning_curve(paths.absolute(name), score) for name in options.workdirs},
        x_label="millions of target tokens, padding included",
        y_label=label + (", nats per token" if score == "nll" else ""),
        title=f"{label} on the validation text",
    )
    return str(figures.save(figure, paths.absolute(options.output)))


def main(options: Options) -> None:
    """Print the path."""
    print(run(options))


def learning_curve(workdir: epath.Path, score: str) -> tuple[list[float], list[float]]:
    """Millions of tokens before each validation of a training, and the scores; NaN if missing."""
    metrics = workdir / workdir_files.METRICS
    if not metrics.exists():
        raise InputError(f"{metrics} does not exist; --workdirs takes directories of `train`")
    tokens_per_step = workdir_files.load_config(workdir).data.tokens_per_batch
    records = evaluation.read_metrics(metrics)[0].get("validation", [])
    if not records:
        raise InputError(f"{metrics} has no validation yet; wait for the first one")
    steps, values = evaluation.curve(records, score)
    if not np.isfinite(values).any():
        known = ", ".join(key for key in records[0] if key not in ("step", "split"))
        raise InputError(f"--score={score} must be a validation score of {workdir}: {known}")
    return [step * tokens_per_step / 1e6 for step in steps], values


if __name__ == "__main__":
    command_line.run(main, None, Options)
