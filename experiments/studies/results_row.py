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

import shlex
import sys
from typing import Any

from absl import flags
from etils import epath

from experiments.cli import average_flags, scoring_flags
from experiments.cli.command_line import run, take_flag
from experiments.scoring import evaluation
from experiments.studies import data_diversification, seed_rows, study_runs, study_tables
from experiments.training import allocator
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator

SEEDS = flags.DEFINE_list("seeds", ["0"], "Seeds, one training each: 0,1,2.")
TEACHERS = flags.DEFINE_integer("teachers", 0, "Models that translate the training sources.", 0)
TEACHER_STEPS = flags.DEFINE_integer("teacher_steps", None, "Training steps of a teacher.", 1)
RUNS = flags.DEFINE_string("runs", "runs/results_row", "Directory of the workdirs.")
OUTPUT = flags.DEFINE_string("output", "runs/results_row", "Directory of the table.")


def main(config: Config) -> int:
    """Train, score, and write the row."""
    if not all(seed.isdecimal() for seed in SEEDS.value) or not SEEDS.value:
        raise InputError(f"--seeds={','.join(SEEDS.value)} must be whole numbers: 0,1,2")
    if bool(TEACHERS.value) != bool(TEACHER_STEPS.value):
        raise InputError("--teachers and --teacher_steps go together; give both or neither")
    average, kept = average_flags.AVERAGE.value, config.training.keep_last
    if average is not None and not 1 <= average <= kept:
        raise InputError(
            f"--average={average} must be 1 to {kept}, the checkpoints that a training keeps; keep "
            "more with --config.training.keep_last=NUMBER"
        )
    if paths.is_remote(RUNS.value):
        raise InputError(
            f"--runs={RUNS.value} must be local, because an object store has no locks; name a "
            "local folder"
        )
    # What can be wrong with the scoring is found before hours of training.
    scoring_flags.require_source_and_target()
    scoring_flags.bleu_options(config)
    scoring_flags.load_split(config.data)
    allocator.use_few_arenas()
    runs, output = (paths.absolute(flag.value) for flag in (RUNS, OUTPUT))
    shared = {
        "config": take_flag(sys.argv, "config")[0],
        "weights": average_flags.description(config),
        "hardware": seed_rows.hardware(),
        "command": shlex.join(["python", "-m", "experiments.studies.results_row", *sys.argv[1:]]),
    }
    try:
        if TEACHERS.value:
            config, seconds = data_diversification.diversify(
                config, runs, teachers=TEACHERS.value, steps=TEACHER_STEPS.value
            )
            shared["teacher_minutes"] = seconds / 60
        seeds = {f"seed-{int(seed)}": int(seed) for seed in SEEDS.value}
        results = study_runs.share(
            lambda name: result_of(config, seeds[name], runs / name), seeds, runs
        )
    except study_runs.Stopped as stopped:
        return stopped.code
    row = shared | seed_rows.row_of(list(results.values()))
    print(study_tables.write_table(output, "results_row", seed_rows.COLUMNS, [row]), end="")
    return 0


def result_of(config: Config, seed: int, directory: epath.Path) -> dict[str, Any]:
    """Train with one seed and score, if that is not done yet."""
    of_seed = study_runs.with_fields(config, {"training.seed": seed})
    result = study_runs.trained(of_seed, directory)
    saved = workdir_files.load_inference_config(directory)
    pairs = scoring_flags.load_split(saved.data)
    bleu = scoring_flags.bleu_options(saved)
    average, around = average_flags.AVERAGE.value, average_flags.AROUND.value

    def compute() -> dict[str, Any]:
        print(f"scoring {directory}", file=sys.stderr, flush=True)
        translator = Translator.from_workdir(directory, average=average, around=around)
        return evaluation.evaluate(translator, pairs, **bleu).scores

    name = "-".join(map(str, ["results_row", average, around, *bleu.values()]))
    scores = study_runs.computed_once(study_runs.scores_file(directory, name, pairs), compute)
    return {"seed": seed, **result, **scores}


if __name__ == "__main__":
    run(main, config_from="config")
