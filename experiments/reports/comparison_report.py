# SPDX-License-Identifier: Apache-2.0
"""The comparison of two systems' translations: the differences, and whether they are significant.

The systems are called A and B; differences are B minus A.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.reports import diagnostics
from experiments.reports.evaluation_report import MEASURE_NAMES, measure_name, signatures
from transformer.inspection import figures
from transformer.inspection.html import page, paragraph, section, sentence_versions, table
from transformer.inspection.views.view import figure_html
from transformer.text.metrics import corpus_scores, paired_tests, sentence_chrf

NUM_EXAMPLES = 5
"""Largest number of sentences shown for each system."""

SYSTEM_NAMES = ("A", "B")
MEASURES = ("bleu", "chrf")
TESTS = {
    "paired_bootstrap": "paired bootstrap",
    "approximate_randomization": "approximate randomization",
}

SCORE_COLUMNS = ("measure", *SYSTEM_NAMES, "B - A", *(f"p, {name}" for name in TESTS.values()))
LENGTH_COLUMNS = (
    *("words", "sentences"),
    *(f"{MEASURE_NAMES[m]} {name}" for m in MEASURES for name in (*SYSTEM_NAMES, "B - A")),
)


@dataclasses.dataclass(frozen=True)
class System:
    """The translations of the test set by one system."""

    name: str
    """Its workdir or file."""
    translations: list[str]
    corpus_metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Measures of the dataset."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Scores of two systems on one test set, and tests of the difference."""

    sources: list[str] | None
    references: list[str]
    systems: tuple[System, System]
    scores: tuple[dict[str, Any], dict[str, Any]]
    tests: dict[str, dict[str, dict[str, Any]]]
    """From `metrics.paired_tests`, with A as the baseline."""
    chrf: tuple[list[float], list[float]]
    """Of each sentence."""
    by_length: list[dict[str, Any]]
    """Scores of both systems for sentences of similar lengths: ``name`` (such as ``6 to 10``),
    ``mean`` (words of the reference), ``sentences``, ``bleu`` and ``chrf``.
    """

    def num_equal(self) -> int:
        """Number of sentences with identical translations."""
        first, second = (system.translations for system in self.systems)
        return sum(map(str.__eq__, first, second))

    def largest_differences(self) -> tuple[list[int], list[int]]:
        """Rows that A translates better and rows that B translates better, by chrF.

        The largest differences come first; at most `NUM_EXAMPLES` each.
        """
        first, second = self.chrf
        gains = [b - a for a, b in zip(first, second, strict=True)]
        order = sorted(range(len(gains)), key=gains.__getitem__)
        worse = [row for row in order[:NUM_EXAMPLES] if gains[row] < 0]
        better = [row for row in order[::-1][:NUM_EXAMPLES] if gains[row] > 0]
        return worse, better


