# SPDX-License-Identifier: Apache-2.0
"""Sentence pairs from two text files, line by line, or from two columns of a TSV file.

Only ``\\n`` ends a line. Unicode's other line separators are part of the sentence, because a tool
that splits on them misaligns the files. ``\\r\\n`` is read as ``\\n`` and a leading byte-order mark
is dropped. A file that begins with the magic bytes of gzip, which no UTF-8 text can, is
decompressed, whatever its name. A TSV file has no quoting: a quotation mark is an ordinary
character. A file in an object store (``gs://...``) is copied into the user's cache folder first.
"""

import contextlib
import dataclasses
import gzip
import io
import itertools
import os
import posixpath
import zlib
from collections.abc import Callable, Iterable, Iterator

from experiments.data.pairs import SentencePairs
from experiments.storage import user_cache
from transformer import paths
from transformer.errors import InputError

Path = str | os.PathLike[str]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"


def is_tsv(path: Path) -> bool:
    """Whether the name of a file says that it holds both sides."""
    return str(path).lower().endswith((".tsv", ".tsv.gz"))


def require_file(path: str, field: str) -> None:
    """Check a file of training text before it is read several times, which a pipe cannot be.

    Raises:
      InputError: naming the field, when there is no such file.
    """
    if paths.is_remote(path) or os.path.isfile(path):
        return
    if os.path.isdir(path):
        problem = "cannot be read: it is a directory; name a file in it"
    elif os.path.exists(path):
        problem = "is a pipe or a device, which can be read only once; write the text to a file"
    else:
        problem = "cannot be read: No such file or directory; check the path"
    raise InputError(f"{field} is {path!r}, which {problem}")


