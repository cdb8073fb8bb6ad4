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
`models`. The column "minutes" is the measured time of the training steps: where it differs between
models, another program slowed some down, and the comparison is not at equal time.

Each training has a workdir RUNS/NAME-SEED. OUTPUT gets the table seq2seq_history.md, its numbers
seq2seq_history.json, and the picture seq2seq_history.png: BLEU by length of the source, as in
figure 2 of Bahdanau et al. (2015). Repeat the command to continue: what is trained is not trained
again.
"""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import evaluate
from experiments.cli import command_line
from experiments.cli.scored_pairs import ScoredPairs
from experiments.scoring.diagnostics import length_buckets
from experiments.scoring.evaluation import Evaluation
from experiments.studies import study_runs, study_tables
from experiments.studies.seq2seq_history.models import MODELS, config_of
from experiments.studies.study_tables import Column
from transformer import paths
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.models import protocol
from transformer.text.metrics import corpus_scores

COLUMNS = (
    Column("model", "model"),
    Column("seed", "seed"),
    Column("d_model", "d_model"),
    Column("parameters", "parameters", "{:,}"),
    Column("steps", "steps", "{:,}"),
    Column("minutes", "minutes", "{:.1f}"),
    Column("tokens per second", "tokens_per_second", "{:,.0f}"),
    Column("BLEU, 95% interval", "bleu_text"),
    Column("NLL", "nll", "{:.3f}"),
)


@dataclasses.dataclass(frozen=True)
class Options(ScoredPairs):
    """The Transformer to compare with, and the budget."""

    config: Config = Config()
    """Data, vocabulary, search and number of parameters."""
    runs: str = "runs/seq2seq_history"
    """Directory of the workdirs."""
    output: str = "runs/seq2seq_history"
    """Directory of table and picture."""
    minutes: float = 10.0
    """Minutes of training steps for each model."""
    models: tuple[str, ...] | None = None
    """Names of models: A,B,...; all by default."""
    seeds: tuple[str, ...] = ("0", "1", "2")
    """Seeds, one training of each model for each."""


def run(options: Options) -> list[dict[str, Any]]:
    """Choose widths and steps, train and score; write the table after every training.

    Returns:
      The rows of the table.
    """
    config, seeds = options.config, study_tables.checked_seeds(options.seeds)
    if not isinstance(config.model, TransformerConfig):
        raise InputError(
            f"model.family is {config.model.family!r}, but the config of this study is that of its "
            "Transformer; choose another --config"
        )
    if options.minutes <= 0:
        raise InputError(f"--minutes is {options.minutes}, but must be above 0")
    names = study_tables.checked_names("models", options.models, list(MODELS))
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
        scores = study_runs.scored(directory, options, by_length)
        rows.append(
            {
                "model": name,
                "seed": seed,
                "d_model": protocol.build(model.model).describe().d_model,
                "steps": result["step"],
                "minutes": result["step"] * step.tokens / result["tokens_per_second"] / 60,
                "tokens_per_second": result["tokens_per_second"],
                "bleu_text": study_tables.with_interval(scores),
                **{key: value for key, value in scores.items() if key != "origin"},
            }
        )
        study_tables.write_table(output, "seq2seq_history", COLUMNS, rows)
        figures.save(picture(rows, options.minutes), output / "seq2seq_history.png")
    return rows


def main(options: Options) -> None:
    """Print the table."""
    print(study_tables.markdown(COLUMNS, run(options)), end="")


def by_length(evaluation: Evaluation, options: evaluate.Options) -> dict[str, Any]:
    """BLEU with its interval for sentences of similar lengths of the source, in words."""
    rows, bleu = [], options.bleu_options(options.config)
    for bucket in length_buckets(evaluation.split.sources):
        sides = evaluation.translations, evaluation.split.targets
        scores = corpus_scores(*([side[row] for row in bucket.rows] for side in sides), **bleu)
        about = {"words": bucket.name, "mean": bucket.mean, "sentences": len(bucket.rows)}
        rows.append(about | {key: scores[key] for key in ("bleu", "bleu_ci")})
    return {"by_length": rows}


def picture(rows: Sequence[dict[str, Any]], minutes: float) -> figures.DescribedFigure:
    """BLEU by length of the source, the mean over the seeds of each model."""
    trainings = collections.defaultdict(list)
    for row in rows:
        points = [[bucket["mean"], bucket["bleu"]] for bucket in row["by_length"]]
        trainings[row["model"]].append(points)
    curves = {name: tuple(np.mean(each, axis=0).T) for name, each in trainings.items()}
    seeds = len({row["seed"] for row in rows})
    return figures.plot_curves(
        curves,
        x_label="words of the source (mean of a bucket)",
        y_label="BLEU",
        title=f"BLEU by length of the source after about {minutes:g} minutes of training, "
        f"mean of {seeds} seeds",
    )


if __name__ == "__main__":
    command_line.run(main, "config", Options)
