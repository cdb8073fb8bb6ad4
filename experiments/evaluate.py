# SPDX-License-Identifier: Apache-2.0
"""Scores a trained workdir, on a split of its dataset or on two files.

python -m experiments.evaluate --workdir=runs/de [--split=test]
python -m experiments.evaluate --workdir=runs/de --source=FILE --target=FILE

Translates with beam search and compares with the untouched references. The last line on standard
output is one JSON object, which is also kept in the workdir's evaluations.
"""

import json
import math
import pathlib
import re
from typing import Any

from absl import flags

from experiments import datasets, workdir
from experiments.flags import run
from transformer.config import Config
from transformer.errors import InputError
from transformer.metrics import corpus_scores
from transformer.translator import Translator

WORKDIR = flags.DEFINE_string("workdir", None, "Directory that train left.")
SPLIT = flags.DEFINE_string("split", "test", "Split of the workdir's own dataset.")
SOURCE = flags.DEFINE_string("source", None, "Text file to translate, in place of a split.")
TARGET = flags.DEFINE_string("target", None, "Its reference translations.")
AVERAGE = flags.DEFINE_integer(
    "average", None, "Use the mean of the last that many checkpoints instead of the best one."
)


def main(config: Config) -> None:
    """Evaluates and prints the scores."""
    directory = pathlib.Path(WORKDIR.value)
    if bool(SOURCE.value) != bool(TARGET.value):
        raise InputError("--source and --target go together; give both, or --split")
    if SOURCE.value:
        split = datasets.from_files(SOURCE.value, TARGET.value)
        name = "-".join(pathlib.Path(path).name for path in (SOURCE.value, TARGET.value))
    else:
        split = datasets.load(config.data, SPLIT.value)
        name = SPLIT.value
    if AVERAGE.value is not None:
        name += f"-average{AVERAGE.value}"
    translator = Translator.from_workdir(directory, config, AVERAGE.value)
    scores = evaluate(translator, split)
    folder = directory / "evaluations"
    folder.mkdir(exist_ok=True)
    workdir.write_json(folder / (re.sub(r"[^\w.-]", "_", name) + ".json"), scores)
    print(json.dumps(scores))


def evaluate(translator: Translator, split: datasets.Split) -> dict[str, Any]:
    """Translates a split and scores the translations; the NLL is that of the references.

    Returns:
      sacreBLEU's scores (`metrics.corpus_scores`), ``nll`` a token in nats, ``perplexity``,
      ``sentences``, and what the dataset measures of its own.
    """
    hypotheses = [translation.text for translation in translator(split.sources)]
    scored = translator.score(split.sources, split.targets)
    nll = -math.fsum(score for score, _ in scored) / sum(tokens for _, tokens in scored)
    return {
        **corpus_scores(hypotheses, split.targets),
        "nll": nll,
        "perplexity": math.exp(nll),
        "sentences": len(split),
        **split.own_metrics(hypotheses),
    }


if __name__ == "__main__":
    run(main, config_from="workdir")
