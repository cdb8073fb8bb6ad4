# SPDX-License-Identifier: Apache-2.0
"""The process that tokenizes pieces of a corpus for another; it never imports JAX.

It is run as a file, not as a module of this package, so that it is small and starts at once. It
reads a pickled SentencePiece processor and then one piece of work after the other from standard
input, and writes the result of each to standard output, until its input ends. So it ends with the
process that started it, however that one ends.
"""

import itertools
import os
import pickle
import sys
from typing import Any

import numpy as np

Piece = tuple[list[str], list[str]]
"""Sources and targets."""
Ids = tuple[np.ndarray, np.ndarray]
"""The ids of all sentences one after the other, and Int32 how many each sentence has."""


def smallest_type(vocab_size: int) -> np.dtype:
    """The smaller of the two types of integer that holds every id of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


def ids_of(processor: Any, piece: Piece) -> tuple[Ids, Ids]:
    """Both sides tokenized, an end token after each sentence.

    A line of nothing but white space is read as empty.

    Args:
      processor: a `sentencepiece.SentencePieceProcessor`.
      piece: of the corpus.
    """
    kind = smallest_type(processor.vocab_size())
    source, target = (_ids(processor, sentences, kind) for sentences in piece)
    return source, target


def _ids(processor: Any, sentences: list[str], kind: np.dtype) -> Ids:
    sentences = ["" if sentence.isspace() else sentence for sentence in sentences]
    rows = processor.encode(sentences, add_eos=True, num_threads=1)
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return np.fromiter(itertools.chain.from_iterable(rows), kind, lengths.sum()), lengths


def serve() -> None:
    """Tokenizes what comes until the input ends."""
    requests, results = sys.stdin.buffer, sys.stdout.buffer
    processor = pickle.load(requests)
    while True:
        piece = pickle.load(requests)
        pickle.dump(ids_of(processor, piece), results, pickle.HIGHEST_PROTOCOL)
        results.flush()


if __name__ == "__main__":
    try:
        serve()
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        # Whoever asked has all answers, or is gone; nobody reads what Python would flush at exit.
        os._exit(0)
