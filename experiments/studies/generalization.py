# SPDX-License-Identifier: Apache-2.0
"""Systematic generalization on SCAN: positions, shared layers, choices of training.

python -m experiments.studies.generalization --datasets=length26 --runs=runs/general \\
    --output=runs/general

Each combination of --datasets, --models, --choices and --seeds is one training with the recipe of
experiments/configs/scan.py, and each is scored by exact match with the best checkpoint by
validation NLL, the best by BLEU, and the last one: early stopping by loss, by accuracy, and none.
OUTPUT/generalization.json gets a row for each; the rows are printed. Repeat the command to
continue; with more names, only what is new is trained. A training takes about a quarter of an hour
on two CPU cores.

The published surprise: relative positions take the exact match on SCAN's length split at a cutoff
of 26 actions from near 0 to 100% (Csordas et al. 2021, "The Devil is in the Detail", with the
relative positions of Transformer-XL; `relative` here are those of Shaw et al. 2018).
"""

import dataclasses
import itertools
from typing import Any

from experiments.cli import command_line
from experiments.cli.options import require_at_least
from experiments.cli.scored_pairs import ScoredPairs
from experiments.configs import scan as scan_config
from experiments.data.grammars import scan
from experiments.studies import study_runs
from experiments.studies.study_runs import checked_names
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config

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


@dataclasses.dataclass(frozen=True)
class Options:
    """The corpora, the models and choices, and the trainings."""

    datasets: tuple[str, ...] = ("length26",)
    """Splits of SCAN: simple, length, length26, addprim_jump, addprim_turn_left."""
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
    runs: str = "runs/generalization"
    """Directory of the workdirs."""
    output: str = "runs/generalization"
    """Directory of the rows."""


def run(options: Options) -> list[dict[str, Any]]:
    """Train and score; write the rows after every training, and return them."""
    require_at_least(1, steps=options.steps)
    models = checked_names("models", options.models, list(MODELS))
    choices = checked_names("choices", options.choices, list(CHOICES))
    datasets = checked_names("datasets", options.datasets, scan.CONFIGS)
    seeds, rows = study_runs.checked_seeds(options.seeds), []
    # Every combination with the first seed comes before the second seed.
    for names in itertools.product(seeds, datasets, models, choices):
        rows.append(row_of(options, *names))
        study_runs.write_rows(paths.absolute(options.output), "generalization", rows)
    return rows


def main(options: Options) -> None:
    """Print the rows."""
    study_runs.print_rows(run(options))


def config_of(options: Options, seed: int, dataset: str, model: str, choice: str) -> Config:
    """The config of one training."""
    config = scan_config.get_config(dataset)
    steps = options.steps or config.training.steps
    every = min(config.training.validate_every, steps)
    # All checkpoints are kept, so that one training is scored by every selection.
    fields = {
        "training.seed": seed,
        "training.steps": steps,
        "training.validate_every": every,
        "training.keep_last": -(-steps // every),
    }
    return study_runs.with_fields(config, {**MODELS[model], **CHOICES[choice], **fields})


def row_of(options: Options, seed: int, dataset: str, model: str, choice: str) -> dict[str, Any]:
    """Train and score one combination, if that is not done yet."""
    directory = paths.absolute(options.runs) / f"{dataset}.{model}.{choice}.{seed}"
    result = study_runs.trained(config_of(options, seed, dataset, model, choice), directory)
    config = workdir_files.load_inference_config(directory)
    selections: dict[str, dict[str, Any]] = {"exact_match": {"average": 1}}
    for score in ("nll", "bleu"):
        training = config.training.replace(best_by=score)
        selections[f"exact_match_by_{score}"] = {"config": config.replace(training=training)}
    scores = {
        name: study_runs.scored(directory, ScoredPairs("test"), **weights)["exact_match"]
        for name, weights in selections.items()
    }
    scores["validation"] = result["validation"]["exact_match"]
    about = {"dataset": dataset, "model": model, "choice": choice, "seed": seed}
    return study_runs.row_of(result, study_runs.rounded(scores, *scores), **about)


if __name__ == "__main__":
    command_line.run(main, None, Options)
