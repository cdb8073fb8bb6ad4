# SPDX-License-Identifier: Apache-2.0
"""Time from process start to the first training step and to the first translation.

python -m experiments.benchmarks.start --config=experiments/configs/pronouns.py

Starts `train` and `translate` in a temporary folder: cold, with an empty cache folder, and then
warm, with the programs that the cold start compiled. Every training has a new workdir and learns
its vocabulary. Standard output has one JSON object per result, with medians over the starts.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from absl import flags

from experiments.flags import run
from transformer.config import Config
from transformer.errors import InputError

_STARTS = flags.DEFINE_integer("starts", 3, "Starts of each kind.", lower_bound=1)
_SENTENCE = flags.DEFINE_string("sentence", "The book is new.", "Sentence to translate.")


def main(config: Config) -> None:
    """Measure and print."""
    config = config.replace(
        training=config.training.replace(steps=1, validation_sentences=1),
        logging=config.logging.replace(log_every=1, samples=0, tensorboard=False),
    )
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(_STARTS.value):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/config.py", "w", encoding="utf-8") as file:
                file.write("from transformer.config import Config\n\n")
                file.write(f"get_config = lambda: Config.from_json({config.to_json()!r})\n")
            for caches in ("cold", "warm"):
                for event, seconds in start_once(folder, caches).items():
                    times.setdefault((event, caches), []).append(seconds)
    for (event, caches), seconds in times.items():
        result = {
            "until": event,
            "caches": caches,
            "seconds": round(statistics.median(seconds), 2),
            "range": [round(min(seconds), 2), round(max(seconds), 2)],
        }
        print(json.dumps(result), flush=True)


def start_once(folder: str, caches: str) -> dict[str, float]:
    """Seconds until each event, with the current state of the caches in `folder`.

    `train` and `translate` have separate caches, because training compiles the search too.
    """

    def seconds(app: str, *arguments: str, **options: str) -> float:
        workdir = f"--workdir={folder}/{caches}"
        environment = os.environ | {"XDG_CACHE_HOME": f"{folder}/cache_{app}"}
        command = [sys.executable, "-m", f"experiments.{app}", workdir, *arguments]
        return seconds_until(command, environment, **options)

    config = f"--config={folder}/config.py"
    return {
        "first step": seconds("train", config, prefix="step 1/", stream="stderr"),
        "first translation": seconds("translate", stdin=f"{_SENTENCE.value}\n", stream="stdout"),
    }


def seconds_until(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stream: str,
    prefix: str = "",
    stdin: str = "",
) -> float:
    """Run a command to its end; return the seconds until its first line with a prefix.

    Args:
      command: program and arguments.
      environment: environment variables.
      stream: ``stdout`` or ``stderr``, where the line is expected; it is copied to standard error.
      prefix: of the line.
      stdin: text of standard input.

    Raises:
      InputError: if it fails or never prints such a line.
    """
    began, seconds = time.perf_counter(), None
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, stream: subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **streams) as process:
        process.stdin.write(stdin)
        process.stdin.close()
        for line in getattr(process, stream):
            print(line, end="", file=sys.stderr)
            if seconds is None and line.startswith(prefix):
                seconds = time.perf_counter() - began
    if process.returncode or seconds is None:
        raise InputError(
            f"{' '.join(command)} ended with status {process.returncode} and without a line that "
            f"starts with {prefix!r} on {stream}; its messages are above"
        )
    return seconds


if __name__ == "__main__":
    run(main, config_from="config")
