# SPDX-License-Identifier: Apache-2.0
"""Learns which sub-words translate which from the training text, so that a search can leave out the
rest of the vocabulary.

python -m experiments.learn_lexicon --workdir=runs/de
python -m experiments.translate --workdir=runs/de --config.decode.shortlist=20 < input.txt

The lexicon is kept in the workdir as shortlist.npz. The table says, for some
values of decode.shortlist, how many sub-words a sentence of the validation split has on its list,
and how much of the references consists of them. What a translation would have taken from beyond its
list it must say otherwise: compare the scores of `experiments.evaluate` with and without. The last
line on standard output is one JSON object with all figures.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from experiments.corpora import registry
from experiments.flags import run
from experiments.formatting import print_table
from experiments.workdir_flag import WORKDIR
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.text.lexicon import PAIRS, Lexicon
from transformer.text.tokenizer import Tokenizer

MOST_PAIRS = flags.DEFINE_integer(
    "pairs",
    PAIRS,
    "At most so many training pairs are read, spread evenly over the text; 100,000 of 25 tokens a "
    "side take about 1 GiB of memory.",
    lower_bound=1,
)
TRANSLATIONS = (5, 10, 20, 50, 100)
"""Values of decode.shortlist that are tried on the validation split."""

Rows = list[list[int]]


def main(config: Config) -> None:
    """Learns, writes, and says what the lists hold."""
    directory = paths.reachable(WORKDIR.value)
    tokenizer = Tokenizer.load(directory / workdir_files.TOKENIZER)
    began = time.perf_counter()
    sources, targets = _training(config, tokenizer)
    lexicon = Lexicon.learn(sources, targets, tokenizer.vocab_size)
    path = directory / workdir_files.LEXICON
    try:
        lexicon.save(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {paths.reason(error)}") from None
    seconds = time.perf_counter() - began

    validation = registry.load(config.data, "validation")
    rows = [tokenizer.encode(side) for side in (validation.sources, validation.targets)]
    figures = [coverage(lexicon, *rows, number) for number in TRANSLATIONS]
    print(f"{len(sources):,} training pairs, {seconds:.1f} s; kept in {path}")
    print(f"of {len(validation):,} validation pairs:")
    print_table(
        [
            ("decode.shortlist", "listed a sentence", "reference tokens", "whole references"),
            *(
                (
                    str(one["translations"]),
                    f"{one['listed']:.0f} of {tokenizer.vocab_size:,}",
                    f"{one['tokens']:.2%}",
                    f"{one['sentences']:.2%}",
                )
                for one in figures
            ),
        ]
    )
    print(json.dumps({"pairs": len(sources), "seconds": round(seconds, 1), "coverage": figures}))


def coverage(lexicon: Lexicon, sources: Rows, targets: Rows, number: int) -> dict[str, Any]:
    """How much of the targets is on the lists of the sources.

    Returns:
      ``translations`` (`number`), ``listed``: the sub-words on a list, and the shares of ``tokens``
      and of ``sentences`` that consist of what is listed.
    """
    sizes, found = [], []
    for source, target in zip(sources, targets, strict=True):
        [listed] = lexicon.listed(np.array([source]), number)
        sizes.append(int(listed.sum()))
        found.append(listed[target])
    return {
        "translations": number,
        "listed": float(np.mean(sizes)),
        "tokens": float(np.concatenate(found).mean()),
        "sentences": float(np.mean([tokens.all() for tokens in found])),
    }


def _training(config: Config, tokenizer: Tokenizer) -> tuple[Rows, Rows]:
    """The ids of the training pairs that are read, without those that training leaves out."""
    sources, targets = [], []
    for source, target in _chosen(config):
        sides = [tokenizer.encode(side) for side in (source, target)]
        for one, other in zip(*sides, strict=True):
            # An empty sentence has its end token alone.
            if 1 < len(one) <= config.data.max_length and 1 < len(other) <= config.data.max_length:
                sources.append(one)
                targets.append(other)
    if not sources:
        raise InputError(
            "no training pair has tokens on both sides and at most data.max_length = "
            f"{config.data.max_length}; look at the data with python -m experiments.doctor"
        )
    return sources, targets


def _chosen(config: Config) -> Iterator[tuple[list[str], list[str]]]:
    """Every n-th pair of all corpora, so that there are no more than --pairs."""
    corpora = [pairs for _, pairs in registry.training_corpora(config.data)]
    stride = max(-(-sum(pairs.count() for pairs in corpora) // MOST_PAIRS.value), 1)
    for pairs in corpora:
        before = 0
        for sources, targets in pairs.chunks():
            some = slice(-before % stride, None, stride)
            before += len(sources)
            yield sources[some], targets[some]


if __name__ == "__main__":
    run(main, config_from="workdir")
