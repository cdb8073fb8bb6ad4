# SPDX-License-Identifier: Apache-2.0
"""Write the tables of docs/results.md from the runs in docs/results/*.json.

python scripts/results_tables.py          write the tables
python scripts/results_tables.py --check  exit with status 1 where the page differs

A file holds `runs`, one row a run, and `circumstances` that its runs share. A run with a `table` is
a line of it. The page names a table and its columns in a comment, which the table follows:

    <!-- table tatoeba/seeds: BLEU = bleu, exact match = exact_match% -->

A column is `title = field`, with `%` where the numbers are percentages. A field is one of the run
or of its `scores`. A list of three numbers is a score with its interval. Runs that differ in
numbers alone, such as seeds, share a line.
"""

import json
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "results.md"
TABLE = re.compile(r"(<!-- (table|sideways table) (\w+)/(\w+): (.*?) -->\n)((?:\|.*\n)*)")


class Measured(str):
    """A number as it was written, with its digits."""


def read(name):
    """The runs of a file, with what they share."""
    text = (DOCS / "results" / f"{name}.json").read_text(encoding="utf-8")
    content = json.loads(text, parse_float=Measured)
    return [content["circumstances"] | run for run in content["runs"]]


def number(value, percent):
    """The text of one number."""
    digits = value if isinstance(value, Measured) else f"{value:,}"
    return digits + percent


def cell(value, percent):
    """The text of one value."""
    if value is None:
        return ""
    if isinstance(value, list):
        score, low, high = (number(each, "") for each in value)
        return f"{score}{percent} [{low}, {high}]"
    if isinstance(value, int | Measured):
        return number(value, percent)
    return value


def joined(values):
    """The cells of the runs of a line: one where all are equal, else all of them in order."""
    values = [value for value in values if value]
    return "; ".join(values if len(set(values)) > 1 else values[:1])


def table(form, name, kind, columns):
    """The lines of a table, or those of a `sideways table`, which has the runs in columns."""
    titles, fields = zip(*(column.split(" = ") for column in columns.split(", ")), strict=True)
    lines = {}
    for run in read(name):
        if run.get("table") == kind:
            values = [(run | run.get("scores", {})).get(field.strip("%")) for field in fields]
            words = tuple(value for value in values if type(value) is str)
            cells = [
                cell(value, "%" * field.endswith("%"))
                for field, value in zip(fields, values, strict=True)
            ]
            lines.setdefault(words, []).append(cells)
    if not lines:
        raise SystemExit(f"docs/results/{name}.json has no run of the table {kind!r}.")
    rows = [[joined(column) for column in zip(*runs, strict=True)] for runs in lines.values()]
    grid = list(zip(titles, *rows, strict=True)) if form.startswith("sideways") else [titles, *rows]
    grid.insert(1, ["---"] * len(grid[0]))
    return "".join(f"| {' | '.join(row)} |\n" for row in grid)


def written(page):
    """The page with its tables made anew."""
    return TABLE.sub(lambda found: found[1] + table(*found.groups()[1:5]), page)


def main(arguments):
    """Write the page, or with `--check` return a message where it would change."""
    old = PAGE.read_text(encoding="utf-8")
    new = written(old)
    if "--check" in arguments:
        return "docs/results.md differs: run scripts/results_tables.py" if old != new else None
    PAGE.write_text(new, encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
