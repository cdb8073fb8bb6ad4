# SPDX-License-Identifier: Apache-2.0
"""Translate text line by line.

transformer translate --workdir=runs/de < input.txt > output.txt
transformer translate --workdir=runs/de --interactive

Prints one line for each input line, in order; an empty line gives an empty line. With --nbest=N,
prints N lines for each input line: its index from 0, the score and the text, separated by tabs. If
fewer distinct translations were found, the last have the score -inf and no text. The score is log P
/ length penalty, or with --config.decode.method=mbr the mean similarity to the other samples. A
line of more than data.max_length tokens is cut to its first data.max_length - 1, with a warning.

--output=FILE appears when it is complete. After an interruption, the same command with --resume
continues the lines that are there.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import TextIO

from experiments.cli import command_line
from experiments.cli.weights import Weights
from experiments.console.progress import Rate, say
from experiments.data import text_files
from experiments.storage.line_output import ResumableFile
from experiments.training import allocator
from transformer import paths
from transformer.errors import InputError
from transformer.translator import Translation, Translator


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, the text, and the form of the output."""

    input: str | None = None
    """Text file, one sentence a line; standard input by default."""
    output: str | None = None
    """Output file, which appears when it is complete; standard output by default."""
    resume: bool = False
    """Continue an interrupted translation of --input to --output."""
    prefix: str | None = None
    """Text file: line n begins the translation of input line n, possibly within a word; an empty
    line forces nothing.
    """
    interactive: bool = False
    """Translate each sentence as it is typed; end with an empty line or Ctrl-D."""
    nbest: int | None = None
    """Translations for each sentence; at most decode.beams (with mbr: decode.mbr_samples)."""
    scores: bool = False
    """Print the score and a tab before each translation."""


PROMPT = "> "
BATCHES = 64
"""Batches in a chunk: its sentences are sorted by length, its results are written together."""


def run(options: Options) -> None:
    """Read, translate and write."""
    config, nbest = options.config, options.nbest
    if not config.model.reads_source:
        raise InputError(
            f"model.family {config.model.family!r} reads no source, so it does not translate; use "
            "experiments.sample, which continues a --prompt"
        )
    field, limit = config.decode.most_results
    if nbest is not None and not 1 <= nbest <= limit:
        raise InputError(
            f"--nbest={nbest}, but {field} is {limit}; request 1 to {limit}, or raise "
            f"--config.{field}"
        )
    if options.interactive:
        for name in ("input", "output", "prefix"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name} and --interactive exclude each other; remove one")
    if options.output == "":
        raise InputError("--output= is empty; name a file, or leave it out for standard output")
    if options.resume:
        files = options.input or "", options.output or ""
        if not all(files) or any(map(paths.is_remote, files)) or not os.path.isfile(files[0]):
            raise InputError("--resume needs local files as --input and --output")
    translator = options.translator()  # errors come before standard input is read
    if options.interactive:
        _translate_interactively(translator, options)
        return
    # In chunks, so that memory does not grow and the first lines of a long file appear early.
    size = BATCHES * config.decode.batch_size
    total, identity = _survey(options, translator)
    num_results = options.nbest or 1
    lines = None if total is None else total * num_results
    with _open_output(options, identity, size * num_results, lines) as output:
        start = getattr(output, "num_lines", 0) // num_results
        progress = Rate("lines", start, total)
        examples = itertools.islice(_examples(options), start, None)
        while chunk := list(itertools.islice(examples, size)):
            lines, prefixes = map(list, zip(*chunk, strict=True))
            forced = None if options.prefix is None else prefixes
            results = translator.nbest(lines, num_results, start + 1, forced)
            output.writelines(_output_lines(results, start, options))
            output.flush()
            allocator.return_unused_pages()
            start += len(lines)
            if len(chunk) == size:  # there may be more
                progress.report(start)


