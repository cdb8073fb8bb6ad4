# SPDX-License-Identifier: Apache-2.0
"""The documents: their width, their commands, and the tables made of docs/results/*.json."""

import json
import re
import runpy

import pytest
from apps import REPOSITORY

DOCUMENTS = sorted(
    [
        *(REPOSITORY / "docs").glob("*.md"),
        *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
)
RESULTS = sorted((REPOSITORY / "docs" / "results").glob("*.json"))
GENERATED = re.compile(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->", re.DOTALL)
"""What a study writes into a page."""


def named(path):
    return path.name


def prose(page):
    """(number, line) of a page without its code, tables, pictures, comments and links alone."""
    fenced = False
    page = GENERATED.sub(lambda found: re.sub(".+", "", found[0]), page)
    for number, line in enumerate(page.splitlines(), 1):
        code = line.lstrip().startswith("```")
        fenced ^= code
        alone = re.fullmatch(r"\s*!?\[.*\]\(\S+\)[,.]?", line)
        if not (fenced or code or alone or line.lstrip().startswith(("|", "<!--"))):
            yield number, line


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_text_is_wrapped_at_120_columns(path):
    lines = prose(path.read_text(encoding="utf-8"))
    assert [number for number, line in lines if len(line) > 120] == []


def test_prose_is_what_a_reader_reads():
    page = (
        "text\n```bash\ncode\n```\n| a |\n![a](b.png)\n<!-- c -->\nd\n<!-- end of c -->\n[e](f) g\n"
    )
    assert [line for _, line in prose(page) if line] == ["text", "[e](f) g"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_an_app_is_called_by_the_name_transformer(path):
    """README alone says once that `python -m experiments.train` is the same."""
    page = path.read_text(encoding="utf-8")
    modules = re.findall(r"python -m experiments\.(?!studies\.|benchmarks\.)\w+", page)
    once = ["python -m experiments.train"] if path.name == "README.md" else []
    assert modules == once
    assert re.findall(r"--config=(?:[a-z_]+\.py|experiments/)\S*", page) == []


@pytest.mark.parametrize("path", RESULTS, ids=named)
def test_a_row_of_a_table_names_its_command(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    shared = content["circumstances"]
    for run in content["runs"]:
        if "table" in run and run["table"] != "changes":
            assert "command" in shared | run, run
        used = set(re.findall(r"\$([A-Z]\w*)", (shared | run).get("command", "")))
        assert used <= set(shared.get("variables", {})), run


@pytest.fixture(scope="module")
def tables():
    """The names of scripts/results_tables.py."""
    return runpy.run_path(str(REPOSITORY / "scripts" / "results_tables.py"))


def test_the_tables_of_the_results_are_those_of_the_rows(tables):
    page = (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8")
    assert tables["written"](page) == page
    assert page.count("| 40.3 |") > 0
    assert tables["written"](page.replace("| 40.3 |", "| 40.4 |")) == page


def test_every_table_of_the_rows_is_in_the_page():
    page = (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8")
    kinds = {
        f"{path.stem}/{run['table']}"
        for path in RESULTS
        for run in json.loads(path.read_text(encoding="utf-8"))["runs"]
        if "table" in run
    }
    assert kinds == set(re.findall(r"<!-- (?:sideways )?table (\S+):", page))


def test_a_table_by_hand(tables, tmp_path):
    rows = (
        '{"circumstances": {"steps": 1000}, "runs": ['
        '{"table": "a", "model": "m", "seed": 0, "scores": {"bleu": [40.0, 38, 41.50]}},'
        '{"table": "a", "model": "m", "seed": 1, "scores": {"bleu": 39.90}},'
        '{"table": "b", "model": "n"}]}'
    )
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.json").write_text(rows)
    tables["table"].__globals__["DOCS"] = tmp_path
    columns = "model = model, steps = steps, BLEU = bleu%, chrF = chrf"
    assert tables["table"]("table", "x", "a", columns) == (
        "| model | steps | BLEU | chrF |\n"
        "| --- | --- | --- | --- |\n"
        "| m | 1,000 | 40.0% [38, 41.50]; 39.90% |  |\n"
    )
    assert tables["table"]("sideways table", "x", "b", columns) == (
        "| model | n |\n| --- | --- |\n| steps | 1,000 |\n| BLEU |  |\n| chrF |  |\n"
    )
    with pytest.raises(SystemExit, match="no run of the table 'c'"):
        tables["table"]("table", "x", "c", columns)
