# SPDX-License-Identifier: Apache-2.0
"""Data quality checks of parallel text, in one pass over its sentence pairs.

A finding has a count, its first locations, and a severity: an ``error`` makes `train` refuse the
corpus, ``dropped`` pairs are left out and counted, and a ``warning`` changes nothing.
"""

import bisect
import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from experiments.data.checks import duplicates
from experiments.data.checks.anomalies import anomalies
from experiments.data.pairs import SentencePairs
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer, Vocabularies

MAX_LOCATIONS = 3
"""Locations that a finding lists."""
MAX_NAMES = 8
"""Characters or words that a finding lists."""
MAX_LENGTH_RATIO = 9
"""Longer to shorter side in tokens; Moses's clean-corpus has the same limit, in words."""

Severity = Literal["error", "dropped", "warning"]


RULES = {
    "unreadable": "the corpus cannot be read as sentence pairs",
    "empty": "pairs with an empty side",
    "too_long": "pairs with a side longer than data.max_length",
    "length_ratio": f"pairs with one side more than {MAX_LENGTH_RATIO} times as long as the other",
    "identical": "pairs with identical source and target",
    "duplicates": "duplicate pairs",
    "line_separators": "lines that other tools would split",
    "control_characters": "lines with control or invisible characters",
    "damaged_characters": "lines with U+FFFD, or with UTF-8 read as Latin-1",
    "spaces": "lines with leading, trailing or repeated spaces, which the tokenizer drops",
    "not_normalized": "lines not in Unicode normal form C",
    "unknown": "lines with characters or words that are not in the vocabulary",
    "sources_in_training": "pairs whose source is in the training text",
    "targets_in_training": "pairs whose target is in the training text",
    "pairs_in_training": "pairs that are in the training text",
}
"""Rules by name, each with the noun that its count is of."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """All violations of one rule in a split."""

    rule: str
    """A key of `RULES`."""
    severity: Severity
    count: int
    locations: tuple[str, ...]
    """The first few, as ``file:line``."""
    treatment: str
    """The action of `train`."""
    detail: str = ""
    """The characters or words concerned, the share of the text, or the message of an error."""


class ReadablePairs:
    """The sentence pairs of a corpus before the first one that cannot be read."""

    chunks = SentencePairs.chunks

    def __init__(self, pairs: SentencePairs):
        self.pairs = pairs
        self.error = ""
        """The message of the error, once it has been reached."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        try:
            yield from self.pairs
        except InputError as error:
            self.error = str(error)


