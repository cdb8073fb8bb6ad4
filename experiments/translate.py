# SPDX-License-Identifier: Apache-2.0
"""Translates text, line by line.

python -m experiments.translate --workdir=runs/de < input.txt > output.txt
python -m experiments.translate --workdir=runs/de --interactive

One line out for each line in, in the same order; an empty line gives an empty line. With --nbest=N,
N lines for each line in: its index from 0, the score, the text, separated by tabs; where fewer
different translations were found, the last have the score -inf and no text. The score is log P /
length penalty, or with --config.decode.method=mbr the mean similarity to the other samples. A line
of more than data.max_length tokens is cut to its first data.max_length - 1, with a warning.
"""

import contextlib
import io
import itertools
import sys
from collections.abc import Iterator
from typing import TextIO

from absl import flags

from experiments import checkpoint_flags
from experiments.corpora.text_files import split_lines
from experiments.flags import run
from transformer import paths
from transformer.config import Config
from transformer.errors import InputError
from transformer.translator import Translator

INPUT = flags.DEFINE_string(
    "input", None, "Text file, one sentence a line; standard input if absent."
)
OUTPUT = flags.DEFINE_string("output", None, "Where the lines go; standard output if absent.")
PREFIX = flags.DEFINE_string(
    "prefix",
    None,
    "Text file: the translation of line n begins with its line n. An empty line forces nothing; a "
    "last word may be gone on with.",
)
INTERACTIVE = flags.DEFINE_boolean(
    "interactive", False, "Translate each sentence as it is typed; an empty line or Ctrl-D ends."
)
NBEST = flags.DEFINE_integer(
    "nbest", None, "Translations a sentence; at most decode.beams (with mbr, decode.mbr_samples)."
)
SCORES = flags.DEFINE_boolean("scores", False, "Put the score and a tab before each translation.")
PROMPT = "> "


def main(config: Config) -> None:
    """Reads, translates, writes."""
    field, most = config.decode.most_results
    if NBEST.value is not None and not 1 <= NBEST.value <= most:
        raise InputError(
            f"--nbest={NBEST.value}, but {field} is {most}; ask for 1 to that many, or raise "
            f"--config.{field}"
        )
    if INTERACTIVE.value:
        for flag in (INPUT, OUTPUT, PREFIX):
            if flag.value is not None:
                raise InputError(f"--{flag.name} and --interactive do not go together; leave one")
        _converse(checkpoint_flags.translator(config))
        return
    # Before standard input is waited for.
    translator = checkpoint_flags.translator(config)
    lines = _read(INPUT)
    prefixes = None if PREFIX.value is None else _read(PREFIX)
    if prefixes is not None and len(prefixes) != len(lines):
        raise InputError(
            f"{INPUT.value or 'standard input'} has {len(lines)} lines but {PREFIX.value} has "
            f"{len(prefixes)}; line n of the one must be how the translation of line n of the "
            "other begins"
        )
    with _writer(OUTPUT.value) as output:
        # In parts, so that a long file shows its first lines early and is not held in memory twice.
        part = 64 * config.decode.batch_size
        for start in range(0, len(lines), part):
            some = slice(start, start + part)
            forced = None if prefixes is None else prefixes[some]
            output.writelines(_translated(translator, lines[some], start, forced))
            output.flush()


def _translated(
    translator: Translator,
    sentences: list[str],
    start: int,
    prefixes: list[str] | None = None,
) -> Iterator[str]:
    """The lines of output for some sentences, of which the first has the index `start`."""
    nbest = translator.nbest(sentences, NBEST.value or 1, start + 1, prefixes)
    for index, results in enumerate(nbest, start):
        for result in results:
            if NBEST.value is not None:
                yield f"{index}\t{result.score:.6f}\t{result.text}\n"
            elif SCORES.value:
                yield f"{result.score:.6f}\t{result.text}\n"
            else:
                yield f"{result.text}\n"


def _converse(translator: Translator) -> None:
    """A sentence in, its translation out, until an empty line or the end."""
    if sys.stdin.isatty():
        _say("One sentence a line; an empty line or Ctrl-D ends.")
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - arrow keys and earlier lines, where there is such a thing
    else:
        _say(
            "hint: standard input is not a terminal; without --interactive its lines are "
            "translated together, which is faster"
        )
    with _writer(None) as output:
        for index in itertools.count():
            sentence = "".join(split_lines(_typed(), f"sentence {index + 1}"))
            if not sentence.strip():
                break
            output.writelines(_translated(translator, [sentence], index))
            output.flush()


def _typed() -> bytes:
    """The next line of standard input, after a prompt if it is a terminal; nothing at its end."""
    if not sys.stdin.isatty():
        return sys.stdin.buffer.readline()
    if not sys.stdout.isatty():
        # Translations go to a file, where the prompt has no place.
        print(PROMPT, end="", file=sys.stderr, flush=True)
        return sys.stdin.buffer.readline()
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        return input(PROMPT).encode("utf-8", "surrogateescape")
    except EOFError:
        _say("")
        return b""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _read(flag: flags.FlagHolder) -> list[str]:
    """The lines of the file that a flag names; of standard input if it names none."""
    path = flag.value
    if path is None:
        return split_lines(sys.stdin.buffer.read(), "standard input")
    try:
        return split_lines(paths.reachable(path).read_bytes(), path)
    except OSError as error:
        told = paths.reason(error)
        raise InputError(f"--{flag.name}={path} cannot be read: {told}") from None


@contextlib.contextmanager
def _writer(path: str | None) -> Iterator[TextIO]:
    """Only a new line ends a line here too, on every platform."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    place = paths.reachable(path)
    try:
        if paths.is_remote(place):
            # An object store takes a file whole.
            lines = io.StringIO(newline="\n")
            yield lines
            place.write_bytes(lines.getvalue().encode())
            return
        with open(place, "w", encoding="utf-8", newline="\n") as file:
            yield file
    except OSError as error:
        raise InputError(f"--output={path} cannot be written: {paths.reason(error)}") from None


if __name__ == "__main__":
    run(main, config_from="workdir")
