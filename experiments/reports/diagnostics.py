# SPDX-License-Identifier: Apache-2.0
"""What a set of translations shows beside its score: length, repetition, empty and copied lines.

Words are what stands between spaces.
"""

import collections
import dataclasses
from collections.abc import Sequence

LENGTH_BOUNDS = (5, 10, 15, 20, 30, 40, 60)
"""The most words of a reference in each length class but the last."""


@dataclasses.dataclass(frozen=True)
class LengthClass:
    """The sentences whose references have about the same number of words."""

    name: str
    """For example ``6 to 10``."""
    rows: list[int]
    """Their places in the corpus, from 0."""
    mean: float
    """Words of a reference."""


def length_classes(references: Sequence[str]) -> list[LengthClass]:
    """The corpus divided by the length of the reference; classes without sentences are left out."""
    lengths = [len(reference.split()) for reference in references]
    classes = []
    for low, high in zip((-1, *LENGTH_BOUNDS), (*LENGTH_BOUNDS, None), strict=True):
        rows = [
            row
            for row, length in enumerate(lengths)
            if low < length and (high is None or length <= high)
        ]
        name = f"over {low}" if high is None else f"{low + 1} to {high}"
        if rows:
            classes.append(LengthClass(name, rows, sum(lengths[row] for row in rows) / len(rows)))
    return classes


def length_ratio(translations: Sequence[str], references: Sequence[str]) -> float:
    """Words of all translations over words of all references; NaN where these have none."""
    words = sum(len(reference.split()) for reference in references)
    return sum(len(text.split()) for text in translations) / words if words else float("nan")


def extra_repeats(translation: str, reference: str, n: int) -> int:
    """How many times more often than in the reference some n-gram of n words is repeated.

    For the n-gram that repeats worst: how often it occurs, less how often it may: once, or as often
    as in the reference. 0 where nothing is repeated without cause.
    """
    allowed = _ngrams(reference, n)
    counted = _ngrams(translation, n).items()
    return max((count - max(1, allowed[ngram]) for ngram, count in counted), default=0)


def _ngrams(text: str, n: int) -> collections.Counter[tuple[str, ...]]:
    words = text.split()
    return collections.Counter(zip(*(words[start:] for start in range(n)), strict=False))


def empty(sources: Sequence[str], translations: Sequence[str]) -> list[int]:
    """The places of the translations without a word, of sources that have one."""
    pairs = zip(sources, translations, strict=True)
    return [row for row, (source, text) in enumerate(pairs) if source.strip() and not text.strip()]


def copied(
    sources: Sequence[str], references: Sequence[str], translations: Sequence[str]
) -> list[int]:
    """The places of the translations that repeat their source, where the reference does not."""
    lines = zip(sources, references, translations, strict=True)
    return [
        row
        for row, (source, reference, text) in enumerate(lines)
        if source.strip() and text.strip() == source.strip() != reference.strip()
    ]
