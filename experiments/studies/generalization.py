# SPDX-License-Identifier: Apache-2.0
"""Systematic generalization on SCAN or your files: positions, shared layers, choices of training.

python -m experiments.studies.generalization --datasets=length26 --runs=runs/general \\
    --output=runs/general

Each combination of --datasets, --models, --choices and --seeds is one training with the recipe of
experiments/configs/scan.py, and each is scored by exact match with the best checkpoint by
validation NLL, the best by BLEU, and the last one: early stopping by loss, by accuracy, and none.
OUTPUT gets the table generalization.md, its numbers generalization.json, and generalization.png.
Repeat the command to continue; with more names, only what is new is trained. A training takes about
a quarter of an hour on two CPU cores.

The published surprise: relative positions take the exact match on SCAN's length split at a cutoff
of 26 actions from near 0 to 100% (Csordas et al. 2021, "The Devil is in the Detail", with the
relative positions of Transformer-XL; `relative` here are those of Shaw et al. 2018).

Any pair of files works too, one sentence a line and words divided by spaces:

python -m experiments.studies.generalization --train=train.in,train.out --test=gen.in,gen.out \\
    --validation=dev.in,dev.out --steps=50000 --max_length=200 --models=absolute,relative_universal

COGS (Kim and Linzen 2020) in its published form, as such files, is 38 hours of training on two CPU
cores. Csordas et al. report an exact match of 0.81 on its generalization set, expected here: 0.80.
"""

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.cli.command_line import run
from experiments.cli.options import require_at_least
from experiments.configs import scan as scan_config
from experiments.data import registry, text_files
from experiments.data.grammars import scan
from experiments.studies import study_runs
from experiments.studies.study_tables import Column, checked_names, write_table
from transformer import paths
from transformer.config import Config, DataConfig
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures import parts, style

POSITIONS = {
    "absolute": {},
    "relative": {"model.positions": "shaw"},
    "rotary": {"model.positions": "rotary"},
}
MODELS = {
    name + suffix: fields | shared
    for suffix, shared in (("", {}), ("_universal", {"model.shared_layers": True}))
    for name, fields in POSITIONS.items()
}
"""Fields of each model: its positions, with plain or with shared layers."""
CHOICES = {
    "plain": {},
    "label_smoothing": {"training.label_smoothing": 0.1},
    "scaled_positions": {"model.embedding_scale": "positions"},
    "unscaled": {"model.embedding_scale": "none", "model.tied_embeddings": "none"},
}
"""Fields of each choice of training, which alone differ from scan.py."""
SELECTIONS = ("nll", "bleu", "last")
"""Weights that are scored, by `study_runs.Selection`."""

