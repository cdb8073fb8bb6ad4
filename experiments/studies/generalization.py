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

import dataclasses
import itertools
from typing import Any

from experiments.cli import command_line
from experiments.cli.options import require_at_least
from experiments.cli.scored_pairs import ScoredPairs
from experiments.configs import scan as scan_config
from experiments.data import text_files
from experiments.data.grammars import scan
from experiments.studies import study_runs, study_tables
from experiments.studies.study_tables import Column, checked_names
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.inspection import figures

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
"""Fields of each choice of training that differ from scan.py."""
SELECTIONS = {"nll": "best NLL", "bleu": "best BLEU", "last": "last"}
"""Scored checkpoints: the best by a validation score, or the last one."""

FILES = "files"
"""Name of the dataset of --train and --test."""
COLUMNS = (
    Column("dataset", "dataset"),
    Column("model", "model"),
    Column("choice", "choice"),
    Column("seed", "seed"),
    Column("steps", "steps"),
    Column("parameters", "parameters", "{:,}"),
    Column("exact match, best by NLL", "nll", "{:.1%}"),
    Column("best by BLEU", "bleu", "{:.1%}"),
    Column("last", "last", "{:.1%}"),
    Column("validation, last", "validation", "{:.1%}"),
    Column("seconds", "seconds", "{:.0f}"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """The corpora, the models and choices, and the trainings."""

    datasets: tuple[str, ...] = ("length26",)
    """Splits of SCAN: simple, length, length26, addprim_jump, addprim_turn_left."""
    train: tuple[str, ...] | None = None
    """SOURCE,TARGET files to train on, instead of SCAN."""
    test: tuple[str, ...] | None = None
    """SOURCE,TARGET files to test on."""
    validation: tuple[str, ...] | None = None
    """SOURCE,TARGET files; default: those of --train."""
    models: tuple[str, ...] | None = None
    """Models: absolute, relative, rotary, absolute_universal, relative_universal, rotary_universal;
    all by default.
    """
    choices: tuple[str, ...] = ("plain",)
    """Choices of training: plain, label_smoothing, scaled_positions, unscaled."""
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


def run(options: Options) -> list[dict[str, Any]]:
    """Train and score; write the table after every training, and return its rows."""
    require_at_least(1, steps=options.steps, layers=options.layers, max_length=options.max_length)
    models = checked_names("models", options.models, list(MODELS))
    choices = checked_names("choices", options.choices, list(CHOICES))
    files = [pair for pair in (options.train, options.test, options.validation) if pair]
    if files and not (options.train and options.test and all(len(pair) == 2 for pair in files)):
        raise InputError("--train and --test must both be given, each as SOURCE,TARGET")
    datasets = [FILES] if files else checked_names("datasets", options.datasets, scan.CONFIGS)
    output, rows = paths.absolute(options.output), []
    seeds = study_tables.checked_seeds(options.seeds)
    # Every combination with the first seed comes before the second seed.
    for names in itertools.product(seeds, datasets, models, choices):
        rows.append(row_of(options, *names))
        study_tables.write_table(output, "generalization", COLUMNS, rows)
        figure = study_tables.picture(
            "Exact match on commands unlike those of training",
            [f"{row['dataset']}, {row['model']}, {row['choice']}" for row in rows],
            {heading: [row[name] for row in rows] for name, heading in SELECTIONS.items()},
            beside={"seed": [str(row["seed"]) for row in rows]},
        )
        figures.save(figure, output / "generalization.png")
    return rows


def main(options: Options) -> None:
    """Print the table."""
    print(study_tables.markdown(COLUMNS, run(options)), end="")


def config_of(options: Options, seed: int, dataset: str, model: str, choice: str) -> Config:
    """The config of one training."""
    config = scan_config.get_config("simple" if dataset == FILES else dataset)
    fields = {**MODELS[model], **CHOICES[choice], "training.seed": seed}
    if dataset == FILES:
        fields |= _files_fields(options, config)
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


def _files_fields(options: Options, config: Config) -> dict[str, Any]:
    """The fields that describe the files; the vocabulary is all words of the training text."""
    validation = options.validation or options.train
    sides = [side for files in (options.train, validation) for side in files]
    names = ("train_source", "train_target", "validation_source", "validation_target")
    train, tested, validated = (
        text_files.TwoFiles(*files).read() for files in (options.train, options.test, validation)
    )
    words = {word for lines in train for line in lines for word in line.split()}
    longest = options.max_length + 1
    return {
        **{
            f"data.{name}": str(paths.absolute(side))
            for name, side in zip(names, sides, strict=True)
        },
        "data.dataset": "text_files",
        "data.max_length": longest,
        "data.bucket_lengths": tuple(sorted({-(-longest * part // 6) for part in range(1, 7)})),
        "data.tokens_per_batch": max(config.data.tokens_per_batch, 8 * longest),
        "model.vocab_size": 4 + len(words),
        # The longest reference, with EOS.
        "decode.max_length": 1 + max(len(line.split()) for line in (*tested[1], *validated[1])),
    }


def row_of(options: Options, seed: int, dataset: str, model: str, choice: str) -> dict[str, Any]:
    """Train and score one combination, if that is not done yet."""
    directory = paths.absolute(options.runs) / f"{dataset}.{model}.{choice}.{seed}"
    result = study_runs.trained(config_of(options, seed, dataset, model, choice), directory)
    row = {"dataset": dataset, "model": model, "choice": choice, "seed": seed}
    files = dict(zip(("source", "target"), options.test or (), strict=False))
    test_set = ScoredPairs("test", **files)
    config = workdir_files.load_inference_config(directory)
    for selection in SELECTIONS:
        weights = {"average": 1}
        if selection != "last":
            by = config.training.replace(best_by=selection)
            weights = {"config": config.replace(training=by)}
        row[selection] = study_runs.scored(directory, test_set, **weights)["exact_match"]
    row["validation"] = result["validation"]["exact_match"]
    keys = {"parameters": "parameters", "steps": "step", "seconds": "seconds"}
    return row | {name: result[key] for name, key in keys.items()}


if __name__ == "__main__":
    command_line.run(main, None, Options)