class CheckedSplit:
    """Statistics and findings of one split, which consists of one or more corpora."""

    def __init__(
        self,
        name: str,
        corpora: Sequence[SentencePairs],
        vocabularies: Vocabularies | None,
        max_length: int,
        empty_sources: bool = False,
    ):
        """Read everything once.

        Args:
          name: ``train``, ``validation`` or ``test``.
          corpora: read up to the first error of each.
          vocabularies: None skips the rules on tokens.
          max_length: data.max_length.
          empty_sources: data.empty_sources.
        """
        self.name, self.max_length = name, max_length
        self.corpora = [ReadablePairs(pairs) for pairs in corpora]
        self.source, self.target = (_Side(one) for one in vocabularies or (None, None))
        self.sides = self.source, self.target
        self._starts = [0]
        for corpus in self.corpora:
            for sources, targets in corpus.chunks():
                self.source.add(sources)
                self.target.add(targets)
            self._starts.append(self.source.count)
        for side in self.sides:
            side.finish()
        needed = [self.target] if empty_sources else self.sides
        self.empty = np.any([side.blank for side in needed], axis=0)
        if vocabularies is not None:
            self.empty |= np.min([side.lengths for side in needed], axis=0) <= 1

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def sizes(self) -> list[int]:
        """Number of pairs of each corpus."""
        return [stop - start for start, stop in itertools.pairwise(self._starts)]

    def location(self, index: int, side: int = 0) -> str:
        """``file:line`` of the source (0) or the target (1) of a pair."""
        corpus = bisect.bisect_right(self._starts, index) - 1
        return self.corpora[corpus].pairs.location(int(index - self._starts[corpus]))[side]

    def findings(self) -> list[Finding]:
        """All findings within this split, errors first."""
        read_by = "evaluate" if self.name == "test" else "train"
        treatment = f"{read_by} refuses the corpus; the pairs before this location were checked"
        errors = [
            Finding("unreadable", "error", 1, (), treatment, corpus.error)
            for corpus in self.corpora
            if corpus.error
        ]
        findings = [*self._check_lengths(), *self._check_duplicates(), *self._check_lines()]
        return errors + [finding for finding in findings if finding.count]

    def in_training(self, train: "CheckedSplit") -> list[Finding]:
        """The pairs of this split that also occur in the training text."""
        here, there = np.flatnonzero(~self.empty), np.flatnonzero(~train.empty)
        findings = []
        for rule, side, keys, train_keys in (
            ("sources_in_training", 0, self.source.hashes, train.source.hashes),
            ("targets_in_training", 1, self.target.hashes, train.target.hashes),
            ("pairs_in_training", 0, self.pair_hashes(), train.pair_hashes()),
        ):
            filled = here[~self.sides[side].blank[here]]  # Empty sources are all equal.
            indices, first = duplicates.find_matches(keys[filled], train_keys[there])
            locations = [
                f"{self.location(index, side)} (as {train.location(earlier, side)})"
                for index, earlier in zip(
                    filled[indices[:MAX_LOCATIONS]], there[first[:MAX_LOCATIONS]], strict=True
                )
            ]
            share = f"{len(indices) / max(len(self), 1):.1%} of the split"
            findings.append(_warning(rule, len(indices), locations, share))
        return [finding for finding in findings if finding.count]

    def pair_hashes(self) -> np.ndarray:
        """Uint64 hash of each pair."""
        return duplicates.hash_pairs(self.source.hashes, self.target.hashes)

    def _check_lengths(self) -> Iterator[Finding]:
        empty = self._at_pairs("empty", np.flatnonzero(self.empty))
        yield self._dropped_in_training(empty, "kept; its translation is empty too")
        if self.source.lengths is None:
            return
        source, target = (side.lengths.astype(np.int64) for side in self.sides)
        too_long = ~self.empty & (np.maximum(source, target) > self.max_length)
        share = (source + target)[too_long].sum() / max((source + target).sum(), 1)
        finding = dataclasses.replace(
            self._at_pairs("too_long", np.flatnonzero(too_long)),
            detail=f"longer than {self.max_length} tokens; {share:.1%} of the text",
        )
        yield self._dropped_in_training(
            finding, f"scored as it is; to translate it, it is cut to {self.max_length - 1} tokens"
        )
        # EOS is on both sides.
        shorter, longer = np.minimum(source, target) - 1, np.maximum(source, target) - 1
        uneven = ~self.empty & (longer > MAX_LENGTH_RATIO * shorter) & (shorter > 0)
        yield self._at_pairs("length_ratio", np.flatnonzero(uneven))

    def _dropped_in_training(self, finding: Finding, otherwise: str) -> Finding:
        if self.name != "train":
            return dataclasses.replace(finding, treatment=otherwise)
        return dataclasses.replace(finding, severity="dropped", treatment="left out and counted")

    def _check_duplicates(self) -> Iterator[Finding]:
        pairs = np.flatnonzero(~self.empty)
        source, target = self.source.hashes[pairs], self.target.hashes[pairs]
        yield self._at_pairs("identical", pairs[source == target])
        repeated, first = duplicates.find_duplicates(duplicates.hash_pairs(source, target))
        yield self._at_pairs("duplicates", pairs[repeated], pairs[first])

    def _check_lines(self) -> Iterator[Finding]:
        for rule in RULES:
            sides = [side.violations.get(rule, _Violations()) for side in self.sides]
            first = sorted(
                (index, number) for number, side in enumerate(sides) for index in side.first
            )
            locations = [self.location(*each) for each in first[:MAX_LOCATIONS]]
            names = _most_frequent(sides[0].names + sides[1].names)
            yield _warning(rule, sides[0].count + sides[1].count, locations, names)

    def _at_pairs(
        self, rule: str, indices: np.ndarray, earlier: np.ndarray | None = None
    ) -> Finding:
        """A warning located at the sources of pairs, and of the earlier pairs that they repeat."""
        locations = [self.location(index) for index in indices[:MAX_LOCATIONS]]
        if earlier is not None:
            first = (self.location(index) for index in earlier[:MAX_LOCATIONS])
            locations = [f"{one} (as {two})" for one, two in zip(locations, first, strict=True)]
        return _warning(rule, len(indices), locations)


def _warning(rule: str, count: int, locations: Sequence[str], detail: str = "") -> Finding:
    return Finding(rule, "warning", count, tuple(locations), "used as it is", detail)


