# SPDX-License-Identifier: Apache-2.0
"""Translate text line by line.

python -m experiments.translate --workdir=runs/de < input.txt > output.txt
python -m experiments.translate --workdir=runs/de --interactive

Prints one line for each input line, in order; an empty line gives an empty line. With --nbest=N,
prints N lines for each input line: its index from 0, the score and the text, separated by tabs. If
fewer distinct translations were found, the last have the score -inf and no text. The score is log P
/ length penalty, or with --config.decode.method=mbr the mean similarity to the other samples. A
line of more than data.max_length tokens is cut to its first data.max_length - 1, with a warning.
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
    "input", None, "Text file, one sentence a line; standard input by default."
)
OUTPUT = flags.DEFINE_string("output", None, "Output file; standard output by default.")
PREFIX = flags.DEFINE_string(
    "prefix",
    None,
    "Text file: line n begins the translation of input line n, possibly within a word; an empty "
    "line forces nothing.",
)
INTERACTIVE = flags.DEFINE_boolean(
    "interactive",
    False,
    "Translate each sentence as it is typed; end with an empty line or Ctrl-D.",
)
NBEST = flags.DEFINE_integer(
    "nbest",
    None,
    "Translations for each sentence; at most decode.beams (with mbr: decode.mbr_samples).",
)
SCORES = flags.DEFINE_boolean("scores", False, "Print the score and a tab before each translation.")
PROMPT = "> "


def main(config: Config) -> None:
    """Read, translate and write."""
    field, limit = config.decode.most_results
    if NBEST.value is not None and not 1 <= NBEST.value <= limit:
        raise InputError(
            f"--nbest={NBEST.value}, but {field} is {limit}; request 1 to {limit}, or raise "
            f"--config.{field}"
        )
    if INTERACTIVE.value:
        for flag in (INPUT, OUTPUT, PREFIX):
            if flag.value is not None:
                raise InputError(f"--{flag.name} and --interactive exclude each other; remove one")
    translator = checkpoint_flags.translator(config)  # errors come before standard input is read
    if INTERACTIVE.value:
        _translate_interactively(translator)
        return
    lines = _read_lines(INPUT)
    prefixes = None if PREFIX.value is None else _read_lines(PREFIX)
    if prefixes is not None and len(prefixes) != len(lines):
        raise InputError(
            f"{INPUT.value or 'standard input'} has {len(lines)} lines but {PREFIX.value} has "
            f"{len(prefixes)}; every input line needs a line with its prefix"
        )
    with _open_output(OUTPUT.value) as output:
        # In chunks, so that the first lines of a long file appear early.
        size = 64 * config.decode.batch_size
        for start in range(0, len(lines), size):
            chunk = slice(start, start + size)
            forced = None if prefixes is None else prefixes[chunk]
            output.writelines(_translate(translator, lines[chunk], start, forced))
            output.flush()


def _translate(
    translator: Translator, sentences: list[str], start: int, prefixes: list[str] | None = None
) -> Iterator[str]:
    """The output lines of sentences, of which the first has the index `start`."""
    nbest = translator.nbest(sentences, NBEST.value or 1, start + 1, prefixes)
    for index, results in enumerate(nbest, start):
        for result in results:
            if NBEST.value is not None:
                yield f"{index}\t{result.score:.6f}\t{result.text}\n"
            elif SCORES.value:
                yield f"{result.score:.6f}\t{result.text}\n"
            else:
                yield f"{result.text}\n"


def _translate_interactively(translator: Translator) -> None:
    """Translate one sentence at a time, until an empty line or the end of the input."""
    if sys.stdin.isatty():
        _print_hint("One sentence a line; an empty line or Ctrl-D ends.")
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - line editing and history in `input`, where available
    else:
        _print_hint(
            "hint: standard input is not a terminal; without --interactive its lines are "
            "translated in batches, which is faster"
        )
    with _open_output(None) as output:
        for index in itertools.count():
            sentence = "".join(split_lines(_read_typed_line(), f"sentence {index + 1}"))
            if not sentence.strip():
                break
            output.writelines(_translate(translator, [sentence], index))
            output.flush()


def _read_typed_line() -> bytes:
    """The next line of standard input, after a prompt if it is a terminal; empty at the end."""
    if not sys.stdin.isatty():
        return sys.stdin.buffer.readline()
    if not sys.stdout.isatty():
        # The prompt must not go to the file with the translations.
        print(PROMPT, end="", file=sys.stderr, flush=True)
        return sys.stdin.buffer.readline()
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        return input(PROMPT).encode("utf-8", "surrogateescape")
    except EOFError:
        _print_hint("")
        return b""


def _print_hint(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _read_lines(flag: flags.FlagHolder) -> list[str]:
    """The lines of the file that a flag names; of standard input if it is not set."""
    path = flag.value
    if path is None:
        return split_lines(sys.stdin.buffer.read(), "standard input")
    try:
        return split_lines(paths.reachable(path).read_bytes(), path)
    except OSError as error:
        reason = paths.reason(error)
        raise InputError(f"--{flag.name}={path} cannot be read: {reason}") from None


@contextlib.contextmanager
def _open_output(path: str | None) -> Iterator[TextIO]:
    r"""Open the output as UTF-8 with "\n" line ends on every platform."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    file_path = paths.reachable(path)
    try:
        if paths.is_remote(file_path):
            # Object stores have no partial writes.
            lines = io.StringIO(newline="\n")
            yield lines
            file_path.write_bytes(lines.getvalue().encode())
            return
        with open(file_path, "w", encoding="utf-8", newline="\n") as file:
            yield file
    except OSError as error:
        raise InputError(f"--output={path} cannot be written: {paths.reason(error)}") from None


if __name__ == "__main__":
    run(main, config_from="workdir")
