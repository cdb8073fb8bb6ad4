# SPDX-License-Identifier: Apache-2.0
"""Tokenize real text for the measured programs and write it to a folder."""

import pathlib
import sys
from collections.abc import Sequence

from experiments.benchmarks.settings import config_of
from experiments.benchmarks.text_batches import LEXICON, TEXT, TOKENIZER, Text
from experiments.benchmarks.workloads import Workload
from experiments.pipeline.batching import Batches
from experiments.pipeline.token_corpus import TokenCorpus
from transformer.errors import InputError
from transformer.text.lexicon import MAX_PAIRS, Lexicon
from transformer.text.tokenizer import Tokenizer, Vocabularies


def prepare(
    workload: Workload,
    folder: pathlib.Path,
    pairs: tuple[Sequence[str], Sequence[str]],
    lines: Sequence[str],
    num_batches: int,
) -> Text:
    """Write the vocabulary, a lexicon and the `Text` into a folder.

    Args:
      workload: sizes; its buckets are the lengths of batches.
      folder: for the files.
      pairs: sources and targets of the training text.
      lines: to translate; empty ones and those longer than the longest bucket are left out.
      num_batches: number of training batches to keep.

    Raises:
      InputError: if the vocabulary is too large for the text, or no line is left.
    """
    try:
        tokenizer = Tokenizer.train([*pairs[0], *pairs[1]], workload.vocab_size)
    except InputError as error:
        text = str(error).replace("--config.model.vocab_size", "--vocabulary")
        raise InputError(text.replace("model.vocab_size", "--vocabulary")) from None
    (folder / TOKENIZER).write_bytes(tokenizer.model)
    corpus = TokenCorpus.encode(*pairs, Vocabularies.shared(tokenizer))
    if lines:
        some = range(0, len(corpus), -(-len(corpus) // MAX_PAIRS))
        sides = ([side[pair] for pair in some] for side in (corpus.source, corpus.target))
        Lexicon.learn(*sides, tokenizer.vocab_size).save(folder / LEXICON)
    planned = Batches([(1.0, corpus)], config_of(workload).data, seed=0).plan(0)[:num_batches]
    chosen = [pair for batch in planned for pair in batch.pairs]
    encoded = zip(lines, tokenizer.encode(list(lines)), strict=True)
    kept = [(line, ids) for line, ids in encoded if 1 < len(ids) <= workload.source_length]
    if lines and not kept:
        raise InputError(
            f"no line of the text to translate has 1 to {workload.source_length - 1} subwords; "
            "raise the last of --buckets"
        )
    if len(kept) < len(lines):
        dropped = len(lines) - len(kept)
        print(f"{dropped} empty or too long lines are left out", file=sys.stderr, flush=True)
    text = Text(
        sources=[corpus.source[pair].tolist() for pair in chosen],
        targets=[corpus.target[pair].tolist() for pair in chosen],
        lines=[line for line, _ in kept],
        line_ids=[list(map(int, ids)) for _, ids in kept],
    )
    text.save(folder / TEXT)
    return text
