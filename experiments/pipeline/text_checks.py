# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a corpus, found in one pass over its pairs.

A finding has a count, the first few places, and what `train` does about it: it refuses the corpus,
leaves the pairs out and counts them, or uses them as they are.
"""

import bisect
import collections
import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from experiments.pipeline import fingerprints
from experiments.pipeline.pairs import Pairs
from transformer.arrays import UNK_ID
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer

FEW = 3
"""Places that a finding names."""

MOST_UNEVEN = 9
"""A side with more than so many times the tokens of the other is badly proportioned; Moses's
clean-corpus has the same limit, in words.
"""

Severity = Literal["refused", "left out", "note"]

USED = "used as it is"

TITLES = {
    "unreadable": "the corpus cannot be read as pairs",
    "empty": "pairs with an empty side",
    "too_long": "pairs with a side longer than data.max_length",
    "badly_proportioned": f"pairs with more than {MOST_UNEVEN} tokens on one side for each on the "
    "other",
    "identical": "pairs with identical source and target",
    "duplicates": "pairs that stand earlier too",
    "other_targets": "different pairs whose source stands earlier with another target",
    "line_separators": "lines that other tools would split",
    "control_characters": "lines with control characters",
    "invisible_characters": "lines with invisible characters",
    "replacement_characters": "lines with the replacement character U+FFFD",
    "mojibake": "lines that look like UTF-8 read as Latin-1",
    "spaces": "lines with spaces at an end or several in a row",
    "not_normalized": "lines not in Unicode normal form C",
    "unknown": "lines with characters or words that are not in the vocabulary",
    "sources_in_training": "pairs whose source is in the training text",
    "targets_in_training": "pairs whose target is in the training text",
    "pairs_in_training": "pairs that are in the training text",
}
"""What a finding's count counts."""

_TREATMENTS = {
    "identical": "used as it is; many of them teach the model to copy",
    "duplicates": "used as it is; each counts as often as it stands there",
    "line_separators": "used as it is, as one line; only \\n ends a line here",
    "mojibake": "used as it is; repair the encoding of the file",
    "replacement_characters": "used as it is; the text was damaged before",
    "spaces": "used; the tokenizer drops spaces at the ends and joins several to one",
    "not_normalized": "used as it is; the same letter in two forms is two to the vocabulary",
    "unknown": "used; what is unknown becomes the unknown token",
    "sources_in_training": "used as it is; scores on them are too good",
    "targets_in_training": "used as it is; scores on them may be too good",
    "pairs_in_training": "used as it is; scores on them are too good",
}
"""What is done about it, where that is more than `USED`."""

