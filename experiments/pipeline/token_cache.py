# SPDX-License-Identifier: Apache-2.0
"""Corpora tokenized once, into files that every later start maps into memory.

A corpus is a folder of flat arrays, named after a digest of the vocabulary and of the identity of
the pairs: ``source.ids``, ``source.offsets``, ``target.ids``, ``target.offsets``, and ``meta.json``
with their sizes. It is written under another name and renamed when it is whole. Neither making nor
reading one needs memory that grows with the corpus, but for 4 bytes a sentence.
"""

import collections
import contextlib
import hashlib
import json
import logging
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from experiments import file_lock
from experiments.pipeline import tokenizing
from experiments.pipeline.pairs import Pairs
from experiments.pipeline.token_corpus import Corpus, Side
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

META = "meta.json"
FORMAT = 1
"""Of the files; another one makes another digest."""
PIECE = 10_000
"""Pairs that are tokenized together."""
WORTH_PROCESSES = 5 * PIECE
"""A corpus of fewer pairs is tokenized before other processes have started."""

_OFFSETS = np.dtype(np.int64)
_SIDES = ("source", "target")
_DAMAGE = (OSError, ValueError, KeyError, TypeError)
"""What reading damaged files raises."""


def cores() -> int:
    """How many this program may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def tokenized(
    pairs: Pairs, tokenizer: Tokenizer, folder: pathlib.Path, processes: int | None
) -> Corpus:
    """The tokenized corpus, mapped from `folder` if it is there, otherwise made there first.

    A pair keeps its index. A side of nothing but white space is the end token alone, which
    `Corpus.usable` tells.

    Args:
      pairs: the corpus as text.
      tokenizer: its vocabulary.
      folder: of the cache; made if missing. Several runs may share it.
      processes: how many tokenize a large corpus; one for each core unless given.

    Raises:
      InputError: when the pairs cannot be read, or the folder cannot be written.
    """
    home = folder / _digest(pairs, tokenizer)
    with contextlib.suppress(*_DAMAGE):
        return _opened(home)
    waiting = f"waiting for another run that tokenizes into {folder}"
    with _writable(folder), file_lock.hold(folder, waiting):
        for left_half_done in folder.glob("*.partial"):
            shutil.rmtree(left_half_done)
        # Another run may have made it while this one waited.
        if home.exists():
            try:
                return _opened(home)
            except _DAMAGE as problem:
                logger.warning("%s is damaged (%s); its corpus is tokenized again", home, problem)
        partial = home.with_suffix(".partial")
        try:
            partial.mkdir()
            _write(partial, pairs, tokenizer, processes)
            shutil.rmtree(home, ignore_errors=True)
            partial.rename(home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return _opened(home)


def _digest(pairs: Pairs, tokenizer: Tokenizer) -> str:
    vocabulary = hashlib.sha256(tokenizer.model).hexdigest()
    key = json.dumps([FORMAT, vocabulary, pairs.identity()])
    return hashlib.sha256(key.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _writable(folder: pathlib.Path) -> Iterator[None]:
    """Turns what writing the cache raises into one message."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror or error
        raise InputError(
            f"the tokenized corpus cannot be kept in {folder}: {reason}; make room there, or name "
            "another folder with --config.data.token_cache=FOLDER"
        ) from None


def _opened(home: pathlib.Path) -> Corpus:
    """Maps the files into memory.

    Raises:
      one of `_DAMAGE`: when they are damaged or not there.
    """
    meta = json.loads((home / META).read_bytes())
    for name, size in meta["bytes"].items():
        found = (home / name).stat().st_size if (home / name).exists() else 0
        if found != size:
            raise ValueError(f"{name} has {found} bytes in place of {size}")
    kinds = {"ids": np.dtype(meta["type"]), "offsets": _OFFSETS}
    source, target = (
        Side(**{array: _mapped(home / f"{side}.{array}", kind) for array, kind in kinds.items()})
        for side in _SIDES
    )
    return Corpus(source, target)


def _mapped(path: pathlib.Path, kind: np.dtype) -> np.ndarray:
    # Without NumPy's own class for such arrays, each access would be slower.
    return np.asarray(np.memmap(path, kind, mode="r"))


