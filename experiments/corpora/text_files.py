# SPDX-License-Identifier: Apache-2.0
"""Sentence pairs from two text files, line by line, or from the columns of one TSV file.

Only ``\\n`` ends a line: Unicode's other line separators are part of the sentence, because a tool
that splits on them misaligns the files. ``\\r\\n`` is read as ``\\n`` and a leading byte-order mark
is dropped. A file that begins with the two bytes of gzip, which no UTF-8 text can, is decompressed,
whatever its name. A TSV file has no quoting: a quotation mark is a character like any other. A file
in an object store (``gs://...``) is copied into the user's cache folder and read from there.
"""

import contextlib
import dataclasses
import gzip
import itertools
import os
import posixpath
import zlib
from collections.abc import Iterable, Iterator

from experiments import user_cache
from experiments.pipeline.pairs import Pairs
from transformer import paths
from transformer.errors import InputError

Path = str | os.PathLike[str]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 20


def is_tsv(path: Path) -> bool:
    """Whether a file is named as one that holds both sides."""
    return str(path).lower().endswith((".tsv", ".tsv.gz"))


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, plain or gzip, without their ends.

    Raises:
      InputError: when it cannot be read, is empty, or has a byte that is not UTF-8 (with
      file:line).
    """
    return list(lines(path))


def read_pairs(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """The lines of both files.

    Raises:
      InputError: as `read_lines`, or when the files have different numbers of lines.
    """
    sources, targets = read_lines(source), read_lines(target)
    _require_equal(source, len(sources), target, len(targets))
    return sources, targets


def lines(path: Path) -> Iterator[str]:
    """The lines of a file as `read_lines` has them, read as they are asked for."""
    several = _split(_blocks(path), str(path))
    first = next(several, None)
    if first is None:
        raise InputError(f"{path} is empty; it must hold one sentence a line")
    yield from first
    yield from itertools.chain.from_iterable(several)


def split_lines(data: bytes, name: str) -> list[str]:
    """The lines of UTF-8 text, without their ends; `name` stands for the file in errors."""
    return list(itertools.chain.from_iterable(_split([data], name)))


def count_lines(path: Path) -> int:
    """How many lines a file has, without decoding them.

    Raises:
      InputError: when it cannot be read or is empty.
    """
    count, last = 0, b"\n"
    for block in _blocks(path):
        count += block.count(b"\n")
        last = block[-1:] or last
    count += last != b"\n"
    if not count:
        raise InputError(f"{path} is empty; it must hold one sentence a line")
    return count


@dataclasses.dataclass(frozen=True)
class TwoFiles(Pairs):
    """Line n of one file is the translation of line n of the other."""

    source: str
    target: str

    @property
    def name(self) -> str:
        """Both paths."""
        return f"{self.source}, {self.target}"

    @property
    def languages(self) -> tuple[str, str] | None:
        """The files' endings, as in ``train.en`` and ``train.de.gz``, where they differ."""
        source, target = (
            posixpath.splitext(path.removesuffix(".gz"))[1].removeprefix(".")
            for path in (self.source, self.target)
        )
        return (source, target) if source and target and source != target else None

    def chunks(self, size: int = 10_000) -> Iterator[tuple[list[str], list[str]]]:
        """As `Pairs.chunks`."""
        left, right = lines(self.source), lines(self.target)
        done = 0
        while True:
            sources = list(itertools.islice(left, size))
            targets = list(itertools.islice(right, size))
            if len(sources) != len(targets):
                many, few = (done + len(chunk) for chunk in (sources, targets))
                many, few = many + sum(1 for _ in left), few + sum(1 for _ in right)
                _require_equal(self.source, many, self.target, few)
            if not sources:
                return
            yield sources, targets
            done += len(sources)

    def count(self) -> int:
        """As `Pairs.count`."""
        counts = count_lines(self.source), count_lines(self.target)
        _require_equal(self.source, counts[0], self.target, counts[1])
        return counts[0]

    def place(self, index: int) -> tuple[str, str]:
        """As `Pairs.place`."""
        return f"{self.source}:{index + 1}", f"{self.target}:{index + 1}"

    def identity(self) -> str:
        """As `Pairs.identity`: by path, size and time of change."""
        return f"files {_identity(self.source)} {_identity(self.target)}"


