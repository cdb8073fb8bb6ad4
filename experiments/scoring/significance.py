# SPDX-License-Identifier: Apache-2.0
"""Significance of differences between systems: tests of every pair, corrected for their number.

A system is one run, or several runs that differ in their seeds. Single runs are compared by
sacreBLEU's paired tests, which measure the variation of the test set; systems of several runs by
Welch's t-test over the runs, which measures the variation between trainings.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.text.metrics import paired_tests

TESTS = {
    "paired_bootstrap": "paired bootstrap",
    "approximate_randomization": "approximate randomization",
    "welch": "Welch's t-test over runs",
}
"""Display names of the tests."""

PValues = dict[str, dict[str, float | None]]
"""By measure and test; None where there is nothing to test."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """The difference between two systems: the second minus the first."""

    first: int
    """Index of a system, as is `second`."""
    second: int
    differences: dict[str, float]
    """Difference of the means over the runs, by measure."""
    p_values: PValues
    corrected: PValues
    """`p_values` after Holm's correction for the number of pairs."""


def compare_pairs(
    systems: Sequence[Sequence[Mapping[str, Any]]],
    translations: Sequence[Sequence[str]],
    references: Sequence[str],
    **bleu: Any,
) -> tuple[list[Pair], dict[str, dict[str, str]]]:
    """Test the difference of every two systems.

    Args:
      systems: scores of each run of each system; all systems have one run, or all have several.
      translations: translations of each system, if it has one run.
      references: raw text.
      **bleu: the variant of BLEU, as in `metrics.corpus_scores`.

    Returns:
      the pairs, and sacreBLEU's signatures by measure and test.
    """
    measures = [name for name, value in systems[0][0].items() if isinstance(value, int | float)]
    pairs, signatures = [], {}
    for first, second in itertools.combinations(range(len(systems)), 2):
        both = (systems[first], systems[second])
        scores = {name: [[run[name] for run in runs] for runs in both] for name in measures}
        if len(systems[0]) > 1:
            p_values = {name: {"welch": welch_test(*each)} for name, each in scores.items()}
        else:
            texts = (translations[first], translations[second])
            p_values, signatures = _sacrebleu_tests(*texts, references, **bleu)
        means = {name: [statistics.fmean(runs) for runs in each] for name, each in scores.items()}
        differences = {name: after - before for name, (before, after) in means.items()}
        pairs.append(Pair(first, second, differences, p_values, corrected={}))
    for measure, tests in pairs[0].p_values.items():
        for test in tests:
            values = holm_correction([pair.p_values[measure][test] for pair in pairs])
            for pair, value in zip(pairs, values, strict=True):
                pair.corrected.setdefault(measure, {})[test] = value
    return pairs, signatures


def _sacrebleu_tests(
    first: Sequence[str], second: Sequence[str], references: Sequence[str], **bleu: Any
) -> tuple[PValues, dict[str, dict[str, str]]]:
    """p-values and signatures of sacreBLEU's paired tests."""
    results = paired_tests(first, second, references, **bleu)
    # For identical translations, sacreBLEU reports the smallest possible p-value.
    same = all(map(str.__eq__, first, second))
    p_values = {
        measure: {test: None if same else result["p"] for test, result in tests.items()}
        for measure, tests in results.items()
    }
    signatures = {
        measure: {test: result["signature"] for test, result in tests.items()}
        for measure, tests in results.items()
    }
    return p_values, signatures


def welch_test(first: Sequence[float], second: Sequence[float]) -> float | None:
    """p of Welch's t-test; None if each system has the same score in all of its runs."""
    from scipy import stats

    if len(set(first)) == len(set(second)) == 1:
        return None
    moments = [
        moment
        for scores in (first, second)
        for moment in (statistics.fmean(scores), statistics.stdev(scores), len(scores))
    ]
    return float(stats.ttest_ind_from_stats(*moments, equal_var=False).pvalue)


def holm_correction(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of p-values for the number of tests; None is no test."""
    tested = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(tested):
        largest = max(largest, min((len(tested) - rank) * p, 1.0))
        corrected[index] = largest
    return corrected