def _write(folder: pathlib.Path, pairs: Pairs, tokenizer: Tokenizer, processes: int | None) -> None:
    """Tokenizes the corpus into the files of a folder."""
    count = pairs.count()
    if not count:
        raise InputError(f"{pairs.name} has no pairs")
    with contextlib.ExitStack() as stack:
        files = {
            f"{side}.{array}": stack.enter_context(open(folder / f"{side}.{array}", "wb"))
            for side in _SIDES
            for array in ("ids", "offsets")
        }
        ends = dict.fromkeys(_SIDES, 0)
        for side in _SIDES:
            files[f"{side}.offsets"].write(_OFFSETS.type(0).tobytes())
        progress = _Progress(pairs.name, count)
        for both in stack.enter_context(_pieces(pairs, tokenizer, processes, count)):
            for side, (ids, lengths) in zip(_SIDES, both, strict=True):
                offsets = ends[side] + np.cumsum(lengths, dtype=_OFFSETS)
                ends[side] = offsets[-1]
                files[f"{side}.ids"].write(ids.data)
                files[f"{side}.offsets"].write(offsets.data)
            progress.advance(len(lengths))
        progress.finish()
        sizes = {name: file.tell() for name, file in files.items()}
    kind = tokenizing.smallest_type(tokenizer.vocab_size).name
    meta = {"corpus": pairs.name, "pairs": count, "type": kind, "bytes": sizes}
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _pieces(
    pairs: Pairs, tokenizer: Tokenizer, processes: int | None, count: int
) -> Iterator[Iterator[tuple[tokenizing.Ids, tokenizing.Ids]]]:
    """The tokenized pieces of the corpus, in order."""
    pieces = pairs.chunks(PIECE)
    number = min(processes or cores(), -(-count // PIECE))
    if number == 1 or count < WORTH_PROCESSES:
        yield (tokenizing.ids_of(tokenizer.processor, piece) for piece in pieces)
        return
    workers = []
    try:
        for _ in range(number):
            workers.append(_Worker())
            workers[-1].send(tokenizer.processor)
        yield _in_turn(workers, pieces)
    finally:
        for worker in workers:
            worker.stop()


def _in_turn(
    workers: Sequence["_Worker"], pieces: Iterable[tokenizing.Piece]
) -> Iterator[tuple[tokenizing.Ids, tokenizing.Ids]]:
    """Hands out the pieces, one at a time to each worker, and takes the results in that order."""
    idle, busy = collections.deque(workers), collections.deque()
    for piece in pieces:
        result = None
        if not idle:
            idle.append(busy.popleft())
            result = idle[0].receive()
        # The worker gets its next piece before its last result is written.
        idle[0].send(piece)
        busy.append(idle.popleft())
        if result is not None:
            yield result
    for worker in busy:
        yield worker.receive()


class _Worker:
    """A process that runs `experiments.pipeline.tokenizing`."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-P", tokenizing.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C at the terminal is for this program, which then stops its workers.
            process_group=0,
        )

    def send(self, value: Any) -> None:
        """Gives it work; it must be idle, or each would wait for the other to read."""
        with self._alive():
            pickle.dump(value, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()

    def receive(self) -> tuple[tokenizing.Ids, tokenizing.Ids]:
        """Waits for its result."""
        with self._alive():
            return pickle.load(self._process.stdout)

    def stop(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.communicate()

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):
            status = self._process.wait()
            raise InputError(
                f"a process that tokenizes ended with status {status}"
                + (", killed perhaps for want of memory" if status == -signal.SIGKILL else "")
                + "; try again with --config.data.tokenizing_processes=1"
            ) from None


class _Progress:
    """Lines on standard error, for a corpus that takes more than a few seconds."""

    FIRST, EVERY = 3.0, 10.0

    def __init__(self, name: str, count: int):
        self._name, self._count, self._done = name, count, 0
        self._began = time.monotonic()
        self._due = self._began + self.FIRST

    def advance(self, pairs: int) -> None:
        """Counts pairs, and says how far it is when that is due."""
        self._done += pairs
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self.EVERY
            rate = self._done / (now - self._began)
            _say(
                f"tokenizing {self._name}: {self._done:,} of {self._count:,} pairs, {rate:,.0f} a "
                f"second, {(self._count - self._done) / rate:,.0f} s left"
            )

    def finish(self) -> None:
        """Says that it is done, if it said anything before."""
        seconds = time.monotonic() - self._began
        if self._due > self._began + self.FIRST:
            _say(f"tokenized {self._done:,} pairs in {seconds:,.0f} s; later starts read the cache")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
