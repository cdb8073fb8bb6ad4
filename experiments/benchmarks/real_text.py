# SPDX-License-Identifier: Apache-2.0
"""Real text for the speed benchmarks: options, vocabulary, and batches in a file.

Training: the first batches of an epoch, with their preparation; samples are of 1,000 target tokens,
padding not counted. PyTorch has the same sentence pairs in memory, sorted by length and batched
within the same token budget.

Decoding: this project goes from text to text, each translation one token longer than its source;
samples are of one sentence. Peers go from ids to ids in batches sorted by length, with the same
number of tokens in total.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator, Sequence

from experiments.benchmarks.comparison import config_of, log
from experiments.benchmarks.workloads import TEXT, TOKENIZER, Text, Workload
from experiments.data import text_files
from experiments.data.batching import Batches
from experiments.data.token_corpus import TokenCorpus
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer, Vocabularies

BUCKETS = (12, 16, 20, 24, 32, 64)
"""Batch lengths of this project; longer sentences are left out."""
BATCHES = 16
"""Training batches in a sample."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The training text."""

    train_source: str | None = None
    """Training text, one sentence per line, instead of random sentences."""
    train_target: str | None = None
    """Its translation, line by line."""


@contextlib.contextmanager
def prepared(
    workload: Workload, options: Options, lines_path: str | None = None
) -> Iterator[tuple[Workload, str]]:
    """Write the training text, and lines to translate, into a temporary folder.

    Yields:
      the workload with the sizes of the text, and the path of the `Text`.

    Raises:
      InputError: if a flag is missing, or a file is unreadable or too small for the vocabulary.
    """
    for name in ("train_source", "train_target"):
        if not getattr(options, name):
            raise InputError(f"--{name}=FILE is missing")
    pairs = text_files.TwoFiles(options.train_source, options.train_target).read()
    lines = list(text_files.lines(lines_path)) if lines_path else []
    log("learning a vocabulary and tokenizing")
    longest = BUCKETS[-1]
    workload = dataclasses.replace(
        workload, source_length=longest, target_length=longest, buckets=BUCKETS
    )
    with tempfile.TemporaryDirectory() as folder:
        prepare(workload, pathlib.Path(folder), pairs, lines)
        yield workload, f"{folder}/{TEXT}"


def prepare(
    workload: Workload,
    folder: pathlib.Path,
    pairs: tuple[Sequence[str], Sequence[str]],
    lines: Sequence[str],
) -> Text:
    """Write the vocabulary and the `Text` into a folder.

    Args:
      workload: its buckets are the lengths of batches.
      folder: folder for the files.
      pairs: sources and targets of the training text.
      lines: lines to translate; empty ones and those longer than the longest bucket are left out.

    Raises:
      InputError: if the text is too small for the vocabulary, or no line is left.
    """
    try:
        tokenizer = Tokenizer.train([*pairs[0], *pairs[1]], workload.vocab_size)
    except InputError as error:
        problem = str(error).partition(";")[0]  # the remedy there is no flag here
        raise InputError(
            f"--train_source and --train_target have too little text: {problem}"
        ) from None
    (folder / TOKENIZER).write_bytes(tokenizer.model)
    corpus = TokenCorpus.encode(*pairs, Vocabularies.shared(tokenizer))
    planned = Batches([(1.0, corpus)], config_of(workload).data, seed=0).plan(0)[:BATCHES]
    chosen = [pair for batch in planned for pair in batch.pairs]
    encoded = zip(lines, tokenizer.encode(list(lines)), strict=True)
    kept = [(line, ids) for line, ids in encoded if 1 < len(ids) <= workload.source_length]
    if lines and not kept:
        raise InputError(
            f"no line of the text to translate has 1 to {workload.source_length - 1} subwords; "
            "translate shorter lines"
        )
    log(f"{len(lines) - len(kept)} empty or too long lines are left out")
    text = Text(
        sources=[corpus.source[pair].tolist() for pair in chosen],
        targets=[corpus.target[pair].tolist() for pair in chosen],
        lines=[line for line, _ in kept],
        line_ids=[list(map(int, ids)) for _, ids in kept],
    )
    text.save(folder / TEXT)
    return text