def lines(path: Path, allow_empty: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or gzip, without their line ends.

    Raises:
      InputError: when the file cannot be read, is empty, or has a byte that is not UTF-8 (with
      file:line).
    """
    with _open(path, allow_empty) as file:
        yield from _decode_lines(file, str(path))


def stream_lines(stream: io.BufferedReader, name: str) -> Iterator[str]:
    """Yield the lines of a stream as they arrive; `name` is the file in error messages."""
    _skip_byte_order_mark(stream)
    yield from _decode_lines(stream, name)


def in_step(
    sources: Iterator[str], targets: Iterator[str], unequal: Callable[[int, int], InputError]
) -> Iterator[tuple[str, str]]:
    """Yield the lines of both sides in pairs.

    Raises:
      InputError: `unequal` of the numbers of lines, when they differ.
    """
    for count, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
        if source is None or target is None:
            rest = count + 1 + sum(1 for _ in itertools.chain(sources, targets))
            raise unequal(rest, count) if target is None else unequal(count, rest)
        yield source, target


def count_lines(path: Path) -> int:
    """Count the lines of a file without decoding them.

    Raises:
      InputError: when the file cannot be read or is empty.
    """
    with _open(path) as file:
        return sum(1 for _ in file)


@dataclasses.dataclass(frozen=True)
class TwoFiles(SentencePairs):
    """Two files: line n of one is the translation of line n of the other."""

    source: str
    target: str

    @property
    def name(self) -> str:
        """Both paths."""
        return f"{self.source}, {self.target}"

    @property
    def languages(self) -> tuple[str, str] | None:
        """The file extensions, as in ``train.en`` and ``train.de.gz``, if they differ."""
        source, target = (
            posixpath.splitext(path.removesuffix(".gz"))[1].removeprefix(".")
            for path in (self.source, self.target)
        )
        return (source, target) if source and target and source != target else None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return in_step(lines(self.source), lines(self.target), self._unequal)

    def count(self) -> int:
        """See `SentencePairs.count`."""
        num_sources, num_targets = count_lines(self.source), count_lines(self.target)
        if num_sources != num_targets:
            raise self._unequal(num_sources, num_targets)
        return num_sources

    def location(self, index: int) -> tuple[str, str]:
        """See `SentencePairs.location`."""
        return f"{self.source}:{index + 1}", f"{self.target}:{index + 1}"

    def identity(self) -> str:
        """Path, size and modification time of both files."""
        return f"files {_identity(self.source)} {_identity(self.target)}"

    def swapped(self) -> "TwoFiles":
        """See `SentencePairs.swapped`."""
        return TwoFiles(self.target, self.source)

    def _unequal(self, num_sources: int, num_targets: int) -> InputError:
        return InputError(
            f"{self.source} has {num_sources} lines but {self.target} has {num_targets}; line n of "
            "one must be the translation of line n of the other"
        )


@dataclasses.dataclass(frozen=True)
class TargetFile(SentencePairs):
    """One file: its lines are targets, and every source is empty."""

    path: str

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return (("", line) for line in lines(self.path))

    def count(self) -> int:
        """See `SentencePairs.count`."""
        return count_lines(self.path)

    def location(self, index: int) -> tuple[str, str]:
        """See `SentencePairs.location`; both sides are on the same line."""
        return (f"{self.path}:{index + 1}",) * 2

    def identity(self) -> str:
        """Path, size and modification time of the file."""
        return f"targets {_identity(self.path)}"

    def swapped(self) -> SentencePairs:
        """An InputError: the sources would be the targets."""
        raise InputError(
            f"data.direction swaps source and target, but {self.path} has targets only; leave "
            "data.direction out"
        )


@dataclasses.dataclass(frozen=True)
class Tsv(TargetFile):
    """Two columns of one file, separated by tabs."""

    columns: tuple[int, int]
    """Columns of source and target, counted from 1."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        source, target = self.columns
        for number, line in enumerate(lines(self.path), start=1):
            cells = line.split("\t")
            if len(cells) < max(self.columns):
                raise InputError(
                    f"{self.path}:{number}: no column {max(self.columns)}, the line has "
                    f"{len(cells)}; columns are separated by tabs, and data.tsv_columns names "
                    f"those of both sides, here {sorted(self.columns)}"
                )
            yield cells[source - 1], cells[target - 1]

    def identity(self) -> str:
        """Path, size and modification time of the file, and the columns."""
        return f"tsv {_identity(self.path)} {self.columns}"

    def swapped(self) -> "Tsv":
        """See `SentencePairs.swapped`."""
        return Tsv(self.path, self.columns[::-1])


def _identity(path: str) -> str:
    with _read_errors(path):
        if paths.is_remote(path):
            return f"{path!r} {user_cache.version(path)}"
        status = os.stat(path)
    return f"{os.path.abspath(path)!r} {status.st_size} {status.st_mtime_ns}"


@contextlib.contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn the exceptions of reading a file into one InputError."""
    try:
        yield
    except EOFError:
        raise InputError(
            f"{path} is truncated: the gzip data ends too early; copy or download it again"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged gzip ({error}); copy or download it again") from None
    except IsADirectoryError:
        raise InputError(f"{path} cannot be read: it is a directory; name a file in it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {paths.reason(error)}; check the path") from None


@contextlib.contextmanager
def _open(path: Path, allow_empty: bool = False) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading bytes, decompressed."""
    with _read_errors(path), open(user_cache.fetched(os.fspath(path)), "rb") as file:
        compressed = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        with gzip.GzipFile(fileobj=file) if compressed else contextlib.nullcontext(file) as plain:
            _skip_byte_order_mark(plain)
            if not (allow_empty or plain.peek(1)):
                raise InputError(f"{path} is empty; it must hold one sentence a line")
            yield plain


def _skip_byte_order_mark(file: io.BufferedReader | gzip.GzipFile) -> None:
    if file.peek(len(_BYTE_ORDER_MARK)).startswith(_BYTE_ORDER_MARK):
        file.read(len(_BYTE_ORDER_MARK))


def _decode_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Decode the lines of a binary file, which ``\\n`` ends."""
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}:{number}: byte 0x{line[error.start]:02x} at column {error.start + 1} is "
                "not UTF-8; convert the file (for example: iconv -f latin1 -t utf-8)"
            ) from None
        yield text.removesuffix("\n").removesuffix("\r")
