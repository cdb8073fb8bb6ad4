# SPDX-License-Identifier: Apache-2.0
"""Flags of the apps that score translations: the test set, and the variant of BLEU."""

from typing import Any

from absl import flags

from experiments.data import registry
from transformer.config import Config, DataConfig
from transformer.errors import InputError
from transformer.text.metrics import check_tokenization

SPLIT = flags.DEFINE_string("split", "test", "Split of the workdir's dataset.")
SOURCE = flags.DEFINE_string("source", None, "Text file to translate, instead of a split.")
TARGET = flags.DEFINE_string("target", None, "Text file of reference translations.")
BLEU_TOKENIZE = flags.DEFINE_string(
    "bleu_tokenize",
    None,
    "Tokenization of BLEU by its name in sacreBLEU; 'none' for tokenized text; default: "
    "evaluation.bleu_tokenize, or by the script of the references.",
)
BLEU_LOWERCASE = flags.DEFINE_boolean("bleu_lowercase", False, "Compute BLEU in lower case.")


def require_source_and_target() -> None:
    """Reject one of --source and --target without the other."""
    if bool(SOURCE.value) != bool(TARGET.value):
        raise InputError("--source and --target go together; give both, or --split")


def load_split(data: DataConfig) -> registry.Split:
    """The sentence pairs of --source and --target, or of --split."""
    if SOURCE.value:
        return registry.from_files(SOURCE.value, TARGET.value)
    return registry.load(data, SPLIT.value)


def bleu_options(config: Config | None = None) -> dict[str, Any]:
    """Keyword arguments of `metrics.corpus_scores`.

    Raises:
      InputError: sacreBLEU has no such tokenization.
    """
    tokenize = BLEU_TOKENIZE.value or (config and config.evaluation.bleu_tokenize)
    check_tokenization(tokenize)
    return {"bleu_tokenize": tokenize, "bleu_lowercase": BLEU_LOWERCASE.value}
