# SPDX-License-Identifier: Apache-2.0
"""Two systems' translations of the same sentences: what differs, and whether by more than chance.

The systems are called A and B; a difference is B less A.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.reports import diagnostics
from experiments.reports.evaluation_report import signatures
from transformer.inspection.html import (
    Series,
    line_chart,
    page,
    paragraph,
    section,
    sentences,
    table,
)
from transformer.text.metrics import corpus_scores, paired_tests, sentence_chrf

SHOWN = 5
"""Sentences shown in each direction."""

NAMES = ("A", "B")
TESTS = {
    "paired_bootstrap": "paired bootstrap",
    "approximate_randomization": "approximate randomisation",
}
MEASURES = {"bleu": "BLEU", "chrf": "chrF"}


@dataclasses.dataclass(frozen=True)
class System:
    """What one system made of the test set."""

    name: str
    """Its workdir or file."""
    translations: list[str]
    corpus_metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What the dataset measures of its own."""


@dataclasses.dataclass(frozen=True)
class LengthScores:
    """The scores of the sentences whose references have about the same length."""

    name: str
    """Words of the reference, for example ``6 to 10``."""
    mean: float
    """Words of a reference."""
    sentences: int
    bleu: tuple[float, float]
    chrf: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All that is known of two systems on one test set."""

    sources: list[str] | None
    references: list[str]
    systems: tuple[System, System]
    scores: tuple[dict[str, Any], dict[str, Any]]
    tests: dict[str, dict[str, dict[str, Any]]]
    """See `metrics.paired_tests`; A is the baseline."""
    chrf: tuple[list[float], list[float]]
    """Of each sentence."""
    by_length: list[LengthScores]

    def equal(self) -> int:
        """How many sentences both translate the same."""
        first, second = (system.translations for system in self.systems)
        return sum(map(str.__eq__, first, second))

    def differing_most(self) -> tuple[list[int], list[int]]:
        """The places that A translates better, and those that B does, by chrF; the clearest first,
        at most `SHOWN`.
        """
        first, second = self.chrf
        gains = [b - a for a, b in zip(first, second, strict=True)]
        order = sorted(range(len(gains)), key=gains.__getitem__)
        worse = [row for row in order[:SHOWN] if gains[row] < 0]
        better = [row for row in order[::-1][:SHOWN] if gains[row] > 0]
        return worse, better


def compare(
    sources: list[str] | None,
    references: list[str],
    systems: tuple[System, System],
    *,
    bleu_tokenize: str = "13a",
    bleu_lowercase: bool = False,
) -> Comparison:
    """Scores both, tests the difference, and divides it by length.

    Raises:
      InputError: when there are not as many translations as references, or for an unknown
        tokenization.
    """
    kind = {"bleu_tokenize": bleu_tokenize, "bleu_lowercase": bleu_lowercase}
    first, second = texts = [system.translations for system in systems]
    scores = [
        {**corpus_scores(system.translations, references, **kind), **system.corpus_metrics}
        for system in systems
    ]
    by_length = []
    for group in diagnostics.length_classes(references):
        targets = [references[row] for row in group.rows]
        parts = [
            corpus_scores([text[row] for row in group.rows], targets, bootstrap=0, **kind)
            for text in texts
        ]
        bleu, chrf = (tuple(part[measure] for part in parts) for measure in MEASURES)
        by_length.append(LengthScores(group.name, group.mean, len(targets), bleu, chrf))
    return Comparison(
        sources,
        references,
        systems,
        tuple(scores),
        paired_tests(first, second, references, **kind),
        tuple(sentence_chrf(text, references) for text in texts),
        by_length,
    )


def as_json(found: Comparison) -> dict[str, Any]:
    """What `compare` prints as its last line."""
    first, second = found.scores
    return {
        "sentences": len(found.references),
        "equal": found.equal(),
        "systems": [
            {"name": system.name, **scores}
            for system, scores in zip(found.systems, found.scores, strict=True)
        ],
        "differences": {measure: second[measure] - first[measure] for measure in MEASURES},
        "p_values": {
            measure: {test: found.tests[measure][test]["p"] for test in TESTS}
            for measure in MEASURES
        },
        "test_signatures": {
            measure: {test: found.tests[measure][test]["signature"] for test in TESTS}
            for measure in MEASURES
        },
        "by_length": [dataclasses.asdict(group) for group in found.by_length],
    }


SCORE_COLUMNS = ("measure", *NAMES, "B - A", *(f"p, {name}" for name in TESTS.values()))
LENGTH_COLUMNS = (
    *("words", "sentences"),
    *(f"{measure} {name}" for measure in MEASURES.values() for name in (*NAMES, "B - A")),
)


def _score_rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    first, second = found.scores
    for name, value in first.items():
        if not isinstance(value, float | int):
            continue
        tests = found.tests.get(name)
        yield (
            MEASURES.get(name, name.replace("_", " ")),
            *(_with_interval(name, scores) for scores in found.scores),
            f"{second[name] - value:+.2f}" if tests else f"{second[name] - value:+.4f}",
            *(f"{tests[test]['p']:.4f}" if tests else "" for test in TESTS),
        )


def _with_interval(name: str, scores: dict[str, Any]) -> str:
    interval = scores.get(f"{name}_ci")
    if interval is None:
        return f"{scores[name]:.4f}"
    return f"{scores[name]:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _length_rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    for group in found.by_length:
        pairs = (group.bleu, group.chrf)
        numbers = (f"{a:.1f} {b:.1f} {b - a:+.1f}".split() for a, b in pairs)
        yield (group.name, f"{group.sentences:,}", *(text for row in numbers for text in row))


def _remarks(found: Comparison) -> list[str]:
    """What the numbers mean, in words."""
    total, equal = len(found.references), found.equal()
    if equal == total:
        return [
            f"{total:,} sentences, all translated the same: there is no difference to test, and "
            "the p-values say nothing."
        ]
    return [
        f"{total:,} sentences, {equal:,} of them translated the same.",
        "p is about the probability of so large a difference between systems that are equally "
        "good. Below 0.05 it is called significant; that makes it neither large nor important.",
    ]


def _differing(found: Comparison) -> Iterator[tuple[str, list[int]]]:
    """The sentences that differ most: what they are, and their places."""
    for name, rows in zip(NAMES, found.differing_most(), strict=True):
        yield f"Clearest sentences in which {name} is better, by chrF", rows


def _versions(found: Comparison, row: int) -> tuple[str, list[tuple[str, str]]]:
    """A heading for one sentence, and its versions."""
    first, second = (chrf[row] for chrf in found.chrf)
    lines = [("source", found.sources[row])] if found.sources else []
    lines.append(("reference", found.references[row]))
    lines += zip(NAMES, (system.translations[row] for system in found.systems), strict=True)
    return f"line {row + 1} · chrF {first:.1f} for A, {second:.1f} for B", lines


def as_text(found: Comparison) -> str:
    """The comparison for a terminal."""
    lines = [
        *(f"{name}: {system.name}" for name, system in zip(NAMES, found.systems, strict=True)),
        *_remarks(found),
        "",
        *_aligned([SCORE_COLUMNS, *_score_rows(found)]),
        "",
        "By the number of words in the reference:",
        *_aligned([LENGTH_COLUMNS, *_length_rows(found)]),
    ]
    for heading, rows in _differing(found):
        lines += ["", f"{heading}:"] if rows else []
        for row in rows:
            about, versions = _versions(found, row)
            lines += [about, *(f"  {name:9}  {text}" for name, text in versions)]
    return "\n".join(lines) + "\n"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column on the left, numbers on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        yield "  ".join(cells).rstrip()


def as_page(found: Comparison) -> str:
    """The comparison as an HTML file."""
    systems = zip(NAMES, found.systems, strict=True)
    means = [group.mean for group in found.by_length]
    lines = [
        Series(name, means, [group.bleu[place] for group in found.by_length])
        for place, name in enumerate(NAMES)
    ]
    differing = []
    for heading, rows in _differing(found):
        shown = [sentences(*_versions(found, row)) for row in rows]
        differing.append(section(heading, *(shown or [paragraph("There are none.")])))
    return page(
        f"{found.systems[0].name} and {found.systems[1].name} compared",
        *(paragraph(f"{name}: {system.name}") for name, system in systems),
        *map(paragraph, _remarks(found)),
        section(
            "Scores",
            table(
                "Scores with 95% intervals, and sacreBLEU's paired tests of the difference",
                SCORE_COLUMNS,
                list(_score_rows(found)),
                numeric=range(1, len(SCORE_COLUMNS)),
            ),
            signatures(found.scores[0]),
        ),
        section(
            "By length",
            line_chart("BLEU by length", lines, x_label="words in the reference", y_label="BLEU"),
            table(
                "By the number of words in the reference",
                LENGTH_COLUMNS,
                list(_length_rows(found)),
                numeric=range(1, len(LENGTH_COLUMNS)),
            ),
        ),
        *differing,
    )
