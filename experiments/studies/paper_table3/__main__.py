# SPDX-License-Identifier: Apache-2.0
"""Every row of the paper's table 3: parameter counts, and measured scores at a smaller size.

python -m experiments.studies.paper_table3 --config=base --output=table3
python -m experiments.studies.paper_table3 --config=pronouns:de --output=table3 \\
    --scale=4 --minutes=3

Without --minutes and --steps, only counts the parameters of the rows at the paper's size. With one
of them, trains every row on the corpus of --config, with its vocabulary, optimizer and decoding,
and with all widths of the table divided by --scale. As in the paper, every row takes the same
number of steps, and big three times as many: --minutes is the time of base on this machine, by the
mean time of its first steps. Scores are perplexity per token and BLEU with its interval.

Writes table3.md, table3.json and table3.png to --output, and a workdir a row in runs. Repeat the
command to continue: what is trained is not trained again. The last line printed is a JSON object
with the rank correlations of measured and published scores.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
from etils import epath

from experiments.cli import command_line
from experiments.cli.options import require_at_least
from experiments.cli.scored_pairs import ScoredPairs
from experiments.studies import study_runs, study_tables
from experiments.studies.paper_table3.rows import ROWS, Row, config_of, parameters
from experiments.studies.study_tables import Column
from transformer import paths
from transformer.config import Config
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures import parts, style

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


def run(options: Options) -> dict[str, Any]:
    """Count, then train and score; write the table after every row.

    Returns:
      The table, and after trainings the number of steps and the rank correlations.
    """
    if not options.output:
        raise InputError("missing --output=DIRECTORY")
    require_at_least(1, steps=options.steps)
    names = study_tables.checked_names("rows", options.rows, [row.name for row in ROWS])
    output = paths.absolute(options.output)
    chosen = [row for row in ROWS if row.name in (*names, "base")]
    counted = [counts_of(row) for row in chosen]
    if options.minutes is None and options.steps is None:
        return {"table": study_tables.write_table(output, "table3", COUNTS, counted)}
    steps = options.steps or steps_within(options, output)
    print(f"{steps:,} steps a row", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = []
    for row, counts in zip(chosen, counted, strict=True):
        directory = output / "runs" / row.directory
        config = config_of(row, options.config, options.scale, steps)
        result = study_runs.trained(config, directory)
        scores = study_runs.scored(directory, ScoredPairs(options.scored_split))
        measured = {key: scores[key] for key in ("perplexity", "bleu", "bleu_ci")}
        measured |= {"bleu_text": study_tables.with_interval(scores), "steps": result["step"]}
        measured |= {key: result[key] for key in ("parameters", "seconds")}
        rows.append(counts | measured)
        table = study_tables.write_table(output, "table3", (*COUNTS, *SCORES), rows)
        figures.save(picture(rows), output / "table3.png")
    correlations = {
        name: rank_correlation([row[name] for row in rows], [row[f"paper_{name}"] for row in rows])
        for name in ("perplexity", "bleu")
    }
    return {"table": table, "rows": len(rows), "steps": steps, "rank_correlation": correlations}


def main(options: Options) -> None:
    """Print the table and, after trainings, the JSON."""
    result = run(options)
    print(result.pop("table"), end="")
    if result:
        print(json.dumps(result))


def counts_of(row: Row) -> dict[str, Any]:
    """The published numbers of a row, and its parameters at the paper's size."""
    return {
        "group": row.group,
        "row": row.name,
        "paper_millions": row.millions,
        "millions": parameters(row) / 1e6,
        "parameters_37000": parameters(row, 37_000),
        "paper_perplexity": row.perplexity,
        "paper_bleu": row.bleu,
    }


def steps_within(options: Options, output: epath.Path) -> int:
    """Steps of base in --minutes on this machine; measured once and kept in --output.

    Raises:
      InputError: if not even one step fits.
    """
    scaled = config_of(ROWS[0], options.config, options.scale, 1)
    steps = study_runs.measure_step(scaled, output).steps_in(options.minutes)
    if steps < 1:
        raise InputError(
            f"--minutes={options.minutes:g} is less than a step of base takes; raise it or --scale"
        )
    return steps


@style.styled
def picture(rows: Sequence[Mapping[str, Any]]) -> figures.DescribedFigure:
    """Draw the change against base in the paper and here: perplexity in percent, and BLEU.

    Args:
      rows: rows of the table, base first.
    """
    panels = []
    for key, unit in (("perplexity", "% of base"), ("bleu", "BLEU")):
        values = np.array([[row[f"paper_{key}"], row[key]] for row in rows])
        values = 100 * (values / values[0] - 1) if key == "perplexity" else values - values[0]
        labels = {"rows": [row["row"] for row in rows], "columns": ["paper", "here"]}
        extent = (1.6, 0.24 * len(rows))
        panels.append(parts.signed_panel(key, key, values, extent, legend=unit, **labels))
    figure, images = parts.draw_panels(
        [panels],
        title="Table 3: change against base, in the paper and here",
        note="Paper: newstest2013. Here: another size, another corpus, fewer steps.",
    )
    for image in images:
        parts.write_numbers(image, "{:+.1f}")
    changes = zip(labels["rows"], *(panel.values[:, 1] for panel in panels), strict=True)
    figure.description = "Change against base. " + "; ".join(
        f"{row}: perplexity {perplexity:+.1f}% and {bleu:+.1f} BLEU"
        for row, perplexity, bleu in changes
    )
    return figure


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None if all values of one side are equal."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(scipy.stats.spearmanr(one, other).statistic)


if __name__ == "__main__":
    command_line.run(main, "config", Options)
