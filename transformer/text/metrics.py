# SPDX-License-Identifier: Apache-2.0
"""Translation metrics with sacreBLEU; no other module imports sacreBLEU.

BLEU and chrF are computed on untouched references, each with its signature and a bootstrap
confidence interval (95%, 1000 resamples, fixed seed). BLEU is cased. Its tokenization is one of
sacreBLEU's by name, or that of the script of the references; the signature names it.
"""

import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from transformer.errors import InputError

logger = logging.getLogger(__name__)

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_KANA = re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
_UNSPACED = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]")
"""Thai, Lao, Tibetan, Burmese and Khmer."""


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bootstrap: int = 1000,
    bleu_tokenize: str | None = None,
    bleu_lowercase: bool = False,
) -> dict[str, Any]:
    """BLEU and chrF with signatures and confidence intervals, and the share of exact matches.

    Args:
      hypotheses: translations, raw text.
      references: raw text, one for each translation.
      bootstrap: resamples for the intervals; 0 omits the intervals. 1000 need about 100 kB of
        memory for each sentence.
      bleu_tokenize: sacreBLEU's name of BLEU's tokenization; ``none`` for tokenized text; default:
        by the script of the references (`tokenization_of`).
      bleu_lowercase: compute BLEU on lowercased text. chrF is always cased.

    Returns:
      ``bleu`` and ``chrf`` in 0..100, ``exact_match`` in 0..1, ``bleu_signature`` and
      ``chrf_signature``, and with resamples ``bleu_ci`` and ``chrf_ci`` as [low, high].

    Raises:
      InputError: if the numbers of sentences differ or are 0, or for an unknown tokenization.
    """
    from sacrebleu.significance import PairedTest

    hypotheses, references = list(hypotheses), list(references)
    _check_lengths(hypotheses, references)
    metrics = _metrics(bleu_tokenize or tokenization_of(references), bleu_lowercase)
    scores: dict[str, Any] = {}
    if bootstrap:
        # The paired test of a single system is sacreBLEU's public access to its resamples. The
        # interval of `corpus_score` is the same, but fails (2.6) if only some resamples score 0.
        systems = [("system", hypotheses)]
        signatures, results = PairedTest(systems, metrics, [references], "bs", bootstrap)()
        for name, printed in zip(metrics, signatures, strict=True):
            [result] = results[printed]
            scores[name] = result.score
            scores[f"{name}_signature"] = str(signatures[printed])
            scores[f"{name}_ci"] = [float(result.mean + side * result.ci) for side in (-1, 1)]
    else:
        for name, metric in metrics.items():
            scores[name] = metric.corpus_score(hypotheses, [references]).score
            scores[f"{name}_signature"] = str(metric.get_signature())
    scores["exact_match"] = sum(map(str.__eq__, hypotheses, references)) / len(references)
    return scores


