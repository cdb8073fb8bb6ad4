# SPDX-License-Identifier: Apache-2.0
"""Train a recipe with one or several seeds, score it, and write its rows of a table of results.

python -m experiments.studies.results_row --config=multi30k:hour --seeds=0,1,2 --split=validation \\
    --runs=runs/hour --output=runs/hour \\
    --config.data.train_source=train.en --config.data.train_target=train.de \\
    --config.data.validation_source=val.en --config.data.validation_target=val.de
python -m experiments.studies.results_row --config=multi30k --teachers=3 --teacher_steps=5000 ...

With --teachers, models of --teacher_steps steps and one of the other direction are trained first,
and the recipe learns from the training text and their translations of it (`data_diversification`).
--average=10 scores the mean of the last ten checkpoints, not the best one; --bleu_tokenize=none is
for text that is tokenized already.

Every training has a workdir in RUNS: seed-0, seed-1, ..., and teacher-0, ..., reverse.
OUTPUT/results_row.json gets a row for each seed, which is printed too. Repeat the command to
continue: what is trained, translated or scored is not done again. More seeds add rows.
Several processes share the work: started twice, the command trains two models at a time, which on
two CPU cores takes less time than one after the other (a core and
XLA_FLAGS=--xla_cpu_multi_thread_eigen=false for each).
"""

import dataclasses
from typing import Any, Literal

from experiments.cli import command_line
from experiments.cli.options import require_at_least
from experiments.cli.scored_pairs import ScoredPairs
from experiments.cli.weights import describe
from experiments.studies import study_runs
from experiments.studies.results_row import data_diversification
from experiments.training import allocator
from transformer import paths
from transformer.config import Config
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options(ScoredPairs):
    """The recipe, its seeds and teachers, and how it is scored."""

    config: Config = Config()
    """The recipe."""
    seeds: tuple[str, ...] = ("0",)
    """Seeds, one training each: 0,1,2."""
    teachers: int = 0
    """Models that translate the training sources."""
    teacher_steps: int | None = None
    """Training steps of a teacher."""
    average: int | None = None
    """Score the mean of this number of checkpoints instead of the best checkpoint."""
    around: Literal["last", "best"] = "last"
    """Checkpoints that --average uses: the last ones, or the best one and its neighbors."""
    runs: str = "runs/results_row"
    """Directory of the workdirs."""
    output: str = "runs/results_row"
    """Directory of the rows."""


def run(options: Options) -> list[dict[str, Any]]:
    """Train and score with every seed; write the rows and return them.

    Raises:
      Stopped: after a signal; repeat the call to continue.
    """
    config, seeds = options.config, study_runs.checked_seeds(options.seeds)
    require_at_least(0, teachers=options.teachers)
    require_at_least(1, teacher_steps=options.teacher_steps)
    if bool(options.teachers) != bool(options.teacher_steps):
        raise InputError("--teachers and --teacher_steps go together; give both or neither")
    average, kept = options.average, config.training.keep_last
    if average is not None and not 1 <= average <= kept:
        raise InputError(
            f"--average={average} must be 1 to {kept}, the checkpoints that a training keeps; keep "
            "more with --config.training.keep_last=NUMBER"
        )
    if paths.is_remote(options.runs):
        raise InputError(
            f"--runs={options.runs} must be local, because an object store has no locks; name a "
            "local folder"
        )
    # Errors of the scoring come before hours of training.
    options.bleu_options(config)
    options.load(config.data)
    runs = paths.absolute(options.runs)
    about = {"weights": describe(config, average, options.around)}
    if options.teachers:
        config, seconds = data_diversification.diversify(
            config, runs, teachers=options.teachers, steps=options.teacher_steps
        )
        about["teacher_minutes"] = round(seconds / 60, 1)
    numbers = {f"seed-{seed}": seed for seed in seeds}

    def row_of(name: str) -> dict[str, Any]:
        seed = numbers[name]
        of_seed = study_runs.with_fields(config, {"training.seed": seed})
        result = study_runs.trained(of_seed, runs / name)
        weights = {"average": average, "around": options.around}
        scores = study_runs.scored(runs / name, options, **weights)
        about_seed = {"seed": seed, **about, "signature": scores["bleu_signature"]}
        names = ("bleu", "chrf", "nll")
        return study_runs.row_of(result, study_runs.rounded(scores, *names), **about_seed)

    rows = list(study_runs.share(row_of, numbers, runs).values())
    study_runs.write_rows(paths.absolute(options.output), "results_row", rows)
    return rows


def main(options: Options) -> None:
    """Print the rows."""
    study_runs.print_rows(run(options))


if __name__ == "__main__":
    allocator.restart_with_huge_pages()
    command_line.run(main, "config", Options)
