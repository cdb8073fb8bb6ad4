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
import statistics
import subprocess
import sys
import tempfile
import time

from experiments.cli.command_line import run
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


def main(options: Options) -> None:
    """Measure and print."""
    require_at_least(1, starts=options.starts)
    given = options.config
    config = given.replace(
        training=given.training.replace(steps=1, validation_sentences=1),
        logging=given.logging.replace(log_every=1, samples=0, tensorboard=False),
    )
    times = collections.defaultdict(list)
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/config.py"
            with open(file, "w", encoding="utf-8") as text:
                text.write("from transformer.config import Config\n\n")
                text.write(f"get_config = lambda: Config.from_json({config.to_json()!r})\n")
            for caches in ("cold", "warm"):
                # Separate cache folders, because training compiles the search too.
                arguments = ["train", f"--workdir={folder}/{caches}", f"--config={file}"]
                seconds = seconds_until("stderr", "step 1/", f"{folder}/cache_train", *arguments)
                times["first step", caches].append(seconds)
                arguments = ["translate", f"--workdir={folder}/{caches}"]
                seconds = seconds_until("stdout", "", f"{folder}/cache_translate", *arguments)
                times["first translation", caches].append(seconds)
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
      prefix: of the line.
      cache: the user's cache folder.
      app: module of `experiments`.
      arguments: of the app.

    Raises:
      InputError: if the app fails or never prints such a line.
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
    run(main, "config", Options)