def _survey(options: Options, translator: Translator) -> tuple[int | None, str]:
    """Read the input files once, before the first translation.

    Returns:
      The number of lines, None for a stream, and what the output depends on.
    """
    digest, counts = hashlib.sha256(options.config.to_json().encode()), []
    for name in ("input", "prefix"):
        path = getattr(options, name)
        readable_twice = path and (paths.is_remote(path) or os.path.isfile(path))
        count = 0
        for line in _lines(name, path) if readable_twice else ():
            digest.update(f"{line}\n".encode())
            count += 1
        counts.append(count if readable_twice else None)
    total, num_prefixes = counts
    if None not in counts and total != num_prefixes:
        raise _unequal(options, total, num_prefixes)
    settings = [counts, options.nbest, options.scores]
    if options.output:
        settings.append(translator.params_digest)
    return total, f"{digest.hexdigest()} {settings}"


def _examples(options: Options) -> Iterator[tuple[str, str]]:
    """Yield each input line and its prefix, which is empty without --prefix."""
    lines = _lines("input", options.input)
    if options.prefix is None:
        return zip(lines, itertools.repeat(""))  # noqa: B905 - the second is endless
    prefixes = _lines("prefix", options.prefix)
    return text_files.in_step(lines, prefixes, functools.partial(_unequal, options))


def _lines(name: str, path: str | None) -> Iterator[str]:
    """The lines of the file that an option names, or of standard input."""
    if path is None:
        if sys.stdin is None:
            raise InputError("standard input is closed; give --input=FILE")
        with _read_errors("standard input"):
            yield from text_files.stream_lines(sys.stdin.buffer, "standard input")
        return
    if not paths.is_remote(path):
        with _read_errors(f"--{name}={path}"):
            os.stat(path)
    yield from text_files.lines(path, allow_empty=True)


@contextlib.contextmanager
def _read_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{name} cannot be read: {paths.reason(error)}") from None


def _unequal(options: Options, num_lines: int, num_prefixes: int) -> InputError:
    return InputError(
        f"{options.input or 'standard input'} has {num_lines} lines but {options.prefix} has "
        f"{num_prefixes}; every input line needs a line with its prefix"
    )


def _output_lines(
    nbest: Sequence[Sequence[Translation]], start: int, options: Options
) -> Iterator[str]:
    """The output lines of translations, of which the first has the index `start`."""
    for index, results in enumerate(nbest, start):
        for result in results:
            if options.nbest is not None:
                yield f"{index}\t{result.score:.6f}\t{result.text}\n"
            elif options.scores:
                yield f"{result.score:.6f}\t{result.text}\n"
            else:
                yield f"{result.text}\n"


def _translate_interactively(translator: Translator, options: Options) -> None:
    """Translate one sentence at a time, until an empty line or the end of the input."""
    if sys.stdin.isatty():
        say("One sentence a line; an empty line or Ctrl-D ends.")
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - line editing and history in `input`, where available
    else:
        say(
            "hint: standard input is not a terminal; without --interactive its lines are "
            "translated in batches, which is faster"
        )
    output = _stdout()
    for index in itertools.count():
        with _read_errors("standard input"):
            typed = io.BufferedReader(io.BytesIO(_read_typed_line()))
        sentence = "".join(text_files.stream_lines(typed, f"sentence {index + 1}"))
        if not sentence.strip():
            break
        nbest = translator.nbest([sentence], options.nbest or 1, index + 1)
        output.writelines(_output_lines(nbest, index, options))
        output.flush()
        allocator.return_unused_pages()


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
        say("")
        return b""


def _stdout() -> TextIO:
    r"""Standard output as UTF-8 with "\n" line ends on every platform."""
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    return sys.stdout


@contextlib.contextmanager
def _open_output(
    options: Options, identity: str, multiple: int, total: int | None
) -> Iterator[TextIO | ResumableFile]:
    """Open --output; see `ResumableFile`, which local files are."""
    path = options.output
    if path is None:
        yield _stdout()
        return
    text = {"encoding": "utf-8", "newline": "\n"}
    try:
        if paths.is_remote(path):
            # Object stores have no partial writes.
            with tempfile.TemporaryFile("w+", **text) as lines:
                yield lines
                lines.seek(0)
                with paths.reachable(path).open("wb") as file:
                    shutil.copyfileobj(lines.buffer, file)
        elif os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", **text) as file:  # a device or a pipe
                yield file
        else:
            with ResumableFile(path, identity, options.resume, multiple, total) as lines:
                yield lines
    except OSError as error:
        raise InputError(f"--output={path} cannot be written: {paths.reason(error)}") from None


if __name__ == "__main__":
    command_line.run(run, "workdir", Options)
