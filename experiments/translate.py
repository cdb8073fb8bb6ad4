# SPDX-License-Identifier: Apache-2.0
"""Translates text, line by line.

python -m experiments.translate --workdir=runs/de < input.txt > output.txt

One line out for each line in, in the same order; an empty line gives an empty line. With --nbest=N,
N lines for each line in: its index from 0, the score, the text, separated by tabs. The score is
log P / length penalty. A line of more than data.max_length tokens is cut to its first
data.max_length - 1, with a warning.
"""

import contextlib
import pathlib
import sys
from collections.abc import Iterator

from absl import flags

from experiments.datasets.text_files import split_lines
from experiments.flags import run
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator

WORKDIR = flags.DEFINE_string("workdir", None, "Directory that train left.")
INPUT = flags.DEFINE_string(
    "input", None, "Text file, one sentence a line; standard input if absent."
)
OUTPUT = flags.DEFINE_string("output", None, "Where the lines go; standard output if absent.")
NBEST = flags.DEFINE_integer("nbest", None, "Translations a sentence; at most decode.beams.")
SCORES = flags.DEFINE_boolean(
    "scores", False, "Put the score, log P / length penalty, and a tab before each translation."
)
AVERAGE = flags.DEFINE_integer(
    "average", None, "Use the mean of the last that many checkpoints instead of the best one."
)


def main(config: Config) -> None:
    """Reads, translates, writes."""
    if NBEST.value is not None and not 1 <= NBEST.value <= config.decode.beams:
        raise InputError(
            f"--nbest={NBEST.value}, but decode.beams is {config.decode.beams}; ask for 1 to that "
            "many, or raise --config.decode.beams"
        )
    translator = Translator.from_workdir(WORKDIR.value, config, AVERAGE.value)
    lines = _read(INPUT.value)
    with _writer(OUTPUT.value) as output:
        # In parts, so that a long file shows its first lines early and is not held in memory twice.
        part = 64 * config.decode.batch_size
        for start in range(0, len(lines), part):
            for line in _translated(translator, lines[start : start + part], start):
                output.write(line + "\n")
            output.flush()


def _translated(translator: Translator, sentences: list[str], start: int) -> Iterator[str]:
    nbest = translator.nbest(sentences, NBEST.value or 1, first_line=start + 1)
    for index, results in enumerate(nbest, start):
        for result in results:
            if NBEST.value is not None:
                yield f"{index}\t{result.score:.6f}\t{result.text}"
            elif SCORES.value:
                yield f"{result.score:.6f}\t{result.text}"
            else:
                yield result.text


def _read(path: str | None) -> list[str]:
    if path is None:
        return split_lines(sys.stdin.buffer.read(), "standard input")
    try:
        return split_lines(pathlib.Path(path).read_bytes(), path)
    except OSError as error:
        raise InputError(f"--input={path} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def _writer(path: str | None) -> Iterator:
    """Only a new line ends a line here too, on every platform."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    try:
        file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InputError(f"--output={path} cannot be written: {error.strerror}") from None
    with file:
        yield file


if __name__ == "__main__":
    run(main, config_from="workdir")