FILES = "files"
"""Name of the dataset of --train and --test."""
COLUMNS = (
    Column("dataset", "dataset"),
    Column("model", "model"),
    Column("choice", "choice"),
    Column("trainings", "trainings"),
    Column("steps", "steps"),
    Column("parameters", "parameters", "{:,}"),
    Column("exact match, best by NLL", "nll", "{:.1%}"),
    Column("best by BLEU", "bleu", "{:.1%}"),
    Column("last", "last", "{:.1%}"),
    Column("deviation of the last over seeds", "last_std", "{:.1%}"),
    Column("validation, last", "validation", "{:.1%}"),
    Column("seconds each", "seconds", "{:.0f}"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """The corpora, the models and choices, and the trainings."""

    datasets: tuple[str, ...] = ("length26",)
    """Of SCAN: simple, length, length26, addprim_jump, addprim_turn_left."""
    train: tuple[str, ...] | None = None
    """SOURCE,TARGET files to train on, instead of SCAN."""
    test: tuple[str, ...] | None = None
    """SOURCE,TARGET files to test on."""
    validation: tuple[str, ...] | None = None
    """SOURCE,TARGET files; default: those of --train."""
    models: tuple[str, ...] | None = None
    """Of absolute, relative, rotary, absolute_universal, relative_universal, rotary_universal; all
    by default.
    """
    choices: tuple[str, ...] = ("plain",)
    """Of plain, label_smoothing, scaled_positions, unscaled."""
    seeds: tuple[str, ...] = ("0",)
    """Seeds, one training each: 0,1,2."""
    steps: int | None = None
    """Training steps, instead of the 8,000 of scan.py."""
    layers: int | None = None
    """Layers of each stack, instead of 2."""
    max_length: int = 100
    """Longest sentence of --train, in words."""
    runs: str = "runs/generalization"
    """Directory of the workdirs."""
    output: str = "runs/generalization"
    """Directory of table and picture."""


def main(options: Options) -> int:
    """Train, score, and write the table after every training."""
    require_at_least(1, steps=options.steps, layers=options.layers, max_length=options.max_length)
    models = checked_names("models", options.models, list(MODELS))
    choices = checked_names("choices", options.choices, list(CHOICES))
    datasets = [FILES]
    if not _given_files(options):
        datasets = checked_names("datasets", options.datasets, scan.CONFIGS)
    output = paths.absolute(options.output)
    results, table = [], ""
    # Every combination with the first seed comes before the second seed.
    for names in itertools.product(_seeds(options), datasets, models, choices):
        try:
            results.append(result_of(options, *names))
        except study_runs.Stopped as stopped:
            return stopped.code
        rows = summary(results)
        table = write_table(output, "generalization", COLUMNS, rows)
        figures.save(picture(rows), output / "generalization.png")
    print(table, end="")
    return 0


def _seeds(options: Options) -> list[int]:
    if not all(seed.isdigit() for seed in options.seeds):
        raise InputError(f"--seeds={','.join(options.seeds)} must be whole numbers: 0,1,2")
    return [int(seed) for seed in options.seeds]


def _given_files(options: Options) -> bool:
    """Whether --train and --test replace SCAN; an InputError unless both name two files."""
    given = [files for files in (options.train, options.test, options.validation) if files]
    complete = options.train and options.test and all(len(files) == 2 for files in given)
    if given and not complete:
        raise InputError("--train and --test must both be given, each as SOURCE,TARGET")
    return bool(given)


def config_of(options: Options, seed: int, dataset: str, model: str, choice: str) -> Config:
    """The config of one training."""
    fields = {**MODELS[model], **CHOICES[choice], "training.seed": seed}
    config = scan_config.get_config("simple" if dataset == FILES else dataset)
    if dataset == FILES:
        # The vocabulary is all words of the training text.
        data = _files_data(options, config)
        words = _words(*options.train)
        config = config.replace(
            data=data,
            model=config.model.replace(vocab_size=4 + len(words)),
            decode=config.decode.replace(max_length=_longest_target(options)),
        )
    if options.layers:
        fields["model.num_layers"] = options.layers
    steps = options.steps or config.training.steps
    every = min(config.training.validate_every, steps)
    # All checkpoints are kept, so that one training is scored by every selection.
    fields |= {
        "training.steps": steps,
        "training.validate_every": every,
        "training.keep_last": -(-steps // every),
    }
    return study_runs.with_fields(config, fields)


def _files_data(options: Options, config: Config) -> DataConfig:
    source, target = map(paths.absolute, options.train)
    validation = map(paths.absolute, options.validation or options.train)
    longest = options.max_length + 1
    sides = dict(zip(("validation_source", "validation_target"), map(str, validation), strict=True))
    return config.data.replace(
        dataset="text_files",
        train_source=str(source),
        train_target=str(target),
        **sides,
        max_length=longest,
        bucket_lengths=tuple(sorted({-(-longest * part // 6) for part in range(1, 7)})),
        tokens_per_batch=max(config.data.tokens_per_batch, 8 * longest),
    )


def _longest_target(options: Options) -> int:
    """The tokens of the longest target that is scored, EOS included."""
    files = [options.test, options.validation or options.train]
    targets = (line for pair in files for line in text_files.TwoFiles(*pair).read()[1])
    return 1 + max(len(line.split()) for line in targets)


def _words(*files: str) -> set[str]:
    pairs = text_files.TwoFiles(*files).read()
    return {word for side in pairs for line in side for word in line.split()}


def result_of(options: Options, seed: int, dataset: str, model: str, choice: str) -> dict:
    """Train and score one combination, if that is not done yet."""
    directory = paths.absolute(options.runs) / f"{dataset}.{model}.{choice}.{seed}"
    result = study_runs.trained(config_of(options, seed, dataset, model, choice), directory)
    row = {"dataset": dataset, "model": model, "choice": choice, "seed": seed}
    data = None
    if dataset == FILES:
        data = lambda config: registry.from_files(*options.test)  # noqa: E731
    for selection in SELECTIONS:
        scores = study_runs.scored(directory, "test", selection=selection, data=data)
        row[selection] = scores["exact_match"]
    row["validation"] = result["validation"]["exact_match"]
    keys = {"parameters": "parameters", "steps": "step", "seconds": "seconds"}
    return row | {name: result[key] for name, key in keys.items()}


def summary(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each dataset, model and choice: the means over seeds."""
    groups = collections.defaultdict(list)
    for result in results:
        groups[result["dataset"], result["model"], result["choice"]].append(result)
    rows = []
    for names, group in groups.items():
        row = dict(zip(("dataset", "model", "choice"), names, strict=True))
        row |= {"trainings": len(group), "seeds": [each["seed"] for each in group]}
        for measure in (*SELECTIONS, "validation", "seconds"):
            row[measure] = statistics.fmean(each[measure] for each in group)
        row |= {name: group[0][name] for name in ("parameters", "steps")}
        if len(group) > 1:
            row["last_std"] = statistics.stdev(each["last"] for each in group)
        rows.append(row)
    return rows


@style.styled
def picture(rows: Sequence[dict[str, Any]]) -> figures.DescribedFigure:
    """Exact match of every combination, by selection of the weights."""
    values = 100 * np.array([[row[selection] for selection in SELECTIONS] for row in rows])
    panel = parts.Panel(
        values=values,
        cell=(0.8, 0.24),
        name="exact match",
        rows=[f"{row['dataset']}, {row['model']}, {row['choice']}" for row in rows],
        columns=["best NLL", "best BLEU", "last"],
        limits=(0.0, 100.0),
        legend="% exact match",
        beside={"trainings": [str(row["trainings"]) for row in rows]},
    )
    title = "Exact match on commands unlike those of training"
    figure, [image] = parts.draw_panels([[panel]], title=title)
    parts.write_numbers(image, "{:.1f}")
    figure.description = f"{title}, with the last weights. " + " ".join(
        f"{row['dataset']}, {row['model']}, {row['choice']}: {row['last']:.1%}." for row in rows
    )
    return figure


if __name__ == "__main__":
    run(main, None, Options)
