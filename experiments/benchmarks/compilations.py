# SPDX-License-Identifier: Apache-2.0
"""Count and time what an app or a notebook compiles, with empty caches and again with filled ones.

python -m experiments.benchmarks.compilations \\
    --command="train --config=pronouns:de --workdir={folder}/de" \\
    --command="translate --workdir=runs/de --input=lines.txt" \\
    --notebook=notebooks/05_attention_heads.ipynb

Each --command is an app with its flags; {folder} is a new folder in each start, and --stdin a file
that every app reads as standard input, for `translate --interactive`. Each --notebook is run here,
so that it finds its model in the folder `runs`. Standard output has
one JSON object per start: seconds of the process, of tracing, lowering and compiling in it, and the
programs that took longest, with the number of their shapes. A program that comes from the
persistent cache counts as a hit, with the seconds that loading it took. Several threads compile at
the same time; the share is of the process's time in which at least one did.
A notebook also has the cells with the most of these seconds: their number among the code cells,
seconds, compilations, and seconds of tracing, lowering and compiling.
"""

import collections
import datetime
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from absl import flags

from experiments.cli.command_line import run
from transformer import paths
from transformer.errors import InputError

COMMANDS = flags.DEFINE_multi_string("command", [], "App and flags, such as 'train --config=...'.")
NOTEBOOKS = flags.DEFINE_multi_string("notebook", [], "Notebook (.ipynb).")
STDIN = flags.DEFINE_string("stdin", os.devnull, "File that is the standard input of the apps.")
LONGEST = 5
"""Programs and cells that are named."""

_STAGES = {
    "tracing": "tracing",
    "jaxpr to MLIR module conversion": "lowering",
    "XLA compilation of": "compiling",
}
_FINISHED = re.compile(rf"Finished ({'|'.join(_STAGES)}) (?:jit\()?(\w+).* in ([\d.e-]+) sec")
_HIT = "Persistent compilation cache hit"


def main() -> None:
    """Measure every command and every notebook, cold and warm."""
    if not COMMANDS.value + NOTEBOOKS.value:
        raise InputError("missing --command='APP --FLAG=VALUE ...' or --notebook=FILE.ipynb")
    subjects = [("command", each, _figures_of_app) for each in COMMANDS.value]
    subjects += [("notebook", each, _figures_of_notebook) for each in NOTEBOOKS.value]
    for kind, subject, measure in subjects:
        with tempfile.TemporaryDirectory() as folder:
            for caches in ("cold", "warm"):
                os.mkdir(f"{folder}/{caches}")
                figures = measure(subject, f"{folder}/{caches}", f"{folder}/cache")
                print(json.dumps({kind: subject, "caches": caches} | figures), flush=True)


def _figures_of_app(command: str, folder: str, cache: str) -> dict[str, Any]:
    """The figures of one start of an app; `folder` stands for {folder} in the command."""
    began = time.perf_counter()
    log, times = _log_of(shlex.split(command.replace("{folder}", folder)), cache)
    return summarize(log, time.perf_counter() - began, times)


def _figures_of_notebook(path: str, _: str, cache: str) -> dict[str, Any]:
    """The figures of one run of a notebook."""
    return summarize_cells(_cells_of(path, cache))


