# SPDX-License-Identifier: Apache-2.0
"""How long it takes from the start of a process to the first training step and first translation.

python -m experiments.benchmarks.start --config=experiments/configs/pronouns.py

`train` and `translate` themselves are started, in a temporary folder: cold, with nothing in the
user's cache folder, and then warm, with the programs that the cold one has compiled. Each training
begins in a new workdir, so that its text is read and its vocabulary learned in both. Standard
output has one JSON object a result, of medians over the starts.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from absl import flags

from experiments.benchmarks.reporting import say
from experiments.flags import run
from transformer.config import Config
from transformer.errors import InputError

_STARTS = flags.DEFINE_integer("starts", 3, "Of which the median is taken.", lower_bound=1)
_SENTENCE = flags.DEFINE_string("sentence", "The book is new.", "What is translated.")

FIRST_STEP, ANYTHING = re.compile(r"step 1/"), re.compile(r"")
_CONFIG_FILE = """\
from transformer.config import Config


def get_config():
    return Config.from_json({text!r})
"""


def main(config: Config) -> None:
    """Measures and prints."""
    one_step = config.replace(
        training=config.training.replace(steps=1, validation_sentences=1),
        logging=config.logging.replace(log_every=1, samples=0, tensorboard=False),
    )
    taken: dict[tuple[str, str], list[float]] = {}
    for number in range(_STARTS.value):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "config.py").write_text(_CONFIG_FILE.format(text=one_step.to_json()))
            for state in ("cold", "warm"):
                say(f"start {number + 1} of {_STARTS.value}, {state}")
                for event, seconds in once(folder, state).items():
                    taken.setdefault((event, state), []).append(seconds)
    for (event, state), seconds in taken.items():
        result = {
            "benchmark": "start",
            "until": event,
            "caches": state,
            "seconds": round(statistics.median(seconds), 2),
            "lowest": round(min(seconds), 2),
            "highest": round(max(seconds), 2),
            "starts": len(seconds),
        }
        print(json.dumps(result), flush=True)


def once(folder: pathlib.Path, state: str) -> dict[str, float]:
    """Seconds to each event, with whatever is in the folder's caches.

    Each command has a cache of its own, because a training compiles what translates its validation
    sentences.
    """
    first, second = (
        os.environ | {"XDG_CACHE_HOME": str(folder / f"cache_of_{command}")}
        for command in ("train", "translate")
    )
    python, workdir = [sys.executable, "-m"], f"--workdir={folder / state}"
    train = [*python, "experiments.train", f"--config={folder / 'config.py'}", workdir]
    translate = [*python, "experiments.translate", workdir]
    return {
        "first step": seconds_until(FIRST_STEP, train, first, of_errors=True),
        "first translation": seconds_until(
            ANYTHING, translate, second, text=f"{_SENTENCE.value}\n"
        ),
    }


def seconds_until(
    pattern: re.Pattern[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    text: str = "",
    of_errors: bool = False,
) -> float:
    """From the start of a command to the first line that begins with a pattern; it is then left to
    end.

    Args:
      pattern: of the line.
      command: and its arguments.
      environment: its variables.
      text: its standard input.
      of_errors: whether the line is on standard error, and not on standard output.

    Raises:
      InputError: when it ends with another status than 0 or without such a line.
    """
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as rest:
        given.write(text)
        given.seek(0)
        streams = {"stdout": rest, "stderr": subprocess.PIPE}
        if not of_errors:
            streams = {"stdout": subprocess.PIPE, "stderr": rest}
        began, found = time.perf_counter(), None
        with subprocess.Popen(
            command, env=environment, stdin=given, text=True, **streams
        ) as process:
            for line in process.stderr if of_errors else process.stdout:
                if found is None and pattern.match(line):
                    found = time.perf_counter() - began
                if of_errors:
                    rest.write(line)
        if process.returncode or found is None:
            rest.seek(0)
            last = (rest.read().splitlines() or ["it said nothing"])[-1]
            raise InputError(f"{' '.join(command)} ended with {process.returncode}: {last}")
    return found


if __name__ == "__main__":
    run(main, config_from="config")
