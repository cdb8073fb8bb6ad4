# SPDX-License-Identifier: Apache-2.0
"""Each rule of the data checks by hand: its count, its first locations, and no other finding."""

import unicodedata

import numpy as np
import pytest

from experiments.data.checks import duplicates, text_checks
from experiments.data.checks.anomalies import anomalies
from experiments.data.checks.text_checks import MAX_LENGTH_RATIO, RULES, CheckedSplit
from experiments.data.pairs import SentencePairs
from experiments.data.text_files import TwoFiles
from transformer.arrays import SpecialIds
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer

EOS_ID, UNK_ID = SpecialIds().eos, SpecialIds().unk

LONGEST = 30


class Listed(SentencePairs):
    """Sentence pairs in memory, optionally with an error after the last."""

    name, languages = "listed", None
    swapped = None

    def __init__(self, pairs, error=""):
        self.pairs, self.error = pairs, error

    def __iter__(self):
        yield from self.pairs
        if self.error:
            raise InputError(self.error)

    def count(self):
        return len(self.pairs)

    def location(self, index):
        return f"s:{index + 1}", f"t:{index + 1}"

    def identity(self):
        return "listed"


class Characters:
    """A vocabulary of the printable ASCII characters; a token is a character."""

    special_ids = SpecialIds()

    def scores(self):
        return dict.fromkeys(map(chr, range(32, 128)), 0.0)

    def encode(self, sentences):
        return [[*map(self._id, sentence), EOS_ID] for sentence in sentences]

    def _id(self, character):
        return ord(character) - 28 if " " <= character <= "~" else UNK_ID


def check(pairs, name="train", tokenizer=None, **options):
    return CheckedSplit(
        name, [Listed(pairs, **options)], shared(tokenizer or Characters()), LONGEST
    )


def shared(tokenizer):
    """A vocabulary pair; `Vocabularies` accepts no invented tokenizers."""
    return (tokenizer, tokenizer)


def rules_of(split):
    """Rule -> (count, locations)."""
    return {one.rule: (one.count, one.locations) for one in split.findings()}


def clean(count):
    """Sentence pairs without a finding."""
    return [(f"source {number:04}", f"target {number:04}") for number in range(count)]


DEFECTS = {
    "empty": ("", "leer"),
    "too_long": ("x" * LONGEST, "y" * 20),
    "length_ratio": ("z", "0123456789"),
    "identical": ("same", "same"),
    "line_separators": ("next\x85line", "n"),
    "control_characters": ("bell\x07", "b"),
    "damaged_characters": ("schÃ¶n", "m"),
    "spaces": (" leading", "s"),
    "not_normalized": (unicodedata.normalize("NFD", "schön"), "c"),
}
"""For each rule a pair whose source violates it, and that violates no other but ``unknown``."""


def test_each_defect_is_counted_and_its_first_locations_are_listed():
    tested = {*DEFECTS, "unreadable", "duplicates", "unknown"}
    assert tested == {rule for rule in RULES if not rule.endswith("in_training")}
    assert rules_of(check(clean(50))) == {}
    for rule, (source, target) in DEFECTS.items():
        corpus = clean(20)
        for index in (3, 8, 11, 15):
            # No two alike, so that there are no duplicates; the same addition on both sides.
            mark = "" if rule == "empty" else f"{index:x}"
            if rule in ("length_ratio", "too_long"):
                corpus[index] = (source[:-1] + mark, target)
            else:
                corpus[index] = (source + mark, target + (mark or f"{index:x}"))
        findings = rules_of(check(corpus))
        findings.pop("unknown", None)
        assert findings == {rule: (4, ("s:4", "s:9", "s:12"))}


def test_both_sides_are_checked_in_corpus_order():
    corpus = clean(10)
    corpus[2] = ("plain", "bell\x07")
    corpus[5] = ("bell\x07", "and \x01 another")
    [finding] = [one for one in check(corpus).findings() if one.rule == "control_characters"]
    assert (finding.count, finding.locations) == (3, ("t:3", "s:6", "t:6"))
    assert finding.detail == "U+0007 (2), U+0001 (1)"


def test_every_character_that_str_splitlines_splits_at_is_named():
    splitting = [c for c in map(chr, range(0x3000)) if len(f"a{c}b".splitlines()) == 2]
    assert len(splitting) > 5
    for character in splitting:
        if character != "\n":
            assert dict(anomalies(f"a{character}b")) == {"line_separators": {character}}


def test_ordinary_text_of_many_languages_has_no_anomalies():
    for line in (
        "naïve façade",
        "São João, não! Câmara Âncora",
        "« Bonjour »",
        "日本語の文",
        "می\u200cخواهم",
        "👩\u200d🚀",
        "a\u00a0b",
        "",
    ):
        assert list(anomalies(line)) == []


