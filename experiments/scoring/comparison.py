# SPDX-License-Identifier: Apache-2.0
"""Systems on one test set: their scores, and tests of the difference of every two."""

import collections
import dataclasses
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.scoring import diagnostics, significance
from transformer.errors import InputError
from transformer.text.metrics import corpus_scores, sentence_chrf, tokenization_of

NUM_EXAMPLES = 5
"""Largest number of sentences that are shown for each side of a pair of systems."""

MEASURES = ("bleu", "chrf")
"""Measures of sacreBLEU, which are also scored by length."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The translations of the test set by one model."""

    name: str
    """Its workdir or file."""
    translations: list[str]
    corpus_metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Measures of the dataset."""


@dataclasses.dataclass(frozen=True)
class System:
    """One run, or several that differ in their seeds, with their scores."""

    name: str
    runs: list[Run]
    run_scores: list[dict[str, Any]]
    """Scores of each run."""
    translations: list[str]
    """The most frequent translation of each sentence among the runs; for ties, the first run's."""
    chrf: list[float]
    """Mean chrF of each sentence over the runs."""
    by_length: list[dict[str, float]]
    """Mean BLEU and chrF over the runs, for each length bucket."""

    @property
    def scores(self) -> dict[str, Any]:
        """Scores of the run, or of several runs their means and standard deviations (``_std``)."""
        if len(self.runs) == 1:
            return self.run_scores[0]
        numbers = [m for m, value in self.run_scores[0].items() if isinstance(value, int | float)]
        values = {measure: [run[measure] for run in self.run_scores] for measure in numbers}
        means = {measure: statistics.fmean(each) for measure, each in values.items()}
        return means | {
            f"{measure}_std": statistics.stdev(each) for measure, each in values.items()
        }


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Systems on one test set, and tests of the difference of every two."""

    sources: list[str] | None
    references: list[str]
    buckets: list[diagnostics.LengthBucket]
    systems: list[System]
    pairs: list[significance.Pair]
    test_signatures: dict[str, dict[str, str]]

    def of_pair(self, pair: significance.Pair) -> tuple[System, System]:
        """The two systems of a pair."""
        return self.systems[pair.first], self.systems[pair.second]

    def num_equal(self, pair: significance.Pair) -> int:
        """Number of sentences that both systems translate the same."""
        first, second = self.of_pair(pair)
        return sum(map(str.__eq__, first.translations, second.translations))

    def largest_gains(self, worse: System, better: System) -> list[int]:
        """Rows that one system translates better than another by chrF, the largest gain first."""
        gains = [b - a for a, b in zip(worse.chrf, better.chrf, strict=True)]
        order = sorted(range(len(gains)), key=gains.__getitem__, reverse=True)
        number = max(NUM_EXAMPLES // len(self.pairs), 1)
        return [row for row in order[:number] if gains[row] > 0]


def compare(
    sources: list[str] | None,
    references: list[str],
    runs: Mapping[str, Sequence[Run]],
    **bleu: Any,
) -> Comparison:
    """Score systems, and test the difference of every two.

    Args:
      sources: raw text, shown beside the translations.
      references: raw text.
      runs: runs of each system, by its name.
      **bleu: the variant of BLEU, as in `metrics.corpus_scores`.

    Raises:
      InputError: The numbers of translations and references differ, one system has one run and
        another several, or the tokenization is unknown.
    """
    numbers = {name: len(each) for name, each in runs.items()}
    if len(set(numbers.values())) > 1 and 1 in numbers.values():
        single = next(name for name, number in numbers.items() if number == 1)
        raise InputError(
            f"{single!r} has one run, but another system has {max(numbers.values())}; give several "
            "runs of each system, or one of each"
        )
    # That of all references, for the sentences of each length too.
    bleu["bleu_tokenize"] = bleu.get("bleu_tokenize") or tokenization_of(references)
    buckets = diagnostics.length_buckets(references)
    systems = [_scored(name, each, references, buckets, bleu) for name, each in runs.items()]
    pairs, test_signatures = significance.compare_pairs(
        [system.run_scores for system in systems],
        [system.translations for system in systems],
        references,
        **bleu,
    )
    return Comparison(sources, references, buckets, systems, pairs, test_signatures)


def default_names(systems: Sequence[Sequence[str]]) -> list[str]:
    """The common prefix of each system's file names, or the first paths if these are not unique."""
    names = []
    for runs in systems:
        files = [os.path.basename(path.rstrip("/")) for path in runs]
        names.append(os.path.commonprefix(files).rstrip("_-.") or files[0])
    return names if len(set(names)) == len(names) else [runs[0] for runs in systems]


def _scored(
    name: str,
    runs: Sequence[Run],
    references: list[str],
    buckets: Sequence[diagnostics.LengthBucket],
    bleu: dict[str, Any],
) -> System:
    texts = [run.translations for run in runs]
    run_scores = [
        {**corpus_scores(run.translations, references, **bleu), **run.corpus_metrics}
        for run in runs
    ]
    by_length = []
    for bucket in buckets:
        targets = [references[row] for row in bucket.rows]
        scores = [
            corpus_scores([each[row] for row in bucket.rows], targets, bootstrap=0, **bleu)
            for each in texts
        ]
        by_length.append({m: statistics.fmean(each[m] for each in scores) for m in MEASURES})
    chrf = [sentence_chrf(each, references) for each in texts]
    return System(
        name=name,
        runs=list(runs),
        run_scores=run_scores,
        translations=[
            collections.Counter(versions).most_common(1)[0][0]
            for versions in zip(*texts, strict=True)
        ],
        chrf=list(map(statistics.fmean, zip(*chrf, strict=True))),
        by_length=by_length,
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The JSON object that `compare` prints."""
    names = [system.name for system in comparison.systems]
    return {
        "sentences": len(comparison.references),
        "systems": [
            {
                "name": system.name,
                **system.scores,
                "runs": [
                    {"name": run.name, **scores}
                    for run, scores in zip(system.runs, system.run_scores, strict=True)
                ],
            }
            for system in comparison.systems
        ],
        "pairs": [
            {
                "systems": [names[pair.first], names[pair.second]],
                "equal": comparison.num_equal(pair),
                "differences": pair.differences,
                "p_values": pair.p_values,
                "corrected_p_values": pair.corrected,
            }
            for pair in comparison.pairs
        ],
        "test_signatures": comparison.test_signatures,
        "by_length": [
            {
                "name": bucket.name,
                "mean": bucket.mean,
                "sentences": len(bucket.rows),
                **{m: [system.by_length[i][m] for system in comparison.systems] for m in MEASURES},
            }
            for i, bucket in enumerate(comparison.buckets)
        ],
    }
