# SPDX-License-Identifier: Apache-2.0
"""Count and time what an app compiles, with empty caches and again with filled ones.

python -m experiments.benchmarks.compilations \\
    --command="train --config=pronouns:de --workdir={folder}/de" \\
    --command="translate --workdir=runs/de --input=lines.txt"

Each --command is an app with its flags; {folder} is a new folder in each start, and --stdin a file
that every app reads as standard input, for `translate --interactive`. Standard output has
one JSON object per start: seconds of the process, of tracing, lowering and compiling in it, their
share of the process's time, and the programs that took longest, with the number of their shapes. A
program that comes from the persistent cache counts as a hit, with the seconds that loading it took.
"""

import collections
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

from absl import flags

from experiments.flags import run
from transformer.errors import InputError

COMMANDS = flags.DEFINE_multi_string("command", [], "App and flags, such as 'train --config=...'.")
STDIN = flags.DEFINE_string("stdin", os.devnull, "File that is the standard input of the apps.")
LONGEST = 5
"""Programs that are named."""

_STAGES = {
    "tracing": "tracing",
    "jaxpr to MLIR module conversion": "lowering",
    "XLA compilation of": "compiling",
}
_FINISHED = re.compile(rf"Finished ({'|'.join(_STAGES)}) (?:jit\()?(\w+).* in ([\d.e-]+) sec")
_HIT = "Persistent compilation cache hit"


def main() -> None:
    """Measure every command, cold and warm."""
    if not COMMANDS.value:
        raise InputError("missing --command='APP --FLAG=VALUE ...'")
    for command in COMMANDS.value:
        with tempfile.TemporaryDirectory() as folder:
            for caches in ("cold", "warm"):
                os.mkdir(f"{folder}/{caches}")
                arguments = shlex.split(command.replace("{folder}", f"{folder}/{caches}"))
                began = time.perf_counter()
                log = _log_of(arguments, f"{folder}/cache")
                about = {"command": command, "caches": caches}
                figures = summarize(log, time.perf_counter() - began)
                print(json.dumps(about | figures), flush=True)


def _log_of(arguments: list[str], cache: str) -> list[str]:
    """The lines that an app, run to its end, writes to standard error.

    Raises:
      InputError: if the app fails.
    """
    with open(STDIN.value, encoding="utf-8") as stdin:
        process = subprocess.run(
            [sys.executable, "-m", f"experiments.{arguments[0]}", *arguments[1:]],
            env=os.environ | {"XDG_CACHE_HOME": cache, "JAX_LOG_COMPILES": "1"},
            text=True,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    lines = process.stderr.splitlines()
    if process.returncode:
        reason = lines[-1] if lines else "no message"
        raise InputError(f"{arguments[0]} ended with status {process.returncode}: {reason}")
    return lines


def summarize(log: Iterable[str], seconds: float) -> dict[str, Any]:
    """Counts and seconds of a log with JAX_LOG_COMPILES=1.

    Args:
      log: lines of standard error.
      seconds: of the process.
    """
    totals = dict.fromkeys(_STAGES.values(), 0.0)
    programs = collections.defaultdict(lambda: [0, 0.0])
    hits = 0
    for line in log:
        hits += _HIT in line
        if match := _FINISHED.search(line):
            stage, name, value = _STAGES[match[1]], match[2], float(match[3])
            totals[stage] += value
            programs[name][0] += stage == "compiling"
            programs[name][1] += value
    longest = sorted(programs.items(), key=lambda each: -each[1][1])[:LONGEST]
    return {
        "seconds": round(seconds, 2),
        "compilations": sum(count for count, _ in programs.values()),
        "cache_hits": hits,
        **{f"{stage}_seconds": round(value, 2) for stage, value in totals.items()},
        "share": round(sum(totals.values()) / seconds, 3),
        "longest": {name: [count, round(value, 2)] for name, (count, value) in longest},
    }


if __name__ == "__main__":
    run(main, config_from=None)
