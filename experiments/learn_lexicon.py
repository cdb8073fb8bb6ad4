# SPDX-License-Identifier: Apache-2.0
"""Learn a lexicon of subword translations from the training text, for shortlists.

python -m experiments.learn_lexicon --workdir=runs/de
python -m experiments.translate --workdir=runs/de --config.decode.shortlist=20 < input.txt

Writes shortlist.npz into the workdir. The table shows, for several values of decode.shortlist, the
number of subwords on the list of a validation sentence, and the share of the references that these
cover. A translation cannot contain other subwords, so compare the scores of `experiments.evaluate`
with and without. The last line on standard output is one JSON object with all figures.
"""

import json
import time
from typing import Any

import numpy as np
from absl import flags

from experiments.corpora import registry
from experiments.flags import run
from experiments.formatting import print_table
from experiments.workdir_flag import WORKDIR
from transformer import paths, trained_model
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.text.lexicon import MAX_PAIRS, Lexicon
from transformer.text.tokenizer import Vocabularies

PAIRS = flags.DEFINE_integer(
    "pairs",
    MAX_PAIRS,
    "Maximum number of training pairs, spread evenly over the text; 100,000 of 25 tokens a side "
    "take about 1 GiB of memory.",
    lower_bound=1,
)
NUM_TRANSLATIONS = (5, 10, 20, 50, 100)
"""Values of decode.shortlist in the table."""

Sentences = list[list[int]]
"""Token ids of each sentence."""


def main(config: Config) -> None:
    """Learn and write the lexicon, and print the coverage of its lists."""
    if config.data.vocabulary == "separate":
        raise InputError(
            "source and target have separate vocabularies (data.vocabulary='separate'), but "
            "shortlists need a shared one"
        )
    directory = paths.reachable(WORKDIR.value)
    if directory.is_file():
        raise InputError(
            f"--workdir={directory} is a bundle, which cannot be changed; name the workdir from "
            "which it was made, and make it again"
        )
    vocabularies = trained_model.load_vocabularies(directory, config)
    tokenizer = vocabularies.tokenizer
    start = time.perf_counter()
    sources, targets = _training_pairs(config, vocabularies)
    lexicon = Lexicon.learn(sources, targets, tokenizer.vocab_size, tokenizer.special_ids)
    path = directory / workdir_files.LEXICON
    try:
        lexicon.save(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {paths.reason(error)}") from None
    seconds = time.perf_counter() - start

    validation = registry.load(config.data, "validation")
    pairs = (
        vocabularies.source.encode(validation.sources),
        vocabularies.target.encode(validation.targets),
    )
    figures = [coverage(lexicon, *pairs, number) for number in NUM_TRANSLATIONS]
    print(f"{len(sources):,} training pairs, {seconds:.1f} s; written to {path}")
    print(f"of {len(validation):,} validation pairs:")
    header = ("decode.shortlist", "listed a sentence", "reference tokens", "complete references")
    rows = [
        (
            str(row["translations"]),
            f"{row['listed']:.0f} of {tokenizer.vocab_size:,}",
            f"{row['tokens']:.2%}",
            f"{row['sentences']:.2%}",
        )
        for row in figures
    ]
    print_table([header, *rows])
    print(json.dumps({"pairs": len(sources), "seconds": round(seconds, 1), "coverage": figures}))


def coverage(
    lexicon: Lexicon, sources: Sentences, targets: Sentences, num_translations: int
) -> dict[str, Any]:
    """Share of the targets that is on the lists of the sources.

    Returns:
      ``translations`` (`num_translations`), ``listed``: mean number of subwords on a list, and the
      shares of ``tokens`` and of ``sentences`` that consist of listed subwords.
    """
    sizes, covered = [], []
    for source, target in zip(sources, targets, strict=True):
        [listed] = lexicon.listed(np.array([source]), num_translations)
        sizes.append(int(listed.sum()))
        covered.append(listed[target])
    return {
        "translations": num_translations,
        "listed": float(np.mean(sizes)),
        "tokens": float(np.concatenate(covered).mean()),
        "sentences": float(np.mean([tokens.all() for tokens in covered])),
    }


def _training_pairs(config: Config, vocabularies: Vocabularies) -> tuple[Sentences, Sentences]:
    """Token ids of every n-th training pair, without the pairs that training leaves out."""
    corpora = [pairs for _, pairs in registry.training_corpora(config.data)]
    stride = max(-(-sum(pairs.count() for pairs in corpora) // PAIRS.value), 1)
    longest = config.data.max_length
    sources, targets = [], []
    for pairs in corpora:
        num_read = 0
        for chunk in pairs.chunks():
            selected = slice(-num_read % stride, None, stride)
            num_read += len(chunk[0])
            encoded = (
                tokenizer.encode(side[selected])
                for tokenizer, side in zip(vocabularies, chunk, strict=True)
            )
            for source, target in zip(*encoded, strict=True):
                # Empty sentences consist of EOS.
                if 1 < len(source) <= longest and 1 < len(target) <= longest:
                    sources.append(source)
                    targets.append(target)
    if not sources:
        raise InputError(
            "no training pair has tokens on both sides and at most data.max_length = "
            f"{longest}; check the data with python -m experiments.doctor"
        )
    return sources, targets


if __name__ == "__main__":
    run(main, config_from="workdir")
