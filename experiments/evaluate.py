# SPDX-License-Identifier: Apache-2.0
"""Scores a trained workdir, on a split of its dataset or on two files.

python -m experiments.evaluate --workdir=runs/de [--split=test]
python -m experiments.evaluate --workdir=runs/de --source=FILE --target=FILE

Translates and compares with the untouched references. The last line on standard output is one JSON
object. It is kept in the workdir's evaluations, with the translations, one a line (.txt), and a
report to open in a browser (.html), whose path is printed on standard error.
"""

import json
import math
import os
import re
import sys

import jax
import jax.numpy as jnp
from absl import flags

from experiments import checkpoint_flags
from experiments.corpora import registry
from experiments.flags import run
from experiments.reports.evaluation_report import Evaluation, evaluation_page
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.decoding.beam_search import output_length_limits
from transformer.errors import InputError
from transformer.text.metrics import corpus_scores, require_tokenization
from transformer.translator import Translation, Translator

SPLIT = flags.DEFINE_string("split", "test", "Split of the workdir's own dataset.")
SOURCE = flags.DEFINE_string("source", None, "Text file to translate, in place of a split.")
TARGET = flags.DEFINE_string("target", None, "Its reference translations.")
BLEU_TOKENIZE = flags.DEFINE_string(
    "bleu_tokenize", "13a", "sacreBLEU's name of BLEU's tokenization; 'none' for tokenized text."
)
BLEU_LOWERCASE = flags.DEFINE_boolean("bleu_lowercase", False, "BLEU in lower case.")


def main(config: Config) -> None:
    """Evaluates, prints the scores, and leaves them with a report in the workdir."""
    directory = checkpoint_flags.directory()
    if bool(SOURCE.value) != bool(TARGET.value):
        raise InputError("--source and --target go together; give both, or --split")
    require_tokenization(BLEU_TOKENIZE.value)
    if SOURCE.value:
        split = registry.from_files(SOURCE.value, TARGET.value)
        name = "-".join(os.path.basename(path) for path in (SOURCE.value, TARGET.value))
    else:
        split = registry.load(config.data, SPLIT.value)
        name = SPLIT.value
    translator = checkpoint_flags.translator(config)
    evaluation = evaluate(
        translator,
        split,
        bleu_tokenize=BLEU_TOKENIZE.value,
        bleu_lowercase=BLEU_LOWERCASE.value,
    )
    name += checkpoint_flags.suffix() + _bleu_suffix()
    stem = re.sub(r"[^\w.-]", "_", name)
    folder = directory / workdir_files.EVALUATIONS
    if not paths.is_remote(folder):
        folder.mkdir(exist_ok=True)
    translations = "".join(text + "\n" for text in evaluation.translations)
    workdir_files.write_text(folder / f"{stem}.txt", translations)
    workdir_files.write_json(folder / f"{stem}.json", evaluation.scores)
    report = evaluation_page(
        f"{os.path.basename(os.path.abspath(directory))} on {name}",
        evaluation,
        config,
        weights=checkpoint_flags.description(config),
        parameters=sum(leaf.size for leaf in jax.tree.leaves(translator.params)),
        metrics=directory / workdir_files.METRICS,
    )
    workdir_files.write_text(folder / f"{stem}.html", report)
    print(f"report: {folder / stem}.html", file=sys.stderr)
    print(json.dumps(evaluation.scores))


def _bleu_suffix() -> str:
    """Other BLEUs have evaluations of their own, so that they are never taken for the usual one."""
    tokenize = "" if BLEU_TOKENIZE.value == "13a" else f"-bleu_{BLEU_TOKENIZE.value}"
    return tokenize + "-lowercase" * BLEU_LOWERCASE.value


def evaluate(
    translator: Translator,
    split: registry.Split,
    *,
    bleu_tokenize: str = "13a",
    bleu_lowercase: bool = False,
) -> Evaluation:
    """Translates a split and scores the translations; the NLL is that of the references.

    The scores are sacreBLEU's (`metrics.corpus_scores`), ``nll`` a token in nats, ``perplexity``,
    ``sentences``, and what the dataset measures of its own.
    """
    results = translator(split.sources)
    # A line of the output stays one line.
    texts = [result.text.replace("\n", " ") for result in results]
    scored = translator.score(split.sources, split.targets)
    nll = -math.fsum(score for score, _ in scored) / sum(tokens for _, tokens in scored)
    scores = {
        **corpus_scores(
            texts, split.targets, bleu_tokenize=bleu_tokenize, bleu_lowercase=bleu_lowercase
        ),
        "nll": nll,
        "perplexity": math.exp(nll),
        "sentences": len(split),
        **split.corpus_metrics(texts),
    }
    cut_sources, cut_translations = _cut(translator, split.sources, results)
    return Evaluation(
        split,
        texts,
        scores,
        [-log_prob / tokens for log_prob, tokens in scored],
        cut_sources,
        cut_translations,
    )


def _cut(
    translator: Translator, sources: list[str], results: list[Translation]
) -> tuple[list[int], list[int]]:
    """The places of the sources that are too long, and of the translations that reach the limit."""
    config = translator.config
    lengths = [len(ids) for ids in translator.tokenizer.encode(sources)]
    read = [min(length, config.data.max_length) for length in lengths]
    limits = output_length_limits(jnp.asarray(read), config.decode).tolist()
    return (
        [row for row, length in enumerate(lengths) if length > config.data.max_length],
        [row for row, result in enumerate(results) if len(result.tokens) >= limits[row]],
    )


if __name__ == "__main__":
    run(main, config_from="workdir")
