# SPDX-License-Identifier: Apache-2.0
"""Train every named variant of the Transformer on `pronouns` and compare them.

python -m experiments.studies.variants --runs=runs/variants --output=runs/variants

The variants are those of experiments/configs/pronouns_variants.py. Each has a workdir RUNS/NAME,
which every app reads. OUTPUT gets the table variants.md, its numbers variants.json, and the picture
variants.png. Repeat the command to continue: what is trained is not trained again. A variant takes
3 to 5 minutes on two CPU cores.
"""

import dataclasses
from typing import Any

from experiments.cli import command_line
from experiments.cli.options import require_at_least
from experiments.cli.scored_pairs import ScoredPairs
from experiments.configs import pronouns_variants
from experiments.studies import study_runs, study_tables
from experiments.studies.study_tables import Column
from transformer import paths
from transformer.inspection import figures

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
    """The variants and their trainings."""

    runs: str = "runs/variants"
    """Directory of the workdirs, one per variant."""
    output: str = "runs/variants"
    """Directory of table and picture."""
    variants: tuple[str, ...] | None = None
    """Names of variants: A,B,...; all by default."""
    steps: int | None = None
    """Training steps, instead of the config's."""
    seed: int = 0
    """Seed of parameters, dropout and order."""


def run(options: Options) -> list[dict[str, Any]]:
    """Train and score; write the table after every variant, and return its rows."""
    require_at_least(1, steps=options.steps)
    require_at_least(0, seed=options.seed)
    names = study_tables.checked_names(
        "variants", options.variants, list(pronouns_variants.VARIANTS)
    )
    output, rows = paths.absolute(options.output), []
    for name in names:
        rows.append(row_of(name, options))
        study_tables.write_table(output, "variants", COLUMNS, rows)
        figure = study_tables.picture(
            "Pronoun accuracy of variants of the Transformer, one training each",
            [row["variant"] for row in rows],
            {
                "test": [row["test_pronoun_accuracy"] for row in rows],
                "unseen pairs": [row["test_unseen_pronoun_accuracy"] for row in rows],
            },
            beside={"parameters": [f"{row['parameters']:,}" for row in rows]},
            lowest=0.5,
        )
        figures.save(figure, output / "variants.png")
    return rows


def main(options: Options) -> None:
    """Print the table."""
    print(study_tables.markdown(COLUMNS, run(options)), end="")


def row_of(name: str, options: Options) -> dict[str, Any]:
    """Train and score one variant, if that is not done yet."""
    directory = paths.absolute(options.runs) / name
    changes = {"training.seed": options.seed}
    if options.steps:
        changes |= {"training.steps": options.steps, "training.validate_every": options.steps}
    config = study_runs.with_fields(pronouns_variants.get_config(name), changes)
    result = study_runs.trained(config, directory)
    row = {
        "variant": name,
        "fields": ", ".join(f"{k}={v}" for k, v in pronouns_variants.VARIANTS[name].items()),
        "parameters": result["parameters"],
        "seconds": result["seconds"],
        "steps": result["step"],
    }
    for split in ("test", "test_unseen"):
        scores = study_runs.scored(directory, ScoredPairs(split))
        for measure in ("pronoun_accuracy", "exact_match", "nll", "bleu"):
            row[f"{split}_{measure}"] = scores[measure]
    return row


if __name__ == "__main__":
    command_line.run(main, None, Options)