@dataclasses.dataclass(frozen=True)
class Tsv(Pairs):
    """Two columns of one file, separated by tabs."""

    path: str
    columns: tuple[int, int]
    """Of source and target, counted from 1."""

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def chunks(self, size: int = 10_000) -> Iterator[tuple[list[str], list[str]]]:
        """As `Pairs.chunks`."""
        source, target = self.columns
        needed = max(self.columns)
        rows = enumerate(lines(self.path), start=1)
        while chunk := list(itertools.islice(rows, size)):
            sources, targets = [], []
            for number, line in chunk:
                cells = line.split("\t")
                if len(cells) < needed:
                    raise InputError(
                        f"{self.path}:{number}: no column {needed}, the line has {len(cells)}; "
                        "columns are separated by tabs, and data.tsv_columns = "
                        f"{self.columns} names those of source and target"
                    )
                sources.append(cells[source - 1])
                targets.append(cells[target - 1])
            yield sources, targets

    def count(self) -> int:
        """As `Pairs.count`."""
        return count_lines(self.path)

    def place(self, index: int) -> tuple[str, str]:
        """As `Pairs.place`; the line is the same."""
        return f"{self.path}:{index + 1}", f"{self.path}:{index + 1}"

    def identity(self) -> str:
        """As `Pairs.identity`: by path, size, time of change and columns."""
        return f"tsv {_identity(self.path)} {self.columns}"


def _identity(path: str) -> str:
    with _readable(path):
        if paths.is_remote(path):
            return f"{path!r} {user_cache.version(path)}"
        found = os.stat(path)
    return f"{os.path.abspath(path)!r} {found.st_size} {found.st_mtime_ns}"


def _require_equal(source: Path, sources: int, target: Path, targets: int) -> None:
    if sources != targets:
        raise InputError(
            f"{source} has {sources} lines but {target} has {targets}; line n of one must be the "
            "translation of line n of the other"
        )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what reading a file raises into one message."""
    try:
        yield
    except EOFError:
        raise InputError(
            f"{path} is gzip, but cut short: the file ends before its data does; copy or download "
            "it again"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged gzip ({error}); copy or download it again") from None
    except IsADirectoryError:
        raise InputError(f"{path} cannot be read: it is a directory; name a file in it") from None
    except OSError as error:
        told = paths.reason(error)
        raise InputError(f"{path} cannot be read: {told}; check the path") from None


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed."""
    with _readable(path), open(user_cache.fetched(os.fspath(path)), "rb") as file:
        zipped = file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
        with gzip.GzipFile(fileobj=file) if zipped else contextlib.nullcontext(file) as plain:
            while block := plain.read(_BLOCK):
                yield block


def _split(blocks: Iterable[bytes], name: str) -> Iterator[list[str]]:
    """The lines of UTF-8 text that comes in blocks, many at a time."""
    number, begun = 1, []
    for place, block in enumerate(blocks):
        if place == 0:
            block = block.removeprefix(_BYTE_ORDER_MARK)
        whole, end, rest = block.rpartition(b"\n")
        if end:
            decoded = _decoded(b"".join([*begun, whole]), name, number)
            number += len(decoded)
            yield decoded
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield _decoded(last, name, number)


def _decoded(data: bytes, name: str, number: int) -> list[str]:
    """Lines from bytes that begin with line `number` and lack the last line's end."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = number + data.count(b"\n", 0, error.start)
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise InputError(
            f"{name}:{line}: byte 0x{data[error.start]:02x} at column {column} is not UTF-8; "
            "convert the file (for example: iconv -f latin1 -t utf-8)"
        ) from None
    several = text.split("\n")
    return [line.removesuffix("\r") for line in several] if "\r" in text else several
