# SPDX-License-Identifier: Apache-2.0
"""Train every named variant of the Transformer on `pronouns` and compare them.

python -m experiments.studies.variants --runs=runs/variants --output=runs/variants

The variants are those of experiments/configs/pronouns_variants.py. Each has a workdir RUNS/NAME,
which every app reads. OUTPUT gets the table variants.md, its numbers variants.json, and the picture
variants.png. Repeat the command to continue: what is trained is not trained again. A variant takes
3 to 5 minutes on two CPU cores.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.cli.command_line import run
from experiments.cli.options import require_at_least
from experiments.configs import pronouns_variants
from experiments.studies import study_runs
from experiments.studies.study_tables import Column, checked_names, write_table
from transformer import paths
from transformer.inspection import figures
from transformer.inspection.figures import parts, style

COLUMNS = (
    Column("variant", "variant"),
    Column("changed fields", "fields"),
    Column("parameters", "parameters", "{:,}"),
    Column("pronoun accuracy, test", "test_pronoun_accuracy", "{:.1%}"),
    Column("pronoun accuracy, unseen noun pairs", "test_unseen_pronoun_accuracy", "{:.1%}"),
    Column("exact match, test", "test_exact_match", "{:.1%}"),
    Column("NLL, test", "test_nll", "{:.4f}"),
    Column("seconds", "seconds", "{:.0f}"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """The variants, their trainings, and what is scored."""

    runs: str = "runs/variants"
    """Directory of the workdirs, one per variant."""
    output: str = "runs/variants"
    """Directory of table and picture."""
    variants: tuple[str, ...] | None = None
    """Names of variants: A,B,...; all by default."""
    steps: int | None = None
    """Training steps, instead of the config's."""
    sentences: int | None = None
    """Sentences scored of each split."""
    seed: int = 0
    """Seed of parameters, dropout and order."""


def main(options: Options) -> int:
    """Train, score, and write the table after every variant."""
    require_at_least(1, steps=options.steps, sentences=options.sentences)
    require_at_least(0, seed=options.seed)
    names = checked_names("variants", options.variants, list(pronouns_variants.VARIANTS))
    output = paths.absolute(options.output)
    rows, table = [], ""
    for name in names:
        try:
            rows.append(row_of(name, options))
        except study_runs.Stopped as stopped:
            return stopped.code
        table = write_table(output, "variants", COLUMNS, rows)
        figures.save(picture(rows), output / "variants.png")
    print(table, end="")
    return 0


def row_of(name: str, options: Options) -> dict[str, Any]:
    """Train and score one variant, if that is not done yet."""
    directory = paths.absolute(options.runs) / name
    config = pronouns_variants.get_config(name)
    changes = {"training.seed": options.seed}
    if options.steps:
        changes |= {"training.steps": options.steps, "training.validate_every": options.steps}
    result = study_runs.trained(study_runs.with_fields(config, changes), directory)
    row = {
        "variant": name,
        "fields": ", ".join(f"{k}={v}" for k, v in pronouns_variants.VARIANTS[name].items()),
        "parameters": result["parameters"],
        "seconds": result["seconds"],
        "steps": result["step"],
    }
    for split in ("test", "test_unseen"):
        scores = study_runs.scored(directory, split, sentences=options.sentences)
        for measure in ("pronoun_accuracy", "exact_match", "nll", "bleu"):
            row[f"{split}_{measure}"] = scores[measure]
    return row


@style.styled
def picture(rows: Sequence[dict[str, Any]]) -> figures.DescribedFigure:
    """Pronoun accuracy of each variant, on both test splits."""
    keys = {"test_pronoun_accuracy": "test", "test_unseen_pronoun_accuracy": "unseen pairs"}
    accuracy = 100 * np.array([[row[key] for key in keys] for row in rows])
    panel = parts.Panel(
        values=accuracy,
        cell=(0.9, 0.24),
        name="accuracy",
        rows=[row["variant"] for row in rows],
        columns=list(keys.values()),
        limits=(50.0, 100.0),
        legend="% of pronouns",
        beside={"parameters": [f"{row['parameters']:,}" for row in rows]},
    )
    title = "Pronoun accuracy of variants of the Transformer, one training each"
    figure, [image] = parts.draw_panels([[panel]], title=title)
    parts.write_numbers(image, "{:.1f}")
    figure.description = f"{title}. " + " ".join(
        f"{row['variant']}: {row['test_pronoun_accuracy']:.1%} on test, "
        f"{row['test_unseen_pronoun_accuracy']:.1%} on unseen noun pairs."
        for row in rows
    )
    return figure


if __name__ == "__main__":
    run(main, None, Options)