def warnings(
    train: Sequence[SentencePairs],
    validation: SentencePairs,
    max_length: int,
    empty_sources: bool = False,
) -> Iterator[str]:
    """Yield one line per kind of warning, with its count and first location.

    The rules on tokens are left out, because tokenizing takes most of the time.

    Args:
      train: training corpora.
      validation: validation split.
      max_length: data.max_length.
      empty_sources: data.empty_sources.
    """
    checked_train = CheckedSplit("train", train, None, max_length, empty_sources)
    checked = CheckedSplit("validation", [validation], None, max_length, empty_sources)
    for split, findings in (
        (checked_train, checked_train.findings()),
        (checked, checked.findings() + checked.in_training(checked_train)),
    ):
        for finding in findings:
            if finding.severity == "warning":
                yield (
                    f"{split.name}: {RULES[finding.rule]}: {finding.count:,}, the first at "
                    f"{finding.locations[0]}; {finding.treatment}"
                )


@dataclasses.dataclass
class _Violations:
    """The lines of one side that violate one rule."""

    count: int = 0
    first: list[int] = dataclasses.field(default_factory=list)
    names: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    """Characters or words concerned, with the number of lines of each."""


class _Side:
    """Statistics of the sources or the targets of a split."""

    def __init__(self, tokenizer: Tokenizer | None):
        self._tokenizer = tokenizer
        self._pieces = set(tokenizer.scores() if tokenizer else ())
        self._characters = {" "}.union(*self._pieces)
        self.count = self.characters = self.words = 0
        self.violations: dict[str, _Violations] = collections.defaultdict(_Violations)
        self._blank, self._hashes, self._lengths = [], [], []

    def add(self, lines: list[str]) -> None:
        """Check the next lines."""
        self.characters += sum(map(len, lines))
        self.words += sum(map(len, map(str.split, lines)))
        # Training treats white space as empty, too.
        stripped = ["" if line.isspace() else line for line in lines]
        self._blank.append(np.array([not line for line in stripped], bool))
        self._hashes.append(duplicates.hash_sentences(lines))
        for index, line in enumerate(lines, start=self.count):
            for rule, characters in anomalies(line):
                self._record(rule, index, characters)
        if self._tokenizer is not None:
            ids = self._tokenizer.encode(stripped)
            self._lengths.append(np.fromiter(map(len, ids), np.int32, len(ids)))
            for index, sentence in enumerate(ids):
                if self._tokenizer.special_ids.unk in sentence:
                    self._record("unknown", self.count + index, self._unknown(stripped[index]))
        self.count += len(lines)

    def _unknown(self, line: str) -> list[str]:
        """The characters of a line that no piece has; if there are none, its unknown words."""
        characters = sorted(set(line) - self._characters)
        return characters or [word for word in set(line.split()) if f"▁{word}" not in self._pieces]

    def _record(self, rule: str, index: int, names: Iterable[str]) -> None:
        violations = self.violations[rule]
        violations.count += 1
        violations.names.update(names)
        if len(violations.first) < MAX_LOCATIONS:
            violations.first.append(index)

    def finish(self) -> None:
        """Concatenate the arrays of all chunks."""
        self.blank = np.concatenate([np.empty(0, bool), *self._blank])
        self.hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        self.lengths = None
        """Int32 tokens of each line, EOS included; None without a vocabulary."""
        if self._tokenizer is not None:
            self.lengths = np.concatenate([np.empty(0, np.int32), *self._lengths])
        del self._blank, self._hashes, self._lengths

    def statistics(self) -> dict[str, float]:
        """Sizes, and lengths in tokens with EOS."""
        sizes = {"characters": self.characters, "words": self.words}
        if self.lengths is None or not self.count:
            return sizes
        tokens = int(self.lengths.sum())
        return sizes | {
            "tokens": tokens,
            "tokens_per_word": (tokens - self.count) / max(self.words, 1),
            "mean_length": tokens / self.count,
            "median_length": float(np.median(self.lengths)),
            "length_95_percent": float(np.percentile(self.lengths, 95)),
            "longest": int(self.lengths.max()),
        }


def _most_frequent(names: collections.Counter) -> str:
    """The most frequent characters or words, with code points of characters."""
    ordered = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{_visible(name)} ({count:,})" for name, count in ordered[:MAX_NAMES]]
    more = len(ordered) - len(shown)
    return ", ".join(shown + ([f"and {more:,} more"] if more else []))


def _visible(name: str) -> str:
    if len(name) > 1:
        return name
    code = f"U+{ord(name):04X}"
    return f"{name} {code}" if name.isprintable() and name != " " else code
