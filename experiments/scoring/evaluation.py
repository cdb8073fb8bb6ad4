# SPDX-License-Identifier: Apache-2.0
"""Translate sentence pairs with a trained model and score the translations."""

import dataclasses
import math
from typing import Any

from experiments.data.registry import Split
from transformer.text.metrics import corpus_scores
from transformer.training.losses import perplexity
from transformer.translator import Translator


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A split with its translations and scores."""

    split: Split
    translations: list[str]
    scores: dict[str, Any]
    """The JSON that `evaluate` prints."""
    reference_nll: list[float]
    """NLL of each reference, in nats per token."""

    def __len__(self) -> int:
        return len(self.split)


def evaluate(
    translator: Translator,
    split: Split,
    *,
    bleu_tokenize: str | None = None,
    bleu_lowercase: bool = False,
) -> Evaluation:
    """Translate a split and score the translations.

    The scores are those of `metrics.corpus_scores`, ``nll`` of the references in nats per token,
    ``perplexity``, ``sentences``, and the dataset's metrics.
    """
    texts = [result.text for result in translator(split.sources)]
    scored = translator.score(split.sources, split.targets)
    nll = -math.fsum(log_prob for log_prob, _ in scored) / sum(tokens for _, tokens in scored)
    bleu = {"bleu_tokenize": bleu_tokenize, "bleu_lowercase": bleu_lowercase}
    scores = {
        **corpus_scores(texts, split.targets, **bleu),
        "nll": nll,
        "perplexity": perplexity(nll),
        "sentences": len(split),
        **split.corpus_metrics(texts, translator.config.evaluation.metrics),
    }
    nll_per_token = [-log_prob / tokens for log_prob, tokens in scored]
    return Evaluation(split, texts, scores, nll_per_token)
