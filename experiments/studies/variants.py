# SPDX-License-Identifier: Apache-2.0
"""Train every named variant of the Transformer on `pronouns` and compare them.

python -m experiments.studies.variants --runs=runs/variants --output=runs/variants

The variants are those of experiments/configs/pronouns_variants.py. Each has a workdir RUNS/NAME,
which every app reads, and a row of OUTPUT/variants.json; the rows are printed. Repeat the command
to continue: what is trained is not trained again. A variant takes 3 to 5 minutes on two CPU cores.
"""

import dataclasses
from typing import Any

from experiments.cli import command_line
from experiments.cli.options import require_at_least
from experiments.cli.scored_pairs import ScoredPairs
from experiments.configs import pronouns_variants
from experiments.studies import study_runs
from transformer import paths


@dataclasses.dataclass(frozen=True)
class Options:
    """The variants and their trainings."""

    runs: str = "runs/variants"
    """Directory of the workdirs, one per variant."""
    output: str = "runs/variants"
    """Directory of the rows."""
    variants: tuple[str, ...] | None = None
    """Names of variants: A,B,...; all by default."""
    steps: int | None = None
    """Training steps, instead of the config's."""
    seed: int = 0
    """Seed of parameters, dropout and order."""


def run(options: Options) -> list[dict[str, Any]]:
    """Train and score; write the rows after every variant, and return them."""
    require_at_least(1, steps=options.steps)
    require_at_least(0, seed=options.seed)
    known = list(pronouns_variants.VARIANTS)
    rows = []
    for name in study_runs.checked_names("variants", options.variants, known):
        rows.append(row_of(name, options))
        study_runs.write_rows(paths.absolute(options.output), "variants", rows)
    return rows


def main(options: Options) -> None:
    """Print the rows."""
    study_runs.print_rows(run(options))


def row_of(name: str, options: Options) -> dict[str, Any]:
    """Train and score one variant, if that is not done yet."""
    directory = paths.absolute(options.runs) / name
    changes = {"training.seed": options.seed}
    if options.steps:
        changes |= {"training.steps": options.steps, "training.validate_every": options.steps}
    config = study_runs.with_fields(pronouns_variants.get_config(name), changes)
    result = study_runs.trained(config, directory)
    test, unseen = (
        study_runs.scored(directory, ScoredPairs(split)) for split in ("test", "test_unseen")
    )
    scores = study_runs.rounded(test, "pronoun_accuracy", "exact_match", "nll")
    [accuracy] = study_runs.rounded(unseen, "pronoun_accuracy").values()
    scores["pronoun_accuracy_unseen"] = accuracy
    return study_runs.row_of(result, scores, variant=name, seed=options.seed)


if __name__ == "__main__":
    command_line.run(main, None, Options)
