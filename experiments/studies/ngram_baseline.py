# SPDX-License-Identifier: Apache-2.0
"""Compare a language model with a Kneser-Ney 5-gram on held-out text.

python -m experiments.studies.ngram_baseline --workdir=runs/lm [--split=test] [--order=5]

The n-gram model is interpolated modified Kneser-Ney (Chen and Goodman 1999). It is counted on the
training split that the workdir names, over the same tokens, EOS included, and scored on the same
held-out tokens. Prints a table; the last line is one JSON object.
"""

import dataclasses
import json
import math

import numpy as np

from experiments.cli.command_line import run
from experiments.cli.options import require_at_least
from experiments.cli.weights import Weights
from experiments.data import registry
from experiments.studies.kneser_ney import KneserNey
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The language model, and the n-gram model."""

    split: str = "test"
    """Held-out split of the workdir's dataset."""
    order: int = 5
    """n of the n-gram model."""


def main(options: Options) -> None:
    """Count, score and print."""
    config, order = options.config, options.order
    require_at_least(1, order=order)
    if config.model.reads_source:
        raise InputError(
            f"model.family is {config.model.family!r}, which predicts a target from a source; give "
            "the workdir of a language model"
        )
    translator = options.translator()
    encode, ids = translator.vocabularies.target.encode, config.model.special_ids
    train = encode(registry.load(config.data, "train").targets)
    held_out = registry.load(config.data, options.split)
    tokens = encode(held_out.targets)
    number = sum(map(len, tokens))
    # Padding and BOS are never predicted.
    model = KneserNey(train, order, ids.bos, config.model.vocab_size - 2)
    ngram = np.array([model.log_prob(sentence) for sentence in tokens])
    neural = np.array([log for log, _ in translator.score(held_out.sources, held_out.targets)])
    rows = {f"Kneser-Ney {order}-gram": ngram, config.model.family: neural}
    print("| model | bits per token | perplexity |\n|---|---|---|")
    for name, log_probs in rows.items():
        nll = -log_probs.sum() / number
        print(f"| {name} | {nll / math.log(2):.3f} | {math.exp(nll):.3f} |")
    result = {
        "split": options.split,
        "sentences": len(tokens),
        "tokens": number,
        "order": order,
        "ngram_perplexity": math.exp(-ngram.sum() / number),
        "perplexity": math.exp(-neural.sum() / number),
        "sentences_more_probable": float((neural > ngram).mean()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    run(main, "workdir", Options)