def paired_tests(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    bleu_tokenize: str | None = None,
    bleu_lowercase: bool = False,
) -> dict[str, dict[str, dict[str, Any]]]:
    """sacreBLEU's paired significance tests of two systems.

    A p-value is about the probability that systems of equal quality show a difference at least as
    large. Identical translations have the smallest p-value possible, because sacreBLEU counts only
    larger differences than the observed one.

    The arguments and errors are those of `corpus_scores`, with the translations of two systems.

    Returns:
      for ``bleu`` and ``chrf``, for ``paired_bootstrap`` (1000 resamples) and
      ``approximate_randomization`` (10000 trials): ``p`` and ``signature``.
    """
    from sacrebleu.significance import PairedTest

    references = list(references)
    systems = [("baseline", list(baseline)), ("system", list(system))]
    for _, translations in systems:
        _check_lengths(translations, references)
    bleu_tokenize = bleu_tokenize or tokenization_of(references)
    tests: dict[str, dict[str, dict[str, Any]]] = {"bleu": {}, "chrf": {}}
    for test, kind in (("paired_bootstrap", "bs"), ("approximate_randomization", "ar")):
        metrics = _metrics(bleu_tokenize, bleu_lowercase)
        signatures, results = PairedTest(systems, metrics, [references], kind)()
        # sacreBLEU keys its results by the printed name of the metric, in the order of the metrics.
        for name, printed in zip(metrics, signatures, strict=True):
            _, result = results[printed]
            tests[name][test] = {"p": float(result.p_value), "signature": str(signatures[printed])}
    return tests


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF of each sentence, in 0..100."""
    _check_lengths(hypotheses, references)
    return list(map(sentence_similarity("chrf"), hypotheses, references))


def sentence_similarity(metric: Literal["chrf", "bleu"]) -> Callable[[str, str], float]:
    """sacreBLEU's score of one sentence (first) against another (second), in 0..100.

    BLEU uses n-grams up to the length of the sentences (sacreBLEU's `effective_order`).
    """
    import sacrebleu

    score = sacrebleu.CHRF() if metric == "chrf" else sacrebleu.BLEU(effective_order=True)
    return lambda hypothesis, reference: score.sentence_score(hypothesis, [reference]).score


def tokenization_of(references: Sequence[str]) -> str:
    """BLEU's tokenization for the script of the references, logged once unless it is 13a.

    13a splits words at spaces. Text in a script without spaces has few words of that kind, and a
    BLEU of almost 0.

    Returns:
      ``zh`` for Chinese; ``ja-mecab`` for Japanese, or ``char`` where MeCab is not installed;
      ``char`` for other scripts without spaces; ``13a`` otherwise.
    """
    text = "".join(references)
    letters = sum(map(str.isalpha, text))
    han, kana, unspaced = (len(script.findall(text)) for script in (_HAN, _KANA, _UNSPACED))
    if han + kana + unspaced <= letters / 2:
        return "13a"
    # Japanese is rarely without kana, and Chinese rarely has any.
    japanese = han + kana > unspaced and kana > 0.05 * (han + kana)
    tokenization = "zh" if han > unspaced and not japanese else "char"
    if japanese:
        try:
            _metrics("ja-mecab", bleu_lowercase=False)
            tokenization = "ja-mecab"
        except InputError as error:
            _log_once(f"BLEU of Japanese is computed on characters: {error}")
    _log_once(f"BLEU is tokenized by {tokenization}, for the script of the references")
    return tokenization


def check_tokenization(bleu_tokenize: str | None) -> None:
    """Refuse a tokenization that sacreBLEU does not know, or that lacks its package."""
    if bleu_tokenize is not None:
        _metrics(bleu_tokenize, bleu_lowercase=False)


@functools.cache
def _log_once(message: str) -> None:
    logger.warning(message)


def _metrics(bleu_tokenize: str, bleu_lowercase: bool) -> dict[str, Any]:
    """sacreBLEU's metrics by the names used here."""
    import sacrebleu

    if bleu_tokenize not in sacrebleu.BLEU.TOKENIZERS:
        known = ", ".join(sacrebleu.BLEU.TOKENIZERS)
        raise InputError(f"BLEU's tokenization {bleu_tokenize!r} is unknown; sacreBLEU has {known}")
    try:
        # `force` silences sacreBLEU's warning that the text looks tokenized.
        bleu = sacrebleu.BLEU(
            lowercase=bleu_lowercase, tokenize=bleu_tokenize, force=bleu_tokenize == "none"
        )
    except (ImportError, RuntimeError, OSError) as error:
        # Some tokenizations need a package or a model that sacreBLEU does not include.
        reason = " ".join(str(error).split())
        raise InputError(f"BLEU's tokenization {bleu_tokenize!r} needs more: {reason}") from None
    return {"bleu": bleu, "chrf": sacrebleu.CHRF()}


def _check_lengths(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        raise InputError(
            f"{len(hypotheses)} translations and {len(references)} references cannot be compared; "
            "the numbers must be equal and at least 1"
        )
