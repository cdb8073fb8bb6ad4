# SPDX-License-Identifier: Apache-2.0
"""Properties of translations beside their score: length, repetition, empty and copied lines.

Words are separated by spaces; in scripts without spaces, each character counts as a word.
"""

import collections
import dataclasses
import re
from collections.abc import Sequence

UNSPACED = r"\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"
"""Ranges of a regular expression: Thai, Lao, Japanese kana, and Chinese characters."""

_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")

BUCKET_BOUNDS = (5, 10, 15, 20, 30, 40, 60)
"""Largest number of words in the references of each length bucket; the last bucket has no limit."""


@dataclasses.dataclass(frozen=True)
class LengthBucket:
    """The sentences whose references have similar numbers of words."""

    name: str
    """For example ``6 to 10``."""
    rows: list[int]
    """Indices in the corpus."""
    mean: float
    """Mean number of words of the references."""


def words(text: str) -> list[str]:
    """Words of a text, with the punctuation that no space separates from them."""
    return _WORD.findall(text)


def length_buckets(references: Sequence[str]) -> list[LengthBucket]:
    """Divide a corpus by the length of the reference; empty buckets are left out."""
    lengths = [len(words(reference)) for reference in references]
    buckets = []
    for low, high in zip((-1, *BUCKET_BOUNDS), (*BUCKET_BOUNDS, None), strict=True):
        rows = [
            row
            for row, length in enumerate(lengths)
            if low < length and (high is None or length <= high)
        ]
        name = f"over {low}" if high is None else f"{low + 1} to {high}"
        if rows:
            buckets.append(LengthBucket(name, rows, sum(lengths[row] for row in rows) / len(rows)))
    return buckets


def length_ratio(translations: Sequence[str], references: Sequence[str]) -> float:
    """Words of all translations divided by words of all references; NaN without any of these."""
    total = sum(len(words(reference)) for reference in references)
    return sum(len(words(text)) for text in translations) / total if total else float("nan")


def extra_repeats(translation: str, reference: str, n: int) -> int:
    """Repetitions of an n-gram beyond those in the reference, for the n-gram with the most.

    An n-gram may occur once, or as often as in the reference; the result is 0 if none exceeds that.
    """
    allowed = _ngrams(reference, n)
    counted = _ngrams(translation, n).items()
    return max((count - max(1, allowed[ngram]) for ngram, count in counted), default=0)


def _ngrams(text: str, n: int) -> collections.Counter[tuple[str, ...]]:
    all_words = words(text)
    return collections.Counter(zip(*(all_words[start:] for start in range(n)), strict=False))


def empty(sources: Sequence[str], translations: Sequence[str]) -> list[int]:
    """Rows with an empty translation of a source that is not empty."""
    pairs = zip(sources, translations, strict=True)
    return [row for row, (source, text) in enumerate(pairs) if source.strip() and not text.strip()]


def copied(
    sources: Sequence[str], references: Sequence[str], translations: Sequence[str]
) -> list[int]:
    """Rows whose translation is identical to the source, unlike the reference."""
    lines = zip(sources, references, translations, strict=True)
    return [
        row
        for row, (source, reference, text) in enumerate(lines)
        if source.strip() and text.strip() == source.strip() != reference.strip()
    ]
