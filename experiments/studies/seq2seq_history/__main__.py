# SPDX-License-Identifier: Apache-2.0
"""Sutskever, Bahdanau, Luong, Gehring and the Transformer, trained for equally many minutes.

python -m experiments.studies.seq2seq_history --config=multi30k:short --minutes=20 \\
    --split=validation --runs=runs/history --output=runs/history \\
    --config.data.train_source=train.en.gz --config.data.train_target=train.de.gz \\
    --config.data.validation_source=val.en.gz --config.data.validation_target=val.de.gz

The config is that of a Transformer on any corpus. It provides the data, the vocabulary, the search
and the number of parameters. The other models get the width with which they have as many. Each
model trains for the number of steps that take --minutes by the mean time of its first steps, which
is measured for all models before the first training. Compilation and validation are not counted.
All models have one optimizer, Adam with a cosine schedule; the peak learning rate of each is in
`models`. `step_minutes` is the measured time of the training steps: where it differs between
models, another program slowed some down, and the comparison is not at equal time.

Each training has a workdir RUNS/NAME-SEED, and a row of OUTPUT/seq2seq_history.json, with BLEU by
length of the source, as in figure 2 of Bahdanau et al. (2015); the rows are printed. Repeat the
command to continue: what is trained is not trained again.
"""

import dataclasses
import itertools
from typing import Any

from experiments import evaluate
from experiments.cli import command_line
from experiments.cli.scored_pairs import ScoredPairs
from experiments.scoring.diagnostics import length_buckets
from experiments.scoring.evaluation import Evaluation
from experiments.studies import study_runs
from experiments.studies.seq2seq_history.models import MODELS, config_of
from transformer import paths
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.models import protocol
from transformer.text.metrics import corpus_scores


@dataclasses.dataclass(frozen=True)
class Options(ScoredPairs):
    """The Transformer to compare with, and the budget."""

    config: Config = Config()
    """Data, vocabulary, search and number of parameters."""
    runs: str = "runs/seq2seq_history"
    """Directory of the workdirs."""
    output: str = "runs/seq2seq_history"
    """Directory of the rows."""
    minutes: float = 10.0
    """Minutes of training steps for each model."""
    models: tuple[str, ...] | None = None
    """Names of models: A,B,...; all by default."""
    seeds: tuple[str, ...] = ("0", "1", "2")
    """Seeds, one training of each model for each."""


def run(options: Options) -> list[dict[str, Any]]:
    """Choose widths and steps, train and score; write the rows after every training."""
    config, seeds = options.config, study_runs.checked_seeds(options.seeds)
    if not isinstance(config.model, TransformerConfig):
        raise InputError(
            f"model.family is {config.model.family!r}, but the config of this study is that of its "
            "Transformer; choose another --config"
        )
    if options.minutes <= 0:
        raise InputError(f"--minutes is {options.minutes}, but must be above 0")
    names = study_runs.checked_names("models", options.models, list(MODELS))
    # Errors of the scoring come before the trainings.
    options.bleu_options(config)
    options.load(config.data)
    runs, output = paths.absolute(options.runs), paths.absolute(options.output)
    measured = {
        name: study_runs.measure_step(config_of(config, name, config.training.steps), runs)
        for name in names
    }
    rows: list[dict[str, Any]] = []
    for seed, name in itertools.product(seeds, names):
        step, directory = measured[name], runs / f"{name}-{seed}"
        model = config_of(config, name, max(step.steps_in(options.minutes), 1))
        result = study_runs.trained(
            study_runs.with_fields(model, {"training.seed": seed}), directory
        )
        scores = study_runs.scored(directory, options, bleu_by_length)
        about = {
            "model": name,
            "seed": seed,
            "d_model": protocol.build(model.model).describe().d_model,
            "step_minutes": result["step"] * step.tokens / result["tokens_per_second"] / 60,
            "tokens_per_second": result["tokens_per_second"],
        }
        names = study_runs.rounded(scores, "bleu", "nll") | scores["bleu_by_length"]
        rows.append(study_runs.row_of(result, names, **about))
        study_runs.write_rows(output, "seq2seq_history", rows)
    return rows


def main(options: Options) -> None:
    """Print the rows."""
    study_runs.print_rows(run(options))


def bleu_by_length(evaluation: Evaluation, options: evaluate.Options) -> dict[str, Any]:
    """BLEU with its interval for sentences of similar lengths of the source, in words."""
    found, bleu = {}, options.bleu_options(options.config)
    for bucket in length_buckets(evaluation.split.sources):
        sides = evaluation.translations, evaluation.split.targets
        scores = corpus_scores(*([side[row] for row in bucket.rows] for side in sides), **bleu)
        found[f"bleu_{bucket.name.replace(' ', '_')}"] = study_runs.rounded(scores, "bleu")["bleu"]
    return {"bleu_by_length": found}


if __name__ == "__main__":
    command_line.run(main, "config", Options)
