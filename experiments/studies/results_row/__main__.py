# SPDX-License-Identifier: Apache-2.0
"""Train a recipe with one or several seeds, score it, and write its row of a table of results.

python -m experiments.studies.results_row --config=multi30k:hour --seeds=0,1,2 --split=validation \\
    --runs=runs/hour --output=runs/hour \\
    --config.data.train_source=train.en --config.data.train_target=train.de \\
    --config.data.validation_source=val.en --config.data.validation_target=val.de
python -m experiments.studies.results_row --config=multi30k --teachers=3 --teacher_steps=5000 ...

With --teachers, models of --teacher_steps steps and one of the other direction are trained first,
and the recipe learns from the training text and their translations of it (`data_diversification`).
--average=10 scores the mean of the last ten checkpoints, not the best one; --bleu_tokenize=none is
for text that is tokenized already.

Every training has a workdir in RUNS: seed-0, seed-1, ..., and teacher-0, ..., reverse. OUTPUT gets
results_row.md, a table with one row, and results_row.json with all scores. Repeat the command to
continue: what is trained, translated or scored is not done again. More seeds add to the row.
Several processes share the work: started twice, the command trains two models at a time, which on
two CPU cores takes less time than one after the other (a core and
XLA_FLAGS=--xla_cpu_multi_thread_eigen=false for each).
"""

import dataclasses
import pathlib
import platform
import re
import shlex
import statistics
import sys
from collections.abc import Sequence
from typing import Any, Literal

import jax

from experiments.cli import command_line
from experiments.cli.config_flags import take_flag
from experiments.cli.options import require_at_least
from experiments.cli.scored_pairs import ScoredPairs
from experiments.cli.weights import describe
from experiments.studies import study_runs, study_tables
from experiments.studies.results_row import data_diversification
from experiments.studies.study_tables import Column
from experiments.training import allocator
from transformer import paths
from transformer.config import Config
from transformer.cores import num_cores
from transformer.errors import InputError

COLUMNS = (
    Column("config", "config"),
    Column("parameters", "parameters", "{:,}"),
    Column("steps", "steps", "{:,}"),
    Column("seeds", "seeds"),
    Column("BLEU, 95% interval", "bleu"),
    Column("mean", "mean_bleu", "{:.1f}"),
    Column("chrF", "chrf"),
    Column("NLL", "nll"),
    Column("signature", "signature"),
    Column("minutes each", "minutes", "{:.0f}"),
    Column("minutes of teachers and translations", "teacher_minutes", "{:.0f}"),
    Column("hardware", "hardware"),
    Column("command", "command"),
)


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
    """Directory of the table."""


def run(options: Options) -> dict[str, Any]:
    """Train and score with every seed; returns the row.

    Raises:
      Stopped: after a signal; repeat the call to continue.
    """
    config, seeds = options.config, study_tables.checked_seeds(options.seeds)
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
    row = {"weights": describe(config, average, options.around), "hardware": hardware()}
    if options.teachers:
        config, seconds = data_diversification.diversify(
            config, runs, teachers=options.teachers, steps=options.teacher_steps
        )
        row["teacher_minutes"] = seconds / 60
    numbers = {f"seed-{seed}": seed for seed in seeds}

    def result_of(name: str) -> dict[str, Any]:
        seed = numbers[name]
        of_seed = study_runs.with_fields(config, {"training.seed": seed})
        result = study_runs.trained(of_seed, runs / name)
        weights = {"average": average, "around": options.around}
        scores = study_runs.scored(runs / name, options, **weights)
        return {"seed": seed, **result, **scores}

    results = study_runs.share(result_of, numbers, runs)
    return row | row_of(list(results.values()))


def main(options: Options) -> None:
    """Write and print the row."""
    command = {
        "config": take_flag(sys.argv, "config")[0],
        "command": shlex.join(["python", "-m", "experiments.studies.results_row", *sys.argv[1:]]),
    }
    output, row = paths.absolute(options.output), run(options) | command
    print(study_tables.write_table(output, "results_row", COLUMNS, [row]), end="")


def row_of(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of trainings that differ in their seed alone."""
    first = results[0]

    def each(key: str, form: str) -> str:
        return "; ".join(form.format(result[key]) for result in results)

    return {
        "parameters": first["parameters"],
        "steps": first["step"],
        "seeds": each("seed", "{}"),
        "bleu": "; ".join(map(study_tables.with_interval, results)),
        "mean_bleu": statistics.fmean(result["bleu"] for result in results),
        "chrf": each("chrf", "{:.1f}"),
        "nll": each("nll", "{:.3f}"),
        "signature": first["bleu_signature"],
        "minutes": statistics.fmean(result["seconds"] for result in results) / 60,
        "trainings": list(results),
    }


def hardware() -> str:
    """The devices that this process computes on, for example ``2 cores of AMD EPYC``."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} x {device.device_kind}"
    name = platform.processor() or platform.machine()
    information = pathlib.Path("/proc/cpuinfo")  # not on every system
    if information.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        name = found[1] if found else name
    cores = num_cores()
    return f"{cores} {'core' if cores == 1 else 'cores'} of {name}"


if __name__ == "__main__":
    allocator.restart_with_huge_pages()
    command_line.run(main, "config", Options)