def test_anomalies_name_their_characters():
    for line, rule, characters in (
        ("zero\u200bwidth", "control_characters", {"\u200b"}),
        ("bell\x07", "control_characters", {"\x07"}),
        ("lost \ufffd", "damaged_characters", {"\ufffd"}),
        ("schÃ¶n", "damaged_characters", {"Ã¶"}),
        ("donâ\u20ac\u2122t", "damaged_characters", {"â\u20ac"}),
    ):
        assert dict(anomalies(line)) == {rule: characters}


def test_white_space_alone_is_an_empty_side_and_no_identical_pair():
    findings = rules_of(check([*clean(2), (" ", "\t"), ("", "")]))
    assert findings["empty"] == (2, ("s:3", "s:4"))
    assert findings.keys() == {"empty", "spaces", "control_characters"}


def test_max_length_counts_eos_and_the_lost_share_of_the_text_is_reported():
    corpus = [("a" * (LONGEST - 1), "b" * 9), ("c" * LONGEST, "d" * 28)]
    [finding] = check(corpus).findings()
    assert (finding.rule, finding.count, finding.locations) == ("too_long", 1, ("s:2",))
    assert finding.severity == "dropped"
    # 30 + 10 tokens are kept, 31 + 29 lost.
    assert finding.detail == f"longer than {LONGEST} tokens; 60.0% of the text"


def test_only_training_drops_pairs():
    corpus = [("", "empty"), ("c" * LONGEST, "d" * 28), ("plain", "text")]
    for name in ("validation", "test"):
        findings = {one.rule: one for one in check(corpus, name).findings()}
        assert findings.keys() == {"empty", "too_long"}
        assert {one.severity for one in findings.values()} == {"warning"}
        assert findings["too_long"].treatment.endswith(f"it is cut to {LONGEST - 1} tokens")


def test_an_unreadable_corpus_is_an_error_of_the_app_that_reads_it():
    for name, app in (("train", "train"), ("validation", "train"), ("test", "evaluate")):
        [finding] = check(clean(3), name, error="x:4: bad").findings()
        assert finding.severity == "error"
        assert finding.treatment.startswith(f"{app} refuses the corpus")


def test_nine_tokens_for_one_are_allowed_and_ten_are_not():
    assert rules_of(check([("a", "b" * MAX_LENGTH_RATIO)])) == {}
    assert rules_of(check([("b" * (MAX_LENGTH_RATIO + 1), "a")])) == {"length_ratio": (1, ("s:1",))}
    assert rules_of(check([("aa", "b" * (2 * MAX_LENGTH_RATIO))])) == {}


def test_repeated_pairs():
    pairs = [("a", "x"), ("b", "y"), ("a", "x"), ("a", "z"), ("a", "x"), ("a", "z"), ("c", "x")]
    assert rules_of(check(pairs)) == {
        "duplicates": (3, ("s:3 (as s:1)", "s:5 (as s:1)", "s:6 (as s:4)")),
    }


def test_overlap_with_training_is_counted_by_side_and_by_pair():
    train = check([("a", "x"), ("b", "y"), ("a", "z"), ("", "")])
    valid = check([("q", "q1"), ("a", "z"), ("b", "w"), ("v", "x"), ("", "")], "validation")
    overlap = {one.rule: (one.count, one.locations) for one in valid.in_training(train)}
    assert overlap == {
        "sources_in_training": (2, ("s:2 (as s:1)", "s:3 (as s:2)")),
        "targets_in_training": (2, ("t:2 (as t:3)", "t:4 (as t:1)")),
        "pairs_in_training": (1, ("s:2 (as s:3)",)),
    }
    assert check(clean(3), "test").in_training(train) == []


def test_characters_and_words_outside_the_vocabulary_are_named():
    [finding] = check([("plain", "grün"), ("süß", "sweet")]).findings()
    assert (finding.rule, finding.count, finding.locations) == ("unknown", 2, ("t:1", "s:2"))
    assert finding.detail == "ü U+00FC (2), ß U+00DF (1)"
    tokenizer = Tokenizer.train(["a b c d", "b c d a"] * 5, 8, "word")
    split = check([("a b", "c d"), ("a ab", "d")], tokenizer=tokenizer)
    [finding] = split.findings()
    assert (finding.rule, finding.count, finding.detail) == ("unknown", 1, "ab (1)")