def compare(
    sources: list[str] | None,
    references: list[str],
    systems: tuple[System, System],
    *,
    bleu_tokenize: str | None = None,
    bleu_lowercase: bool = False,
) -> Comparison:
    """Score two systems, test the difference, and score sentences of similar lengths.

    Raises:
      InputError: The numbers of translations and references differ, or the tokenization is
        unknown.
    """
    bleu = {"bleu_tokenize": bleu_tokenize, "bleu_lowercase": bleu_lowercase}
    first, second = texts = [system.translations for system in systems]
    scores = [
        {**corpus_scores(system.translations, references, **bleu), **system.corpus_metrics}
        for system in systems
    ]
    by_length = []
    for bucket in diagnostics.length_buckets(references):
        targets = [references[row] for row in bucket.rows]
        parts = [
            corpus_scores([text[row] for row in bucket.rows], targets, bootstrap=0, **bleu)
            for text in texts
        ]
        pairs = {measure: [part[measure] for part in parts] for measure in MEASURES}
        by_length.append(
            {"name": bucket.name, "mean": bucket.mean, "sentences": len(targets), **pairs}
        )
    return Comparison(
        sources,
        references,
        systems,
        tuple(scores),
        paired_tests(first, second, references, **bleu),
        tuple(sentence_chrf(text, references) for text in texts),
        by_length,
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The JSON object that `compare` prints."""
    first, second = comparison.scores

    def of_tests(key: str) -> dict[str, dict[str, Any]]:
        return {
            measure: {test: comparison.tests[measure][test][key] for test in TESTS}
            for measure in MEASURES
        }

    return {
        "sentences": len(comparison.references),
        "equal": comparison.num_equal(),
        "systems": [
            {"name": system.name, **scores}
            for system, scores in zip(comparison.systems, comparison.scores, strict=True)
        ],
        "differences": {measure: second[measure] - first[measure] for measure in MEASURES},
        "p_values": of_tests("p"),
        "test_signatures": of_tests("signature"),
        "by_length": comparison.by_length,
    }


def _score_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    first, second = comparison.scores
    for measure, value in first.items():
        if not isinstance(value, float | int):
            continue
        tests = comparison.tests.get(measure)
        difference = second[measure] - value
        yield (
            measure_name(measure),
            *(_with_interval(measure, scores) for scores in comparison.scores),
            f"{difference:+.2f}" if tests else f"{difference:+.4f}",
            *(f"{tests[test]['p']:.4f}" if tests else "" for test in TESTS),
        )


def _with_interval(measure: str, scores: dict[str, Any]) -> str:
    interval = scores.get(f"{measure}_ci")
    if interval is None:
        return f"{scores[measure]:.4f}"
    return f"{scores[measure]:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _length_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for bucket in comparison.by_length:
        cells = []
        for a, b in (bucket[measure] for measure in MEASURES):
            cells += [f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}"]
        yield (bucket["name"], f"{bucket['sentences']:,}", *cells)


def _summary(comparison: Comparison) -> list[str]:
    """The meaning of the numbers, one sentence or paragraph each."""
    total, equal = len(comparison.references), comparison.num_equal()
    if equal == total:
        return [
            f"{total:,} sentences, all translated the same: there is no difference to test, and "
            "the p-values are meaningless."
        ]
    return [
        f"{total:,} sentences, {equal:,} of them translated the same.",
        "p is the probability of a difference at least this large between equally good systems. "
        "Below 0.05 it is called significant, which does not mean large or important.",
    ]


def _examples(comparison: Comparison) -> Iterator[tuple[str, list[int]]]:
    """A heading and the rows of the largest differences, for each system."""
    for name, rows in zip(SYSTEM_NAMES, comparison.largest_differences(), strict=True):
        yield f"Sentences that {name} translates better, by chrF", rows


def _versions(comparison: Comparison, row: int) -> tuple[str, list[tuple[str, str]]]:
    """A heading for one sentence, and its versions."""
    first, second = (chrf[row] for chrf in comparison.chrf)
    versions = [("source", comparison.sources[row])] if comparison.sources else []
    versions.append(("reference", comparison.references[row]))
    translations = (system.translations[row] for system in comparison.systems)
    versions += zip(SYSTEM_NAMES, translations, strict=True)
    return f"line {row + 1} · chrF {first:.1f} for A, {second:.1f} for B", versions


def as_text(comparison: Comparison) -> str:
    """The comparison for a terminal."""
    lines = [
        *(f"{n}: {s.name}" for n, s in zip(SYSTEM_NAMES, comparison.systems, strict=True)),
        *_summary(comparison),
        "",
        *_aligned([SCORE_COLUMNS, *_score_rows(comparison)]),
        "",
        "By the number of words in the reference:",
        *_aligned([LENGTH_COLUMNS, *_length_rows(comparison)]),
    ]
    for heading, rows in _examples(comparison):
        lines += ["", f"{heading}:"] if rows else []
        for row in rows:
            about, versions = _versions(comparison, row)
            lines += [about, *(f"  {name:9}  {text}" for name, text in versions)]
    return "\n".join(lines) + "\n"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines in which the first column is aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        yield "  ".join(cells).rstrip()


def as_page(comparison: Comparison) -> str:
    """The comparison as an HTML file."""
    first, second = comparison.systems
    means = [bucket["mean"] for bucket in comparison.by_length]
    bleu_by_length = figures.plot_curves(
        {
            name: (means, [bucket["bleu"][index] for bucket in comparison.by_length])
            for index, name in enumerate(SYSTEM_NAMES)
        },
        x_label="words in the reference",
        y_label="BLEU",
        title="BLEU by length",
    )
    return page(
        f"Comparison of {first.name} and {second.name}",
        paragraph(f"A: {first.name}"),
        paragraph(f"B: {second.name}"),
        *map(paragraph, _summary(comparison)),
        section(
            "Scores",
            table(
                "Scores with 95% intervals, and sacreBLEU's paired tests of the difference",
                SCORE_COLUMNS,
                list(_score_rows(comparison)),
                numeric=range(1, len(SCORE_COLUMNS)),
            ),
            signatures(comparison.scores[0]),
        ),
        section(
            "By length",
            figure_html(bleu_by_length),
            table(
                "By the number of words in the reference",
                LENGTH_COLUMNS,
                list(_length_rows(comparison)),
                numeric=range(1, len(LENGTH_COLUMNS)),
            ),
        ),
        *(
            section(
                heading,
                *(
                    [sentence_versions(*_versions(comparison, row)) for row in rows]
                    or [paragraph("There are none.")]
                ),
            )
            for heading, rows in _examples(comparison)
        ),
    )
