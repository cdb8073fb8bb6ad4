# SPDX-License-Identifier: Apache-2.0
"""Compare a language model with a Kneser-Ney 5-gram on held-out text.

python -m experiments.studies.ngram_baseline --workdir=runs/lm [--split=test] [--order=5]

The n-gram model is interpolated modified Kneser-Ney (Chen and Goodman 1999). It is counted on the
training split that the workdir names, over the same tokens, EOS included, and scored on the same
held-out tokens. Prints one JSON object.
"""

import dataclasses
import json
import math
from typing import Any

import numpy as np

from experiments.cli import command_line
from experiments.cli.options import require_at_least
from experiments.cli.weights import Weights
from experiments.data import registry
from experiments.studies.ngram_baseline.kneser_ney import KneserNey
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The language model, and the n-gram model."""

    split: str = "test"
    """Held-out split of the workdir's dataset."""
    order: int = 5
    """n of the n-gram model."""


def run(options: Options) -> dict[str, Any]:
    """Count and score; returns the numbers of both models."""
    config = options.config
    require_at_least(1, order=options.order)
    if config.model.reads_source:
        raise InputError(
            f"model.family is {config.model.family!r}, which predicts a target from a source; give "
            "the workdir of a language model"
        )
    translator = options.translator()
    encode = translator.vocabularies.target.encode
    held_out = registry.load(config.data, options.split)
    tokens = encode(held_out.targets)
    number = sum(map(len, tokens))
    train = encode(registry.load(config.data, "train").targets)
    # Padding and BOS are never predicted.
    bos, predicted = config.model.special_ids.bos, config.model.vocab_size - 2
    model = KneserNey(train, options.order, bos, predicted)
    ngram = np.array([model.log_prob(sentence) for sentence in tokens])
    neural = np.array([log for log, _ in translator.score(held_out.sources, held_out.targets)])
    return {
        "split": options.split,
        "sentences": len(tokens),
        "tokens": number,
        "order": options.order,
        "ngram_perplexity": math.exp(-ngram.sum() / number),
        "perplexity": math.exp(-neural.sum() / number),
        "sentences_more_probable": float((neural > ngram).mean()),
    }


def main(options: Options) -> None:
    """Print the numbers."""
    print(json.dumps(run(options)))


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