def _log_of(arguments: list[str], cache: str) -> tuple[list[str], list[float]]:
    """The lines that an app, run to its end, writes to standard error, and when each came.

    Raises:
      InputError: if the app fails.
    """
    lines, times = [], []
    with (
        open(STDIN.value, encoding="utf-8") as stdin,
        subprocess.Popen(
            [sys.executable, "-m", f"experiments.{arguments[0]}", *arguments[1:]],
            env=_environment(cache),
            text=True,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            times.append(time.perf_counter())
    if process.returncode:
        reason = lines[-1] if lines else "no message"
        raise InputError(f"{arguments[0]} ended with status {process.returncode}: {reason}")
    return lines, times


def _environment(cache: str) -> dict[str, str]:
    """The environment of a process that logs its compilations and has this cache folder."""
    return os.environ | {"XDG_CACHE_HOME": cache, "JAX_LOG_COMPILES": "1"}


class Cell(NamedTuple):
    """A code cell that was run."""

    log: list[str]
    """The lines of its standard error."""
    seconds: float


def _cells_of(path: str, cache: str) -> list[Cell]:
    """The code cells of a notebook, run to its end.

    Raises:
      InputError: if the notebook cannot be read or fails, or the package that runs it is missing.
    """
    try:
        import nbclient
        import nbformat
    except ModuleNotFoundError as error:
        raise InputError(
            f"--notebook needs the package {error.name}, which is not installed; install it with: "
            "pip install nbclient ipykernel"
        ) from None
    try:
        notebook = nbformat.read(path, as_version=4)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {paths.reason(error)}") from None
    except ValueError as error:
        raise InputError(f"{path} is no notebook: {error}") from None
    client = nbclient.NotebookClient(notebook, timeout=None)
    try:
        client.execute(env=_environment(cache))
    except nbclient.exceptions.CellExecutionError as error:
        raise InputError(f"{path} failed: {error.ename}: {error.evalue}") from None
    return [
        Cell(
            [
                line
                for output in cell.outputs
                if output.get("name") == "stderr"
                for line in output.text.splitlines()
            ],
            _seconds_of(cell.metadata.execution),
        )
        for cell in client.nb.cells
        if cell.cell_type == "code" and cell.source
    ]


def _seconds_of(times: dict[str, str]) -> float:
    """Seconds between the kernel's messages that a cell has begun and that it has ended."""
    began, ended = (
        datetime.datetime.fromisoformat(times[f"iopub.status.{state}"])
        for state in ("busy", "idle")
    )
    return (ended - began).total_seconds()


def summarize_cells(cells: Sequence[Cell]) -> dict[str, Any]:
    """The figures of `summarize` for a notebook, and of the cells that compile longest."""
    whole = summarize(
        [line for cell in cells for line in cell.log], sum(cell.seconds for cell in cells)
    )
    rows = []
    for number, cell in enumerate(cells, start=1):
        figures = summarize(cell.log, cell.seconds)
        compiling = sum(figures[f"{stage}_seconds"] for stage in _STAGES.values())
        rows.append((number, figures["seconds"], figures["compilations"], round(compiling, 2)))
    longest = sorted(rows, key=lambda row: -row[-1])[:LONGEST]
    return whole | {"code_cells": len(cells), "longest_cells": longest}


def summarize(
    log: Sequence[str], seconds: float, times: Sequence[float] | None = None
) -> dict[str, Any]:
    """Counts and seconds of a log with JAX_LOG_COMPILES=1.

    Args:
      log: lines of standard error.
      seconds: of the process.
      times: when each line came, in seconds; None where only one thread compiles.
    """
    totals = dict.fromkeys(_STAGES.values(), 0.0)
    programs = collections.defaultdict(lambda: [0, 0.0])
    hits, intervals = 0, []
    for number, line in enumerate(log):
        hits += _HIT in line
        if match := _FINISHED.search(line):
            stage, name, value = _STAGES[match[1]], match[2], float(match[3])
            totals[stage] += value
            programs[name][0] += stage == "compiling"
            programs[name][1] += value
            if times is not None:
                intervals.append((times[number] - value, times[number]))
    busy = sum(totals.values()) if times is None else covered(intervals)
    longest = sorted(programs.items(), key=lambda each: -each[1][1])[:LONGEST]
    return {
        "seconds": round(seconds, 2),
        "compilations": sum(count for count, _ in programs.values()),
        "cache_hits": hits,
        **{f"{stage}_seconds": round(value, 2) for stage, value in totals.items()},
        "share": round(busy / seconds, 3),
        "longest": {name: [count, round(value, 2)] for name, (count, value) in longest},
    }


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals (start, end)."""
    length, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        length += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return length


if __name__ == "__main__":
    run(main, config_from=None)
