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
    """By measure; of means over the runs."""
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
      translations: of each system of one run.
      references: raw text.
      **bleu: the variant of BLEU, as in `metrics.corpus_scores`.

    Returns:
      the pairs, and sacreBLEU's signatures by measure and test.
    """
    measures = [name for name, value in systems[0][0].items() if isinstance(value, int | float)]
    numbers = list(itertools.combinations(range(len(systems)), 2))
    differences, p_values, signatures = [], [], {}
    for first, second in numbers:
        runs = {
            name: [[run[name] for run in systems[index]] for index in (first, second)]
            for name in measures
        }
        means = {name: [statistics.fmean(each) for each in both] for name, both in runs.items()}
        differences.append({name: after - before for name, (before, after) in means.items()})
        if len(systems[0]) > 1:
            p_values.append({name: {"welch": welch_test(*both)} for name, both in runs.items()})
            continue
        texts = [translations[index] for index in (first, second)]
        tests = paired_tests(*texts, references, **bleu)
        # Of identical translations, sacreBLEU reports the smallest p-value possible.
        same = all(map(str.__eq__, *texts))
        p_values.append(
            {
                measure: {test: None if same else result["p"] for test, result in each.items()}
                for measure, each in tests.items()
            }
        )
        signatures = {
            measure: {test: result["signature"] for test, result in each.items()}
            for measure, each in tests.items()
        }
    corrected: list[PValues] = [{measure: {} for measure in each} for each in p_values]
    for measure, tests in p_values[0].items():
        for test in tests:
            values = holm_correction([each[measure][test] for each in p_values])
            for each, value in zip(corrected, values, strict=True):
                each[measure][test] = value
    fields = zip(numbers, differences, p_values, corrected, strict=True)
    return [Pair(*number, *others) for number, *others in fields], signatures


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
