# SPDX-License-Identifier: Apache-2.0
"""The comparison of systems' translations: their scores, and which differences are significant."""

import collections
import dataclasses
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from experiments.reports import diagnostics, significance
from experiments.reports.evaluation_report import MEASURE_NAMES, measure_name, signatures
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.html import (
    Html,
    mark,
    page,
    paragraph,
    section,
    sentence,
    sentence_versions,
    table,
)
from transformer.inspection.views.view import figure_html
from transformer.text.metrics import corpus_scores, sentence_chrf, tokenization_of

NUM_EXAMPLES = 5
"""Largest number of sentences that are shown for each side of a pair of systems."""

MEASURES = ("bleu", "chrf")
"""Measures of sacreBLEU, which are also scored by length."""

_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|\w+|\s+|.", re.DOTALL)
"""The units in which two sentences differ: words, spaces, signs, and single characters of scripts
that are written without spaces.
"""

Pieces = list[tuple[str, bool]]
"""A text in pieces, and whether the text beside it lacks the piece."""


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
    """Of each run."""
    translations: list[str]
    """The most frequent of the runs' translations of each sentence; of ties, the first run's."""
    chrf: list[float]
    """Of each sentence, the mean over the runs."""
    by_length: list[dict[str, float]]
    """BLEU and chrF of the sentences of each length bucket, the mean over the runs."""

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
      runs: of each system, by its name.
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
    """What the file names of each system's runs begin with, or the first paths if not unique."""
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
                "equal": _num_equal(*comparison.of_pair(pair)),
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


def _num_equal(first: System, second: System) -> int:
    """Number of sentences with identical translations."""
    return sum(map(str.__eq__, first.translations, second.translations))


# Tables; the first row has the names of the columns.


def _score_table(comparison: Comparison) -> list[Sequence[str]]:
    """A measure a row, a system a column."""
    systems = comparison.systems
    return [
        ("measure", *(system.name for system in systems)),
        *(
            (measure_name(measure), *(_with_variation(measure, each.scores) for each in systems))
            for measure in comparison.pairs[0].differences
        ),
    ]


def _with_variation(measure: str, scores: dict[str, Any]) -> str:
    """A score with its interval, or with the standard deviation over runs."""
    text = f"{scores[measure]:.{_digits(measure)}f}"
    if f"{measure}_std" in scores:
        return f"{text} ± {scores[f'{measure}_std']:.{_digits(measure)}f}"
    if f"{measure}_ci" in scores:
        low, high = scores[f"{measure}_ci"]
        return f"{text} [{low:.2f}, {high:.2f}]"
    return text


def _digits(measure: str) -> int:
    return 2 if measure in MEASURES else 4


def _pair_table(comparison: Comparison) -> list[Sequence[str]]:
    """A measure of a pair a row, with the p-values, corrected if there are several pairs."""
    tests = next(iter(comparison.pairs[0].p_values.values()))
    columns = [f"p, {significance.TESTS[test]}" for test in tests]
    if len(comparison.pairs) > 1:
        columns += [f"{column}, corrected" for column in columns]
    rows = []
    for pair in comparison.pairs:
        first, second = comparison.of_pair(pair)
        for measure, difference in pair.differences.items():
            p_values = [pair.p_values.get(measure, {}).get(test) for test in tests]
            if len(comparison.pairs) > 1:
                p_values += [pair.corrected.get(measure, {}).get(test) for test in tests]
            rows.append(
                (
                    f"{second.name} − {first.name}",
                    measure_name(measure),
                    f"{difference:+.{_digits(measure)}f}",
                    *("–" if p is None else f"{p:.4f}" for p in p_values),
                )
            )
    return [("systems", "measure", "difference", *columns), *rows]


def _length_table(comparison: Comparison) -> list[Sequence[str]]:
    """A length bucket a row, a measure of a system a column."""
    systems = comparison.systems
    return [
        (
            *("words", "sentences"),
            *(f"{MEASURE_NAMES[m]} {system.name}" for m in MEASURES for system in systems),
        ),
        *(
            (
                bucket.name,
                f"{len(bucket.rows):,}",
                *(f"{system.by_length[i][m]:.1f}" for m in MEASURES for system in systems),
            )
            for i, bucket in enumerate(comparison.buckets)
        ),
    ]


def _summary(comparison: Comparison) -> list[str]:
    """The meaning of the numbers, one sentence or paragraph each."""
    total = len(comparison.references)
    lines = [f"{total:,} sentences."]
    for pair in comparison.pairs:
        systems = comparison.of_pair(pair)
        names, equal = " and ".join(system.name for system in systems), _num_equal(*systems)
        lines.append(
            f"{names} translate all of them the same: there is no difference to test."
            if equal == total
            else f"{names} translate {equal:,} of them the same."
        )
    lines.append(
        "p is the probability of a difference at least this large between equally good systems. "
        "Below 0.05 it is called significant, which does not mean large or important."
    )
    if len(comparison.pairs) > 1:
        lines.append(
            f"Of many equally good systems, some two differ by chance: p-values are corrected for "
            f"the {len(comparison.pairs)} pairs (Holm)."
        )
    if len(comparison.systems[0].runs) > 1:
        lines.append(
            "Scores are means over the runs ± their standard deviation. p is about the variation "
            "between trainings, on this test set. Of the runs' translations of a sentence, the "
            "most frequent is shown."
        )
    return lines


