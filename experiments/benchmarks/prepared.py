# SPDX-License-Identifier: Apache-2.0
"""A text made ready to be trained and translated by every program, in one folder: the vocabulary,
the tokenized text, and what the peers are given of it.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import compose, costs
from experiments.benchmarks.settings import config_of
from experiments.benchmarks.text import Text
from experiments.benchmarks.work import Work
from experiments.corpora.text_files import TwoFiles
from experiments.pipeline import token_cache
from transformer.checkpoints.workdir_files import LEXICON
from transformer.errors import InputError
from transformer.text.lexicon import PAIRS, Lexicon
from transformer.text.tokenizer import Tokenizer, Vocabularies

VOCABULARY, LINES = "tokenizer.model", "lines.txt"
"""Of this program: sub-words, and the text that is translated."""


def text_file(folder: str) -> str:
    """The `Text` of the peers."""
    return f"{folder}/text.npz"


def prepare(
    work: Work,
    folder: str,
    pairs: TwoFiles,
    lines: Sequence[str],
    batches: int,
    overrides: Mapping[str, Any],
) -> Text:
    """Writes into the folder what the programs need, and returns it.

    Args:
      work: its vocabulary is learned, its buckets are the lengths of batches.
      folder: for the files.
      pairs: the training text.
      lines: what is translated; empty ones and those longer than the longest bucket are left out.
      batches: how many of an epoch are trained.
      overrides: config fields of this program.

    Raises:
      InputError: for files that cannot be read, or that the vocabulary is too large for, and where
        all lines are left out.
    """
    home = pathlib.Path(folder)
    tokenizer = _learned(pairs, work.vocabulary)
    (home / VOCABULARY).write_bytes(tokenizer.model)
    experiment = experiment_of_text(work, folder, pairs.source, pairs.target, overrides)
    read = experiment.data.train
    [corpus] = read.corpora
    if lines:
        some = range(0, len(corpus), -(-len(corpus) // PAIRS))
        sides = ([side[pair] for pair in some] for side in (corpus.source, corpus.target))
        Lexicon.learn(*sides, tokenizer.vocab_size).save(home / LEXICON)
    planned = read.plan(0)[:batches]
    chosen = np.concatenate([batch.pairs for batch in planned])
    encoded = zip(lines, tokenizer.encode(lines), strict=True)
    # The end token is one of the ids.
    kept = [(line, ids) for line, ids in encoded if 1 < len(ids) <= work.source]
    if lines and not kept:
        raise InputError(
            f"no line of the text to translate has 1 to {work.source - 1} sub-words; raise the "
            "last of --buckets"
        )
    if len(kept) < len(lines):
        said = f"{len(lines) - len(kept)} empty or too long lines are left out"
        print(said, file=sys.stderr, flush=True)
    written = "".join(f"{line}\n" for line, _ in kept)
    (home / LINES).write_text(written, encoding="utf-8")
    text = Text(
        sources=[np.asarray(corpus.source[pair], np.int32) for pair in chosen],
        targets=[np.asarray(corpus.target[pair], np.int32) for pair in chosen],
        rows=[len(batch.pairs) for batch in planned],
        lines=[np.array(ids, np.int32) for _, ids in kept],
    )
    text.save(text_file(folder))
    return text


def _learned(pairs: TwoFiles, size: int) -> Tokenizer:
    sentences = (line for both in pairs.chunks() for side in both for line in side)
    try:
        return Tokenizer.train(sentences, size)
    except InputError as problem:
        said = str(problem).replace("--config.model.vocab_size", "--vocabulary")
        raise InputError(said.replace("model.vocab_size", "--vocabulary")) from None


def experiment_of_text(
    work: Work, folder: str, source: str, target: str, overrides: Mapping[str, Any]
) -> compose.Experiment:
    """What `train` makes of two files, without validation.

    The tokenized text is kept in the folder, where the vocabulary is.
    """
    home = pathlib.Path(folder)
    tokenizer = Tokenizer.load(home / VOCABULARY)
    corpus = token_cache.load_or_tokenize(
        TwoFiles(source, target), Vocabularies.shared(tokenizer), home / "tokens", None
    )
    return costs.experiment_of_corpora(config_of(work, overrides), tokenizer, [(1.0, corpus)])
