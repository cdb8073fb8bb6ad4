# SPDX-License-Identifier: Apache-2.0
"""Sutskever, Bahdanau, Luong, Gehring and the Transformer at equal parameters and equal time.

python -m experiments.studies.seq2seq_history --config=pronouns:de --minutes=5 \\
    --runs=runs/history --output=runs/history
python -m experiments.studies.seq2seq_history --config=multi30k:short --minutes=20 \\
    --split=validation --runs=runs/history --output=runs/history \\
    --config.data.train_source=train.en.gz --config.data.train_target=train.de.gz \\
    --config.data.validation_source=val.en.gz --config.data.validation_target=val.de.gz

The config is that of a Transformer on any corpus. It provides the data, the vocabulary, the search
and the number of parameters. The other models get the width with which they have as many, and every
model the number of steps that take --minutes by a measurement of its steps, made for all models
before the first training. Compilation and validation are not counted. All models have one
optimizer, Adam with a cosine schedule; the peak learning rate of each is in `family_comparison`.

Each model has a workdir RUNS/NAME. OUTPUT gets the table seq2seq_history.md, its numbers
seq2seq_history.json, and the picture seq2seq_history.png: BLEU by length of the source, as in
figure 2 of Bahdanau et al. (2015). Repeat the command to continue: what is trained is not trained
again. Alignment error rates need gold alignments, which `pronouns` has.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from etils import epath

from experiments.cli.command_line import run
from experiments.cli.scored_pairs import ScoredPairs
from experiments.scoring import evaluation
from experiments.studies import study_runs, study_tables
from experiments.studies.family_comparison import MODELS, alignment_error_rate, by_length, config_of
from experiments.studies.study_tables import Column
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.models import protocol
from transformer.translator import Translator

COLUMNS = (
    Column("model", "model"),
    Column("d_model", "d_model"),
    Column("parameters", "parameters", "{:,}"),
    Column("steps", "steps", "{:,}"),
    Column("minutes", "minutes", "{:.1f}"),
    Column("tokens per second", "tokens_per_second", "{:,.0f}"),
    Column("BLEU, 95% interval", "bleu_text"),
    Column("NLL", "nll", "{:.3f}"),
    Column("pronoun accuracy", "pronoun_accuracy", "{:.1%}"),
    Column("alignment error rate", "alignment_error_rate", "{:.1%}"),
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
    sentences: int = 2000
    """Largest number of sentence pairs scored."""


def main(options: Options) -> int:
    """Choose the widths and steps, train, score, and write the table after every model."""
    config = options.config
    if not isinstance(config.model, TransformerConfig):
        raise InputError(
            f"model.family is {config.model.family!r}, but the config of this study is that of its "
            "Transformer; choose another --config"
        )
    if options.minutes <= 0:
        raise InputError(f"--minutes is {options.minutes}, but must be above 0")
    names = study_tables.checked_names("models", options.models, list(MODELS))
    # What can be wrong with the scoring is found before the trainings.
    options.bleu_options(config)
    options.load(config.data)
    runs, output = paths.absolute(options.runs), paths.absolute(options.output)
    measured = {
        name: study_runs.measure_step(config_of(config, name, config.training.steps), runs)
        for name in names
    }
    rows: list[dict[str, Any]] = []
    table = ""
    for name in names:
        of_steps = measured[name]
        of_model = config_of(config, name, max(of_steps.steps_in(options.minutes), 1))
        try:
            result = study_runs.trained(of_model, runs / name)
        except study_runs.Stopped as stopped:
            return stopped.code
        scores = scored(runs / name, options)
        rows.append(row_of(name, of_model, result, scores, of_steps.tokens))
        table = study_tables.write_table(output, "seq2seq_history", COLUMNS, rows)
        figures.save(picture(rows), output / "seq2seq_history.png")
    print(table, end="")
    return 0


# The scores.


def scored(directory: epath.Path, options: Options) -> dict[str, Any]:
    """Scores of a trained model, in all and by length of the source; computed once."""
    config = workdir_files.load_inference_config(directory)
    pairs = options.load(config.data).first(options.sentences)
    bleu = options.bleu_options(config)

    def compute() -> dict[str, Any]:
        print(f"scoring {directory}", file=sys.stderr, flush=True)
        translator = Translator.from_workdir(directory)
        scored = evaluation.evaluate(translator, pairs, **bleu)
        texts = pairs.sources, scored.translations, pairs.targets
        return scored.scores | {
            "by_length": by_length(*texts, **bleu),
            "alignment_error_rate": alignment_error_rate(translator, pairs),
        }

    name = "-".join(map(str, ["history", *bleu.values()]))
    return study_runs.computed_once(study_runs.scores_file(directory, name, pairs), compute)


def row_of(
    name: str,
    config: Config,
    result: dict[str, Any],
    scores: dict[str, Any],
    tokens_per_step: float,
) -> dict[str, Any]:
    """A row of the table."""
    seconds = result["step"] * tokens_per_step / result["tokens_per_second"]
    return {
        "model": name,
        "d_model": protocol.build(config.model).describe().d_model,
        "steps": result["step"],
        "minutes": seconds / 60,
        "bleu_text": study_tables.with_interval(scores),
        **{key: result[key] for key in ("parameters", "tokens_per_second")},
        **{key: value for key, value in scores.items() if key != "origin"},
    }


def picture(rows: Sequence[dict[str, Any]]) -> figures.DescribedFigure:
    """BLEU by length of the source."""
    curves = {
        row["model"]: tuple([one[key] for one in row["by_length"]] for key in ("mean", "bleu"))
        for row in rows
    }
    return figures.plot_curves(
        curves,
        x_label="words of the source (mean of a bucket)",
        y_label="BLEU",
        title="BLEU by length of the source, at equal parameters and equal time",
    )


if __name__ == "__main__":
    run(main, "config", Options)