# Sentences.


@dataclasses.dataclass(frozen=True)
class Example:
    """One sentence that two systems translate differently."""

    heading: str
    versions: list[tuple[str, Pieces]]
    """Source, reference and translations by name, in which the differences are marked."""


def _examples(comparison: Comparison) -> Iterator[tuple[str, list[Example]]]:
    """A heading and the sentences with the largest differences, for each side of each pair."""
    for pair in comparison.pairs:
        systems = comparison.of_pair(pair)
        for better, worse in (systems, systems[::-1]):
            heading = f"Sentences that {better.name} translates better than {worse.name}, by chrF"
            rows = comparison.largest_gains(worse, better)
            yield heading, [_example(comparison, row, systems) for row in rows]


def _example(comparison: Comparison, row: int, systems: tuple[System, System]) -> Example:
    texts = [("source", comparison.sources[row])] if comparison.sources else []
    texts.append(("reference", comparison.references[row]))
    translations = differing_words(*(system.translations[row] for system in systems))
    scores = ", ".join(f"{system.chrf[row]:.1f} for {system.name}" for system in systems)
    return Example(
        f"line {row + 1} · chrF {scores}",
        [
            *((name, [(text, False)]) for name, text in texts),
            *zip((system.name for system in systems), translations, strict=True),
        ],
    )


def differing_words(first: str, second: str) -> tuple[Pieces, Pieces]:
    """Both texts in pieces that the other text has or lacks."""
    words = [_WORD.findall(text) for text in (first, second)]
    pieces: tuple[Pieces, Pieces] = ([], [])
    for tag, *ends in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        spans = (words[0][ends[0] : ends[1]], words[1][ends[2] : ends[3]])
        for of_text, span in zip(pieces, spans, strict=True):
            if span:
                of_text.append(("".join(span), tag != "equal"))
    return pieces


# A terminal's text, and a page.


def as_text(comparison: Comparison) -> str:
    """The comparison for a terminal; words that the other translation lacks are in brackets."""
    lines = [
        *_summary(comparison),
        "",
        *_aligned(_score_table(comparison)),
        "",
        *_aligned(_pair_table(comparison), left=2),
        "",
        "By the number of words in the reference:",
        *_aligned(_length_table(comparison)),
    ]
    for heading, examples in _examples(comparison):
        lines += ["", f"{heading}:"] if examples else []
        for example in examples:
            lines.append(example.heading)
            width = max(len(name) for name, _ in example.versions)
            for name, pieces in example.versions:
                text = "".join(f"[{text}]" if differs else text for text, differs in pieces)
                lines.append(f"  {name:{width}}  {text}")
    return "\n".join(lines) + "\n"


def _aligned(rows: Sequence[Sequence[str]], left: int = 1) -> Iterator[str]:
    """Lines in which the first columns are aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def as_page(comparison: Comparison) -> str:
    """The comparison as an HTML file; words that the other translation lacks are highlighted."""
    systems = comparison.systems
    means = [bucket.mean for bucket in comparison.buckets]
    bleu_by_length = figures.plot_curves(
        {system.name: (means, [each["bleu"] for each in system.by_length]) for system in systems},
        x_label="words in the reference",
        y_label="BLEU",
        title="BLEU by length",
    )
    return page(
        f"Comparison of {', '.join(system.name for system in systems)}",
        *(
            paragraph(f"{each.name}: {', '.join(run.name for run in each.runs)}")
            for each in systems
        ),
        *map(paragraph, _summary(comparison)),
        section(
            "Scores",
            _page_table("Scores of each system", _score_table(comparison)),
            _page_table("Differences of every two systems", _pair_table(comparison), left=2),
            signatures(systems[0].run_scores[0]),
        ),
        section(
            "By length",
            figure_html(bleu_by_length),
            _page_table("By the number of words in the reference", _length_table(comparison)),
        ),
        *(
            section(heading, *(map(_article, examples) if examples else [paragraph("None.")]))
            for heading, examples in _examples(comparison)
        ),
    )


def _page_table(caption: str, rows: list[Sequence[str]], left: int = 1) -> Html:
    columns, *cells = rows
    return table(caption, columns, cells, numeric=range(left, len(columns)))


def _article(example: Example) -> Html:
    return sentence_versions(
        example.heading,
        [
            (name, sentence(*(mark(text) if differs else text for text, differs in pieces)))
            for name, pieces in example.versions
        ],
    )
