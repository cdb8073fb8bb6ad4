# SPDX-License-Identifier: Apache-2.0
"""A comparison of systems as text and as a page: tables, and sentences that differ."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from experiments.console import formatting
from experiments.pages.evaluation import MEASURE_NAMES, measure_name, signatures
from experiments.scoring import diagnostics, significance
from experiments.scoring.comparison import MEASURES, Comparison, System
from transformer.inspection import figures
from transformer.inspection.html import (
    Html,
    contents,
    mark,
    page,
    paragraph,
    section,
    sentence,
    sentence_versions,
    table,
)
from transformer.inspection.views.view import figure_html

_WORD = re.compile(rf"[{diagnostics.UNSPACED}]|\w+|\s+|.", re.DOTALL)
"""The units in which two sentences differ: words, spaces, signs, and single characters of scripts
that are written without spaces.
"""

Pieces = list[tuple[str, bool]]
"""A text in pieces, and whether the text beside it lacks the piece."""


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
        names = " and ".join(system.name for system in comparison.of_pair(pair))
        equal = comparison.num_equal(pair)
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
            "between trainings, on this test set. The most frequent translation of each sentence "
            "is shown."
        )
    return lines


# Sentences.


MOST_MARKED = 5000
"""Characters of the longest text whose differences are marked; the time is quadratic in them."""
Example = tuple[str, list[tuple[str, Pieces]]]
"""A sentence that two systems translate differently: a heading, and source, reference and
translations by name, in which the differences are marked.
"""


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
    if any(len(system.translations[row]) > MOST_MARKED for system in systems):
        scores += f"; differences are marked up to {MOST_MARKED:,} characters"
    return f"line {row + 1} · chrF {scores}", [
        *((name, [(text, False)]) for name, text in texts),
        *zip((system.name for system in systems), translations, strict=True),
    ]


def differing_words(first: str, second: str) -> tuple[Pieces, Pieces]:
    """Both texts in pieces that the other text has or lacks; long texts are one piece each."""
    if max(len(first), len(second)) > MOST_MARKED:
        return [(first, False)], [(second, False)]
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
        formatting.table(_score_table(comparison)),
        "",
        formatting.table(_pair_table(comparison), left=2),
        "",
        "By the number of words in the reference:",
        formatting.table(_length_table(comparison)),
    ]
    for heading, examples in _examples(comparison):
        lines += ["", f"{heading}:"] if examples else []
        for title, versions in examples:
            lines.append(title)
            width = max(len(name) for name, _ in versions)
            for name, pieces in versions:
                text = "".join(f"[{text}]" if differs else text for text, differs in pieces)
                lines.append(f"  {name:{width}}  {text}")
    return "\n".join(lines) + "\n"


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
    sections = {
        "Scores": [
            _page_table("Scores of each system", _score_table(comparison)),
            _page_table("Differences of every two systems", _pair_table(comparison), left=2),
            signatures(systems[0].run_scores[0]),
        ],
        "By length": [
            figure_html(bleu_by_length),
            _page_table("By the number of words in the reference", _length_table(comparison)),
        ],
        **{
            heading: list(map(_article, examples)) or [paragraph("None.")]
            for heading, examples in _examples(comparison)
        },
    }
    return page(
        f"Comparison of {', '.join(system.name for system in systems)}",
        *(
            paragraph(f"{each.name}: {', '.join(run.name for run in each.runs)}")
            for each in systems
        ),
        *map(paragraph, _summary(comparison)),
        contents(sections),
        *(section(heading, *content) for heading, content in sections.items()),
    )


def _page_table(caption: str, rows: list[Sequence[str]], left: int = 1) -> Html:
    columns, *cells = rows
    return table(caption, columns, cells, numeric=range(left, len(columns)))


def _article(example: Example) -> Html:
    heading, versions = example
    marked = [
        (name, sentence(*(mark(text) if differs else text for text, differs in pieces)))
        for name, pieces in versions
    ]
    return sentence_versions(heading, marked)
