# SPDX-License-Identifier: Apache-2.0
"""Cache of tokenized corpora: each is tokenized once and memory-mapped on every later start.

A cached corpus is a folder named after a digest of the vocabularies and of the identity of the
sentence pairs. It holds flat arrays (``source.ids``, ``source.offsets``, ``target.ids``,
``target.offsets``) and ``meta.json`` with their sizes. It is written under another name and renamed
when it is complete. Writing and reading need no memory that grows with the corpus, apart from
4 bytes a sentence.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import logging
import pathlib
import shutil
from collections.abc import Iterator

import numpy as np

from experiments.console.progress import Rate
from experiments.data.pairs import SentencePairs
from experiments.data.token_corpus import TokenCorpus, TokenSequences
from experiments.storage import file_lock
from transformer.errors import InputError
from transformer.text.tokenizer import Vocabularies

logger = logging.getLogger(__name__)

META = "meta.json"
FORMAT = 1
"""Version of the files; part of the digest."""
CHUNK = 10_000
"""Sentence pairs tokenized at a time."""

_OFFSETS = np.dtype(np.int64)
_SIDES = ("source", "target")
_DAMAGE = (OSError, ValueError, KeyError, TypeError)
"""Exceptions that reading damaged files can raise."""


def load_or_tokenize(
    pairs: SentencePairs,
    vocabularies: Vocabularies,
    folder: pathlib.Path,
    threads: int = -1,
) -> TokenCorpus:
    """Memory-map the tokenized corpus from `folder`; tokenize it first if it is not there.

    Pairs keep their index. A side of white space only becomes EOS alone, which
    `TokenCorpus.nonempty` marks.

    Args:
      pairs: sentence pairs as text.
      vocabularies: tokenizers of source and target.
      folder: folder of the cache, created if missing. Several runs may share it.
      threads: number of threads that tokenize; -1: one per core.

    Raises:
      InputError: when the pairs cannot be read or the folder cannot be written.
    """
    home = folder / _digest(pairs, vocabularies)
    with contextlib.suppress(*_DAMAGE):
        return _open(home)
    waiting = f"waiting for another run that tokenizes into {folder}"
    with _write_errors(folder), file_lock.hold(folder, waiting):
        for interrupted in folder.glob("*.partial"):
            shutil.rmtree(interrupted)
        # Another run may have written it while this one waited for the lock.
        if home.exists():
            try:
                return _open(home)
            except _DAMAGE as problem:
                logger.warning("%s is damaged (%s); tokenizing its corpus again", home, problem)
        partial = home.with_suffix(".partial")
        try:
            partial.mkdir()
            _write(partial, pairs, vocabularies, threads)
            shutil.rmtree(home, ignore_errors=True)
            partial.rename(home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return _open(home)


def _digest(pairs: SentencePairs, vocabularies: Vocabularies) -> str:
    source, target = (hashlib.sha256(tokenizer.model).hexdigest() for tokenizer in vocabularies)
    vocabulary = source if source == target else [source, target]
    key = json.dumps([FORMAT, vocabulary, pairs.identity()])
    return hashlib.sha256(key.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _write_errors(folder: pathlib.Path) -> Iterator[None]:
    """Turn errors of writing the cache into one InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror or error
        raise InputError(
            f"the tokenized corpus cannot be written to {folder}: {reason}; free space there, or "
            "name another folder with --config.data.token_cache=FOLDER"
        ) from None


def _open(home: pathlib.Path) -> TokenCorpus:
    """Memory-map the files.

    Raises:
      one of `_DAMAGE`: when they are damaged or missing.
    """
    meta = json.loads((home / META).read_bytes())
    for name, expected in meta["bytes"].items():
        actual = (home / name).stat().st_size if (home / name).exists() else 0
        if actual != expected:
            raise ValueError(f"{name} has {actual} bytes instead of {expected}")
    source, target = (
        TokenSequences(
            _memory_map(home / f"{side}.ids", np.dtype(meta["type"])),
            _memory_map(home / f"{side}.offsets", _OFFSETS),
        )
        for side in _SIDES
    )
    return TokenCorpus(source, target)


def _memory_map(path: pathlib.Path, dtype: np.dtype) -> np.ndarray:
    # Indexing an np.memmap is slower than indexing a plain array on the same memory.
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _write(
    folder: pathlib.Path, pairs: SentencePairs, vocabularies: Vocabularies, threads: int
) -> None:
    """Tokenize the corpus chunk by chunk into the files of a folder."""
    count, done = pairs.count(), 0
    if not count:
        raise InputError(f"{pairs.name} has no sentence pairs")
    dtype = id_dtype(max(tokenizer.vocab_size for tokenizer in vocabularies))
    ends = dict.fromkeys(_SIDES, np.zeros(1, _OFFSETS))
    progress = Rate("pairs", 0, count, f"tokenizing {pairs.name}: ")
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(open(folder / name, "wb"))
            for side in _SIDES
            for name in (f"{side}.ids", f"{side}.offsets")
        }
        for side in _SIDES:
            files[f"{side}.offsets"].write(ends[side].data)
        for encoded in _encode_ahead(pairs.chunks(CHUNK), vocabularies, threads):
            for side, (ids, lengths) in zip(_SIDES, encoded, strict=True):
                offsets = ends[side] + np.cumsum(lengths, dtype=_OFFSETS)
                ends[side] = offsets[-1:]
                files[f"{side}.ids"].write(ids.astype(dtype).data)
                files[f"{side}.offsets"].write(offsets.data)
            done += len(lengths)
            progress.report(done)
        sizes = {name: file.tell() for name, file in files.items()}
    meta = {"corpus": pairs.name, "pairs": count, "type": dtype.name, "bytes": sizes}
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _encode_ahead(
    chunks: Iterator[tuple[list[str], list[str]]], vocabularies: Vocabularies, threads: int
) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """Yield (ids, lengths) of both sides of each chunk, encoded while the next chunk is read."""

    def encode(chunk: tuple[list[str], list[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [
            # White space only counts as empty.
            tokenizer.encode_flat(["" if text.isspace() else text for text in side], threads)
            for tokenizer, side in zip(vocabularies, chunk, strict=True)
        ]

    # Encoding allocates much, and the main thread would lose a Ctrl-C that arrives during JAX's
    # garbage collection callback, whose exceptions are ignored.
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        previous = None
        for chunk in chunks:
            current = executor.submit(encode, chunk)
            if previous is not None:
                yield previous.result()
            previous = current
        if previous is not None:
            yield previous.result()


def id_dtype(vocab_size: int) -> np.dtype:
    """uint16 or int32, the smaller that holds every id of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)
