# SPDX-License-Identifier: Apache-2.0
"""Every row of the paper's table 3: parameter counts, and measured scores at a smaller size.

python -m experiments.studies.paper_table3 --config=base --output=table3
python -m experiments.studies.paper_table3 --config=pronouns:de --output=table3 \\
    --scale=4 --minutes=3

Without --minutes and --steps, only counts the parameters of the rows at the paper's size. With one
of them, trains every row on the corpus of --config, with its vocabulary, optimizer and decoding,
and with all widths of the table divided by --scale. As in the paper, every row takes the same
number of steps, and big three times as many: --minutes is the time of base on this machine, which
is measured first. Scores are perplexity per token and BLEU with its interval.

Writes table3.md, table3.json and table3.png to --output, and a workdir a row in runs. Repeat the
command to continue: what is trained is not trained again. The last line printed is a JSON object
with the rank correlations of measured and published scores.
"""

import dataclasses
import json
import sys
from typing import Any

from etils import epath

from experiments.cli.command_line import run
from experiments.cli.options import require_at_least
from experiments.studies import study_runs, study_tables, table3_rows
from experiments.studies.study_tables import Column
from experiments.studies.table3_rows import ROWS, Row
from transformer import paths
from transformer.config import Config
from transformer.errors import InputError
from transformer.inspection import figures

COUNTS = (
    Column("", "group"),
    Column("row", "row"),
    Column("million parameters, paper", "paper_millions"),
    Column("here", "millions", "{:.1f}"),
    Column("with the 37,000 tokens of section 5.1", "parameters_37000", "{:,}"),
)
SCORES = (
    Column("perplexity, paper", "paper_perplexity", "{:.2f}"),
    Column("BLEU, paper", "paper_bleu", "{:.1f}"),
    Column("parameters, scaled", "parameters", "{:,}"),
    Column("steps", "steps", "{:,}"),
    Column("perplexity", "perplexity", "{:.3f}"),
    Column("BLEU, 95% interval", "bleu_text"),
    Column("seconds", "seconds", "{:.0f}"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """The corpus, the rows, and their size and budget."""

    config: Config = Config()
    """Corpus, vocabulary, optimizer and decoding."""
    output: str | None = None
    """Directory of table, picture and workdirs."""
    scale: int = 4
    """Divides all widths: 1, 2, 4, 8 or 16."""
    minutes: float | None = None
    """Training time of base, which fixes the steps."""
    steps: int | None = None
    """Training steps of base, instead of --minutes."""
    rows: tuple[str, ...] | None = None
    """Names of rows; all by default, base always."""
    scored_split: str = "validation"
    """Split that is scored."""


def main(options: Options) -> int:
    """Count, then train, score and write the table after every row."""
    if not options.output:
        raise InputError("missing --output=DIR")
    require_at_least(1, steps=options.steps)
    names = study_tables.checked_names("rows", options.rows, [row.name for row in ROWS])
    output = paths.absolute(options.output)
    chosen = [row for row in ROWS if row.name in (*names, "base")]
    counted = [counts_of(row) for row in chosen]
    if options.minutes is None and options.steps is None:
        print(study_tables.write_table(output, "table3", COUNTS, counted), end="")
        return 0
    steps = options.steps or steps_within(options, output)
    print(f"{steps:,} steps a row", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = []
    for row, counts in zip(chosen, counted, strict=True):
        directory = output / "runs" / row.directory
        try:
            rows.append(counts | measured(row, options, steps, directory))
        except study_runs.Stopped as stopped:
            return stopped.code
        table = study_tables.write_table(output, "table3", (*COUNTS, *SCORES), rows)
        figures.save(table3_rows.draw(rows), output / "table3.png")
    print(table, end="")
    published = {
        name: table3_rows.rank_correlation(
            [row[name] for row in rows], [row[f"paper_{name}"] for row in rows]
        )
        for name in ("perplexity", "bleu")
    }
    print(json.dumps({"rows": len(rows), "steps": steps, "rank_correlation": published}))
    return 0


def counts_of(row: Row) -> dict[str, Any]:
    """The published numbers of a row, and its parameters at the paper's size."""
    big = row.name == "big"
    vocabulary = table3_rows.VOCABULARY_OF_BIG if big else table3_rows.VOCABULARY
    return {
        "group": row.group,
        "row": row.name,
        "paper_millions": row.millions,
        "millions": table3_rows.parameters(row, vocabulary) / 1e6,
        "parameters_37000": table3_rows.parameters(row, 37_000),
        "paper_perplexity": row.perplexity,
        "paper_bleu": row.bleu,
    }


def measured(row: Row, options: Options, steps: int, directory: epath.Path) -> dict[str, Any]:
    """Train and score a row, if that is not done yet."""
    config = table3_rows.config_of(row, options.config, options.scale, steps)
    result = study_runs.trained(config, directory)
    scores = study_runs.scored(directory, options.scored_split)
    return {
        "parameters": result["parameters"],
        "steps": result["step"],
        "seconds": result["seconds"],
        "perplexity": scores["perplexity"],
        "bleu": scores["bleu"],
        "bleu_ci": scores["bleu_ci"],
        "bleu_text": study_tables.with_interval(scores),
    }


def steps_within(options: Options, output: epath.Path) -> int:
    """Steps of base in --minutes on this machine; measured once and kept in --output.

    Raises:
      InputError: if not even one step fits.
    """
    [base] = [row for row in ROWS if row.name == "base"]
    scaled = table3_rows.config_of(base, options.config, options.scale, 1)
    steps = study_runs.measure_step(scaled, output).steps_in(options.minutes)
    if steps < 1:
        raise InputError(
            f"--minutes={options.minutes:g} is less than a step of base takes; raise it or --scale"
        )
    return steps


if __name__ == "__main__":
    run(main, "config", Options)