_SEPARATORS = frozenset("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
_JOINERS = frozenset("\u200c\u200d")
"""Format characters that scripts and emoji need."""

_DAMAGED = re.compile("\ufffd|[ÂÃ][\u0080-\u00bf\u0152-\u0178\u2013-\u20ac]|â\u20ac")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One kind of defect in a split."""

    rule: str
    """A key of `TITLES`."""
    severity: Severity
    count: int
    places: tuple[str, ...]
    """The first few, as ``file:line``."""
    treatment: str
    """What `train` does about it."""
    detail: str = ""
    """Which characters, how much of the text, or the whole message of what is refused."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**dataclasses.asdict(self), "places": list(self.places)}


def oddities(line: str) -> Iterator[tuple[str, str]]:
    """The rules that a line breaks by its characters alone, each with the characters concerned."""
    if not _suspicious(line):
        return
    unprintable = {character for character in line if not character.isprintable()}
    kinds = {character: unicodedata.category(character) for character in unprintable}
    separators = unprintable & _SEPARATORS
    controls = {c for c, kind in kinds.items() if kind == "Cc"} - _SEPARATORS
    invisible = {c for c, kind in kinds.items() if kind == "Cf"} - _JOINERS
    for rule, characters in (
        ("line_separators", separators),
        ("control_characters", controls),
        ("invisible_characters", invisible),
    ):
        if characters:
            yield rule, "".join(sorted(characters))
    damaged = set(_DAMAGED.findall(line))
    if "\ufffd" in damaged:
        yield "replacement_characters", "\ufffd"
    if damaged - {"\ufffd"}:
        yield "mojibake", ""
    if "  " in line or line.strip(" ") != line:
        yield "spaces", ""
    if not unicodedata.is_normalized("NFC", line):
        yield "not_normalized", ""


def _suspicious(line: str) -> bool:
    """Whether a closer look is worth its time; nearly every line says no here."""
    if not line.isprintable() or "  " in line or line[:1] == " " or line[-1:] == " ":
        return True
    if line.isascii():
        return False
    return bool(_DAMAGED.search(line)) or not unicodedata.is_normalized("NFC", line)


class Readable(Pairs):
    """The pairs of a corpus up to the place where it cannot be read."""

    def __init__(self, pairs: Pairs):
        """Reads nothing yet."""
        self.pairs, self.problem = pairs, ""
        """What is wrong at that place, once it has been reached."""

    @property
    def name(self) -> str:
        """Of the corpus."""
        return self.pairs.name

    def chunks(self, size: int = 10_000) -> Iterator[tuple[list[str], list[str]]]:
        """As `Pairs.chunks`, but it ends at the place and never raises."""
        done = 0
        try:
            for sources, targets in self.pairs.chunks(size):
                yield sources, targets
                done += len(sources)
        except InputError as error:
            self.problem = str(error)
        if not self.problem or size == 1:
            return
        # The chunk that failed has whole pairs before the place.
        single = self.pairs.chunks(1)
        try:
            yield from itertools.islice(single, done, None)
        except InputError:
            return

    def count(self) -> int:
        """How many can be read."""
        return sum(len(sources) for sources, _ in self.chunks())

    def place(self, index: int) -> tuple[str, str]:
        """As `Pairs.place`."""
        return self.pairs.place(index)

    def identity(self) -> str:
        """As `Pairs.identity`."""
        return self.pairs.identity()


class Split:
    """The figures and the defects of one split, which is one corpus or more."""

    def __init__(
        self,
        name: str,
        corpora: Sequence[Pairs],
        tokenizer: Tokenizer | None,
        max_length: int,
    ):
        """Reads everything once.

        Args:
          name: ``train``, ``validation`` or ``test``.
          corpora: read as far as they can be.
          tokenizer: None when there is no vocabulary; then nothing is known of tokens.
          max_length: data.max_length.
        """
        self.name, self.max_length = name, max_length
        self.corpora = [Readable(pairs) for pairs in corpora]
        sides = [_Side(tokenizer), _Side(tokenizer)]
        sizes = []
        for corpus in self.corpora:
            before = sides[0].count
            for chunk in corpus.chunks():
                for side, lines in zip(sides, chunk, strict=True):
                    side.add(lines)
            sizes.append(sides[0].count - before)
        self.sizes = sizes
        """Pairs of each corpus."""
        self.sides = sides
        self._begins = list(itertools.accumulate(sizes, initial=0))
        for side in sides:
            side.finish()
        self.source, self.target = sides
        self.empty = self.source.blank | self.target.blank
        if tokenizer is not None:
            self.empty |= np.minimum(self.source.lengths, self.target.lengths) <= 1

    def __len__(self) -> int:
        return self._begins[-1]

    def place(self, index: int) -> tuple[str, str]:
        """Where the source and the target of a pair stand."""
        number = bisect.bisect_right(self._begins, index) - 1
        return self.corpora[number].place(index - self._begins[number])

    def findings(self) -> list[Finding]:
        """All that was found, the worst first."""
        found = [self._unreadable(corpus) for corpus in self.corpora if corpus.problem]
        found += [*self._by_length(), *self._by_equality(), *self._by_line()]
        return [finding for finding in found if finding.count]

    def in_training(self, train: "Split") -> list[Finding]:
        """The pairs of this split that are in the training text too."""
        here, there = np.flatnonzero(~self.empty), np.flatnonzero(~train.empty)
        found = []
        for rule, side, keys in (
            ("sources_in_training", 0, lambda split: split.source.hashes),
            ("targets_in_training", 1, lambda split: split.target.hashes),
            ("pairs_in_training", 0, lambda split: split.pair_hashes()),
        ):
            places, first = fingerprints.found(keys(self)[here], keys(train)[there])
            named = tuple(
                f"{self.place(int(here[place]))[side]} (as {train.place(int(there[at]))[side]})"
                for place, at in zip(places[:FEW], first[:FEW], strict=True)
            )
            share = f"{len(places) / max(len(self), 1):.1%} of the split"
            found.append(self._finding(rule, len(places), named, share))
        return [finding for finding in found if finding.count]

    def pair_hashes(self) -> np.ndarray:
        """Uint64 hash of each pair."""
        return fingerprints.of_pairs(self.source.hashes, self.target.hashes)

    def _unreadable(self, corpus: Readable) -> Finding:
        read_by = "evaluate" if self.name == "test" else "train"
        treatment = f"{read_by} refuses the corpus; what stands before this place was checked"
        return Finding("unreadable", "refused", 1, (), treatment, corpus.problem)

    def _by_length(self) -> Iterator[Finding]:
        empty = np.flatnonzero(self.empty)
        yield self._left_out("empty", empty, "kept; its translation is empty too")
        if self.source.lengths is None:
            return
        source, target = (side.lengths.astype(np.int64) for side in self.sides)
        too_long = ~self.empty & (np.maximum(source, target) > self.max_length)
        lost, every = (int((source + target)[which].sum()) for which in (too_long, slice(None)))
        kept = f"scored whole; to be translated, a source is cut to {self.max_length - 1} tokens"
        yield dataclasses.replace(
            self._left_out("too_long", np.flatnonzero(too_long), kept),
            detail=f"longer than {self.max_length} tokens; {lost / max(every, 1):.1%} of the text",
        )
        # The end token is on both sides.
        few, many = np.minimum(source, target) - 1, np.maximum(source, target) - 1
        uneven = np.flatnonzero(~self.empty & (many > MOST_UNEVEN * few))
        yield self._of_pairs("badly_proportioned", uneven)

    def _left_out(self, rule: str, where: np.ndarray, elsewhere: str) -> Finding:
        """Pairs that training leaves out, and the other splits treat in another way."""
        if self.name == "train":
            finding = self._of_pairs(rule, where)
            left_out = "left out and counted"
            return dataclasses.replace(finding, severity="left out", treatment=left_out)
        return dataclasses.replace(self._of_pairs(rule, where), treatment=elsewhere)

    def _by_equality(self) -> Iterator[Finding]:
        usable = np.flatnonzero(~self.empty)
        source, target = self.source.hashes[usable], self.target.hashes[usable]
        yield self._of_pairs("identical", usable[source == target])
        again, first = fingerprints.repeats(fingerprints.of_pairs(source, target))
        yield self._repeated("duplicates", usable[again], usable[first])
        different = np.ones(len(usable), bool)
        different[again] = False
        usable = usable[different]
        again, first = fingerprints.repeats(source[different])
        yield self._repeated("other_targets", usable[again], usable[first])

    def _by_line(self) -> Iterator[Finding]:
        for rule in TITLES:
            found = [side.found.get(rule) for side in self.sides]
            count = sum(one.count for one in found if one)
            if not count:
                continue
            first = sorted(
                (index, number)
                for number, one in enumerate(found)
                for index in (one.first if one else ())
            )
            names = collections.Counter()
            for one in found:
                names.update(one.names if one else {})
            places = tuple(self.place(index)[number] for index, number in first[:FEW])
            yield self._finding(rule, count, places, _named(names))

    def _of_pairs(self, rule: str, where: np.ndarray) -> Finding:
        places = tuple(self.place(int(index))[0] for index in where[:FEW])
        return self._finding(rule, len(where), places)

    def _repeated(self, rule: str, again: np.ndarray, first: np.ndarray) -> Finding:
        places = tuple(
            f"{self.place(int(index))[0]} (as {self.place(int(earlier))[0]})"
            for index, earlier in zip(again[:FEW], first[:FEW], strict=True)
        )
        return self._finding(rule, len(again), places)

    def _finding(self, rule: str, count: int, places: tuple[str, ...], detail: str = "") -> Finding:
        return Finding(rule, "note", count, places, _TREATMENTS.get(rule, USED), detail)


def notes(
    train: Sequence[Pairs], validation: Pairs, *, max_length: int, tokenizer: Tokenizer | None
) -> Iterator[str]:
    """A line for each kind of defect that a training lives with, with its count and first place.

    Args:
      train: the corpora that are trained on.
      validation: what is validated on.
      max_length: data.max_length.
      tokenizer: None leaves out the rules on tokens, and with them most of the time.
    """
    splits = [
        Split(name, corpora, tokenizer, max_length)
        for name, corpora in (("train", train), ("validation", [validation]))
    ]
    overlap = splits[1].in_training(splits[0])
    for split, more in zip(splits, ([], overlap), strict=True):
        for finding in (*split.findings(), *more):
            if finding.severity == "note":
                yield (
                    f"{split.name}: {TITLES[finding.rule]}: {finding.count:,}, the first at "
                    f"{finding.places[0]}; {finding.treatment}"
                )


@dataclasses.dataclass
class _Found:
    """The lines of one side that break one rule."""

    count: int = 0
    first: list[int] = dataclasses.field(default_factory=list)
    names: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    """The characters or words concerned, with the number of lines of each."""


class _Side:
    """The sources or the targets of a split."""

    def __init__(self, tokenizer: Tokenizer | None):
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer and _Vocabulary(tokenizer)
        self.count = self.characters = self.words = self.unknown_tokens = 0
        self.found: dict[str, _Found] = collections.defaultdict(_Found)
        self._blank, self._hashes, self._lengths = [], [], []

    def add(self, lines: list[str]) -> None:
        """The next lines."""
        self.characters += sum(map(len, lines))
        self.words += sum(map(len, map(str.split, lines)))
        blank = [not line or line.isspace() for line in lines]
        self._blank.append(np.array(blank, bool))
        self._hashes.append(fingerprints.hashes(lines))
        for index, line in enumerate(lines, start=self.count):
            for rule, characters in oddities(line):
                self._note(rule, index, characters)
        if self._tokenizer is not None:
            # As training reads it: a line of nothing but white space is empty.
            plain = ["" if one else line for one, line in zip(blank, lines, strict=True)]
            rows = self._tokenizer.encode(plain)
            self._lengths.append(np.fromiter(map(len, rows), np.int32, len(rows)))
            for place, row in enumerate(rows):
                if unknown := row.count(UNK_ID):
                    self.unknown_tokens += unknown
                    self._note("unknown", self.count + place, self._vocabulary.lacks(plain[place]))
        self.count += len(lines)

    def _note(self, rule: str, index: int, names: Sequence[str]) -> None:
        found = self.found[rule]
        found.count += 1
        found.names.update(names)
        if len(found.first) < FEW:
            found.first.append(index)

    def finish(self) -> None:
        """Joins what was gathered."""
        self.blank = np.concatenate([np.empty(0, bool), *self._blank])
        self.hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        self.lengths = None
        """Int32 tokens of each line, the end token included; None without a vocabulary."""
        if self._tokenizer is not None:
            self.lengths = np.concatenate([np.empty(0, np.int32), *self._lengths])
        self._blank, self._hashes, self._lengths = [], [], []

    def figures(self) -> dict[str, float]:
        """Sizes, and the lengths in tokens with the end token."""
        sizes = {"characters": self.characters, "words": self.words}
        if self.lengths is None or not self.count:
            return sizes
        tokens = int(self.lengths.sum())
        return sizes | {
            "tokens": tokens,
            "unknown_tokens": self.unknown_tokens,
            "tokens_per_word": (tokens - self.count) / max(self.words, 1),
            "mean_length": tokens / self.count,
            "median_length": float(np.median(self.lengths)),
            "length_95_percent": float(np.percentile(self.lengths, 95)),
            "longest": int(self.lengths.max()),
        }


class _Vocabulary:
    """What the tokens of a vocabulary are made of."""

    def __init__(self, tokenizer: Tokenizer):
        self._pieces = set(tokenizer.pieces(range(UNK_ID + 1, tokenizer.vocab_size)))
        self._characters = {character for piece in self._pieces for character in piece} | {" "}

    def lacks(self, line: str) -> list[str]:
        """The characters of a line that no token has; if there are none, its unknown words."""
        characters = sorted(set(line) - self._characters)
        words = sorted(set(line.split()))
        return characters or [word for word in words if f"▁{word}" not in self._pieces]


def _named(names: collections.Counter, most: int = 8) -> str:
    """The commonest of the characters or words, with their code points where they cannot be
    seen.
    """
    common = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{_visible(name)} ({count:,})" for name, count in common[:most]]
    more = [f"and {len(common) - most:,} more"] if len(common) > most else []
    return ", ".join(shown + more)


def _visible(name: str) -> str:
    if len(name) > 1:
        return name
    code = f"U+{ord(name):04X}"
    return f"{name} {code}" if name.isprintable() and name != " " else code
