# SPDX-License-Identifier: Apache-2.0
"""Scores of translations against raw references; the only file that imports sacreBLEU.

BLEU is sacreBLEU's: tokenizer 13a, cased, on untouched references, with its signature and a
bootstrap confidence interval (95%, 1000 resamples, fixed seed).
"""

import json
from collections.abc import Sequence
from typing import Any

from transformer.errors import InputError


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], *, bootstrap: int = 1000
) -> dict[str, Any]:
    """BLEU with interval and signature, chrF, and the share of exact matches.

    Args:
      hypotheses: translations, as raw text.
      references: the same number of them, as raw text.
      bootstrap: resamples for the interval; 0 leaves it out.

    Returns:
      ``bleu`` and ``chrf`` in 0..100, ``exact_match`` in 0..1, ``bleu_signature``,
      ``chrf_signature``, and ``bleu_ci`` as [low, high] if there is an interval.

    Raises:
      InputError: when the numbers of sentences differ or are 0.
    """
    import sacrebleu

    if len(hypotheses) != len(references) or not references:
        raise InputError(
            f"{len(hypotheses)} translations and {len(references)} references cannot be compared; "
            "there must be equally many, at least one"
        )
    hypotheses, references = list(hypotheses), list(references)
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    bleu_score = bleu.corpus_score(hypotheses, [references], n_bootstrap=max(bootstrap, 1))
    scores: dict[str, Any] = {"bleu": bleu_score.score, "bleu_signature": str(bleu.get_signature())}
    if bootstrap:
        # The mean of the resampled scores and half the width of their 95%; absent where all are 0.
        signature = str(bleu.get_signature())
        interval = json.loads(bleu_score.format(width=6, signature=signature, is_json=True))
        mean, half = interval.get("confidence_mean", 0.0), interval.get("confidence_var", 0.0)
        scores["bleu_ci"] = [mean - half, mean + half]
    scores["chrf"] = chrf.corpus_score(hypotheses, [references]).score
    scores["chrf_signature"] = str(chrf.get_signature())
    matches = sum(map(str.__eq__, hypotheses, references))
    scores["exact_match"] = matches / len(references)
    return scores