def test_statistics_of_a_side_by_hand():
    side = check([("ab cd", "1"), ("e", "2"), ("fgh", "3")]).source
    assert side.statistics() == {
        "characters": 9,
        "words": 4,
        "tokens": 12,
        "tokens_per_word": 9 / 4,
        "mean_length": 4.0,
        "median_length": 4.0,
        "length_95_percent": pytest.approx(5.8),
        "longest": 6,
    }


def test_all_pairs_before_an_unreadable_one_are_checked():
    corpus = [*clean(12_345), ("bell\x07", "b")]
    split = check(corpus, error="x:12347: bad")
    assert len(split) == 12_346
    error, *others = split.findings()
    assert (error.rule, error.severity, error.detail) == (
        *("unreadable", "error"),
        "x:12347: bad",
    )
    assert [(one.rule, one.locations) for one in others if one.rule != "unknown"] == [
        ("control_characters", ("s:12346",))
    ]


def test_unequal_files_are_refused_with_both_counts(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    (tmp_path / "b").write_text("eins\nzwei\n")
    files = TwoFiles(str(tmp_path / "a"), str(tmp_path / "b"))
    split = CheckedSplit("train", [files], shared(Characters()), LONGEST)
    [finding] = split.findings()
    assert finding.severity == "error"
    assert "a has 3 lines" in finding.detail
    assert "b has 2" in finding.detail
    assert len(split) == 2


def test_locations_in_several_corpora_are_those_of_their_files(tmp_path):
    files = []
    for name, lines in (("a", ["one", "two"]), ("b", ["three", "bell\x07"])):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        (tmp_path / f"{name}2").write_text("".join(line.upper() + "\n" for line in lines))
        files.append(TwoFiles(str(tmp_path / name), str(tmp_path / f"{name}2")))
    split = CheckedSplit("train", files, None, LONGEST)
    [finding] = split.findings()
    assert finding.locations == (f"{tmp_path / 'b'}:2", f"{tmp_path / 'b2'}:2")
    assert split.sizes == [2, 2]


def test_without_a_vocabulary_only_the_rules_on_tokens_are_skipped():
    split = CheckedSplit("train", [Listed([("a", "a"), ("", "x")])], None, LONGEST)
    assert rules_of(split) == {"empty": (1, ("s:2",)), "identical": (1, ("s:1",))}
    assert split.source.statistics() == {"characters": 1, "words": 1}


def test_duplicates_and_matches_agree_with_python_on_random_keys():
    generator = np.random.default_rng(0)
    keys, among = (generator.integers(0, 40, size, np.uint64) for size in (60, 30))
    listed = keys.tolist()
    again = [index for index, key in enumerate(listed) if key in listed[:index]]
    indices, first = duplicates.find_duplicates(keys)
    assert indices.tolist() == again
    assert first.tolist() == [listed.index(listed[index]) for index in again]
    there = among.tolist()
    indices, first = duplicates.find_matches(keys, among)
    assert indices.tolist() == [index for index, key in enumerate(listed) if key in there]
    assert first.tolist() == [there.index(listed[index]) for index in indices]


def test_a_pair_is_not_its_reverse_nor_another_pair_of_the_same_sentences():
    left, right = (duplicates.hash_sentences([*letters]) for letters in ("abc", "bac"))
    several = [duplicates.hash_pairs(left, right), duplicates.hash_pairs(right, left)]
    keys = np.concatenate([*several, duplicates.hash_pairs(left, left)])
    # (a b) (b a) (c c), (b a) (a b) (c c), (a a) (b b) (c c)
    assert len(np.unique(keys)) == 5


def test_each_kind_of_warning_before_training_is_one_line(tmp_path):
    """Empty pairs are no warning, because training leaves them out."""
    rows = [("a b", "x y"), ("a b", "x y"), ("c\u2028d", "z"), ("", "w"), ("same", "same")]
    files = []
    for side in (0, 1):
        path = tmp_path / f"train.{side}"
        path.write_text("".join(row[side] + "\n" for row in rows), encoding="utf-8")
        files.append(str(path))
    train, validation = TwoFiles(*files), TwoFiles(*files[::-1])
    lines = list(text_checks.warnings([train], validation, max_length=10))
    assert lines[:3] == [
        f"train: pairs with identical source and target: 1, the first at {files[0]}:5; used as it "
        "is",
        f"train: duplicate pairs: 1, the first at {files[0]}:2 (as {files[0]}:1); used as it is",
        f"train: lines that other tools would split: 1, the first at {files[0]}:3; used as it is",
    ]
    [overlap] = [line for line in lines if "pairs that are in the training text" in line]
    assert overlap.startswith("validation: pairs that are in the training text: 1, the first at")
    assert not any("empty" in line for line in lines if line.startswith("train"))
