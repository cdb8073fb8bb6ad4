# SPDX-License-Identifier: Apache-2.0
"""Scores of translations against raw references; the only file that imports sacreBLEU.

BLEU and chrF are sacreBLEU's, each with its signature and a bootstrap confidence interval (95%,
1000 resamples, fixed seed), on untouched references. BLEU is cased and tokenized by 13a unless
another of sacreBLEU's tokenizations is asked for by name; the signature says which it was.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from transformer.errors import InputError


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bootstrap: int = 1000,
    bleu_tokenize: str = "13a",
    bleu_lowercase: bool = False,
) -> dict[str, Any]:
    """BLEU and chrF with signatures and intervals, and the share of exact matches.

    Args:
      hypotheses: translations, as raw text.
      references: the same number of them, as raw text.
      bootstrap: resamples for the intervals; 0 leaves them out. 1000 need about 100 kB of memory
        for each sentence.
      bleu_tokenize: sacreBLEU's name of the tokenization that BLEU counts words by; ``none`` for
        text that is tokenized already.
      bleu_lowercase: BLEU of both sides in lower case. chrF is cased always.

    Returns:
      ``bleu`` and ``chrf`` in 0..100, ``exact_match`` in 0..1, ``bleu_signature`` and
      ``chrf_signature``, and, if there are resamples, ``bleu_ci`` and ``chrf_ci`` as [low, high].

    Raises:
      InputError: when the numbers of sentences differ or are 0, or for an unknown tokenization.
    """
    hypotheses, references = list(hypotheses), list(references)
    _require_pairs(hypotheses, references)
    scores: dict[str, Any] = {}
    for name, metric in _metrics(bleu_tokenize, bleu_lowercase).items():
        score, interval = _score(metric, hypotheses, references, bootstrap)
        scores |= {name: score, f"{name}_signature": str(metric.get_signature())}
        if interval:
            scores[f"{name}_ci"] = interval
    matches = sum(map(str.__eq__, hypotheses, references))
    scores["exact_match"] = matches / len(references)
    return scores


def paired_tests(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    bleu_tokenize: str = "13a",
    bleu_lowercase: bool = False,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Whether two systems' scores differ by more than chance: sacreBLEU's two paired tests.

    A p-value is about the probability that systems of equal quality would show a difference at
    least as large. Translations that are all identical have the smallest p-value there is, since
    sacreBLEU counts only differences that are larger than the one found.

    Args:
      baseline: the translations of one system, as raw text.
      system: those of the other.
      references: as raw text.
      bleu_tokenize: see `corpus_scores`.
      bleu_lowercase: see `corpus_scores`.

    Returns:
      for ``bleu`` and for ``chrf``, for ``paired_bootstrap`` (1000 resamples) and for
      ``approximate_randomization`` (10000 trials): ``p`` and ``signature``.

    Raises:
      InputError: as `corpus_scores`.
    """
    from sacrebleu.significance import PairedTest

    references = list(references)
    systems = [("baseline", list(baseline)), ("system", list(system))]
    for _, translations in systems:
        _require_pairs(translations, references)
    found: dict[str, dict[str, dict[str, Any]]] = {"bleu": {}, "chrf": {}}
    for test, kind in (("paired_bootstrap", "bs"), ("approximate_randomization", "ar")):
        metrics = _metrics(bleu_tokenize, bleu_lowercase)
        signatures, results = PairedTest(systems, metrics, [references], test_type=kind)()
        # sacreBLEU names the results by the metric's printed name, in the order of the metrics.
        for name, printed in zip(metrics, signatures, strict=True):
            _, result = results[printed]
            found[name][test] = {"p": float(result.p_value), "signature": str(signatures[printed])}
    return found


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF of each sentence by itself, in 0..100.

    Raises:
      InputError: when the numbers of sentences differ or are 0.
    """
    _require_pairs(hypotheses, references)
    return list(map(sentence_similarity("chrf"), hypotheses, references))


def require_tokenization(bleu_tokenize: str) -> None:
    """Refuses at once what `corpus_scores` would refuse after everything has been translated.

    Raises:
      InputError: for a tokenization that sacreBLEU does not know, or that lacks its package.
    """
    _metrics(bleu_tokenize, bleu_lowercase=False)


def _metrics(bleu_tokenize: str, bleu_lowercase: bool) -> dict[str, Any]:
    """sacreBLEU's two metrics by the names that they have here."""
    import sacrebleu

    if bleu_tokenize not in sacrebleu.BLEU.TOKENIZERS:
        known = ", ".join(sacrebleu.BLEU.TOKENIZERS)
        raise InputError(f"BLEU's tokenization {bleu_tokenize!r} is unknown; sacreBLEU has {known}")
    try:
        # With `none` the text is tokenized on purpose, of which sacreBLEU would warn (`force`).
        bleu = sacrebleu.BLEU(
            lowercase=bleu_lowercase, tokenize=bleu_tokenize, force=bleu_tokenize == "none"
        )
    except (ImportError, RuntimeError, OSError) as error:
        # Some tokenizations need a package or a model that sacreBLEU does not bring with it.
        reason = " ".join(str(error).split())
        raise InputError(f"BLEU's tokenization {bleu_tokenize!r} needs more: {reason}") from None
    return {"bleu": bleu, "chrf": sacrebleu.CHRF()}


def _score(
    metric: Any, hypotheses: list[str], references: list[str], resamples: int
) -> tuple[float, list[float] | None]:
    """The score, and the mean of the resampled ones less and plus half the width of their 95%."""
    from sacrebleu.significance import PairedTest

    if not resamples:
        return metric.corpus_score(hypotheses, [references]).score, None
    try:
        found = metric.corpus_score(hypotheses, [references], n_bootstrap=resamples)
    except TypeError:
        # Where some resamples score 0 and others do not, their types differ, and sacreBLEU (2.6)
        # fails to take their mean. Its paired test, here of one system, has the same resamples.
        systems, metrics = [("system", hypotheses)], {"metric": metric}
        _, results = PairedTest(systems, metrics, [references], "bs", n_samples=resamples)()
        [result] = next(columns for name, columns in results.items() if name != "System")
        score, mean, half = result.score, float(result.mean), float(result.ci)
    else:
        printed = json.loads(found.format(width=12, signature="a:b", is_json=True))
        # sacreBLEU prints none where every resample scores 0.
        score, mean, half = (
            found.score,
            printed.get("confidence_mean", 0.0),
            printed.get("confidence_var", 0.0),
        )
    return score, [mean - half, mean + half]


def _require_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        raise InputError(
            f"{len(hypotheses)} translations and {len(references)} references cannot be compared; "
            "there must be equally many, at least one"
        )


def sentence_similarity(metric: Literal["chrf", "bleu"]) -> Callable[[str, str], float]:
    """sacreBLEU's score of one sentence (first) against one other (second), in 0..100.

    BLEU counts only n-grams as long as the sentences have any (sacreBLEU's `effective_order`).
    """
    import sacrebleu

    score = sacrebleu.CHRF() if metric == "chrf" else sacrebleu.BLEU(effective_order=True)
    return lambda hypothesis, reference: score.sentence_score(hypothesis, [reference]).score
