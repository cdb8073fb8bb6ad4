# SPDX-License-Identifier: Apache-2.0
"""Time from process start to the first training step and to the first translation.

python -m experiments.benchmarks.start --config=pronouns

Starts `train` and `translate` in a temporary folder: cold, with an empty cache folder, and then
warm, with the programs that the cold start compiled. Every training has a new workdir and learns
its vocabulary. Standard output has one JSON object per result, with medians over the starts.
"""

import collections
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from experiments.cli import command_line
from experiments.cli.options import require_at_least
from transformer.config import Config
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options:
    """The training, and how often it is started."""

    config: Config = Config()
    """Config of the training, of which only one step is done."""
    starts: int = 3
    """Starts of each kind."""


def run(options: Options) -> None:
    """Measure and print."""
    require_at_least(1, starts=options.starts)
    config = options.config
    config = config.replace(
        training=config.training.replace(steps=1, validation_sentences=1),
        logging=config.logging.replace(log_every=1, samples=0, tensorboard=False),
    )
    times = collections.defaultdict(list)
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "config.json")
            file.write_text(config.to_json(), encoding="utf-8")
            for caches in ("cold", "warm"):
                workdir = f"--workdir={folder}/{caches}"
                for event, stream, prefix, app in (
                    ("first step", "stderr", "step 1/", ["train", f"--config={file}"]),
                    ("first translation", "stdout", "", ["translate"]),
                ):
                    # Separate cache folders, because training compiles the search too.
                    cache = f"{folder}/cache_{app[0]}"
                    seconds = seconds_until(stream, prefix, cache, *app, workdir)
                    times[event, caches].append(seconds)
    for (event, caches), seconds in times.items():
        result = {
            "until": event,
            "caches": caches,
            "seconds": round(statistics.median(seconds), 2),
            "range": [round(min(seconds), 2), round(max(seconds), 2)],
        }
        print(json.dumps(result), flush=True)


def seconds_until(stream: str, prefix: str, cache: str, app: str, *arguments: str) -> float:
    """Run an app on one sentence; return the seconds until the first line with a prefix.

    Args:
      stream: ``stdout`` or ``stderr``, where the line is expected; it is copied to standard error.
      prefix: beginning of the line.
      cache: the user's cache folder.
      app: module of `experiments`.
      *arguments: arguments of the app.
    """
    began, seconds = time.perf_counter(), None
    with subprocess.Popen(
        [sys.executable, "-m", f"experiments.{app}", *arguments],
        env=os.environ | {"XDG_CACHE_HOME": cache},
        text=True,
        **{"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, stream: subprocess.PIPE},
    ) as process:
        process.stdin.write("The book is new.\n")
        process.stdin.close()
        for line in getattr(process, stream):
            print(line, end="", file=sys.stderr)
            if seconds is None and line.startswith(prefix):
                seconds = time.perf_counter() - began
    if process.returncode or seconds is None:
        raise InputError(
            f"{app} ended with status {process.returncode} and without a line that starts with "
            f"{prefix!r} on {stream}; its messages are above"
        )
    return seconds


if __name__ == "__main__":
    command_line.run(run, "config", Options)
