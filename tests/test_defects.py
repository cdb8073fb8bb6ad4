# SPDX-License-Identifier: Apache-2.0
"""Every rule of the data checks by hand: the count, the first places, and nothing else."""

import unicodedata

import numpy as np
import pytest

from experiments.corpora.text_files import TwoFiles
from experiments.pipeline import fingerprints, text_checks
from experiments.pipeline.pairs import Pairs
from experiments.pipeline.text_checks import MOST_UNEVEN, TITLES, Split, oddities
from transformer.arrays import EOS_ID, UNK_ID
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer

LONGEST = 30


class Listed(Pairs):
    """Pairs in memory, with an error after the last where one is given."""

    name, languages = "listed", None

    def __init__(self, pairs, error=""):
        self.pairs, self.error = pairs, error

    def chunks(self, size=10_000):
        pairs = self.pairs
        for start in range(0, len(pairs), size):
            if self.error and start + size > len(pairs):
                break
            sources, targets = zip(*pairs[start : start + size], strict=True)
            yield list(sources), list(targets)
        if self.error:
            raise InputError(self.error)

    def count(self):
        return len(self.pairs)

    def place(self, index):
        return f"s:{index + 1}", f"t:{index + 1}"

    def identity(self):
        return "listed"


class Characters:
    """A vocabulary of the printable ASCII characters; a token is a character."""

    vocab_size = 100

    def encode(self, sentences):
        return [[*map(self._id, sentence), EOS_ID] for sentence in sentences]

    def pieces(self, ids):
        return [chr(token + 28) for token in ids]

    def _id(self, character):
        return ord(character) - 28 if " " <= character <= "~" else UNK_ID


def check(pairs, name="train", tokenizer=None, **options):
    return Split(name, [Listed(pairs, **options)], tokenizer or Characters(), LONGEST)


def found(split):
    """Rule -> (count, places)."""
    return {one.rule: (one.count, one.places) for one in split.findings()}


def clean(count):
    """Pairs with nothing wrong."""
    return [(f"source {number:04}", f"target {number:04}") for number in range(count)]


def test_a_clean_corpus_has_no_findings():
    assert found(check(clean(50))) == {}


DEFECTS = {
    "empty": ("", "leer"),
    "too_long": ("x" * LONGEST, "y" * 20),
    "badly_proportioned": ("z", "0123456789"),
    "identical": ("same", "same"),
    "line_separators": ("next\x85line", "n"),
    "control_characters": ("bell\x07", "b"),
    "invisible_characters": ("zero\u200bwidth", "w"),
    "replacement_characters": ("lost \ufffd", "l"),
    "mojibake": ("schÃ¶n", "m"),
    "spaces": (" leading", "s"),
    "not_normalized": (unicodedata.normalize("NFD", "schön"), "c"),
}
"""For each rule a pair that breaks it on the source side, and that apart from its unknown
characters breaks no other.
"""


@pytest.mark.parametrize("rule", DEFECTS)
def test_each_defect_is_counted_and_its_first_places_are_named(rule):
    corpus = clean(20)
    source, target = DEFECTS[rule]
    for place in (3, 8, 11, 15):
        # No two alike, so that there are no duplicates; the same addition on both sides.
        mark = "" if rule == "empty" else f"{place:x}"
        if rule in ("badly_proportioned", "too_long"):
            corpus[place] = (source[:-1] + mark, target)
        else:
            corpus[place] = (source + mark, target + (mark or f"{place:x}"))
    findings = found(check(corpus))
    findings.pop("unknown", None)
    assert findings == {rule: (4, ("s:4", "s:9", "s:12"))}


def test_every_rule_of_one_split_is_tried():
    tried = {*DEFECTS, "unreadable", "duplicates", "other_targets", "unknown"}
    assert tried == {rule for rule in TITLES if not rule.endswith("in_training")}


def test_both_sides_are_looked_at_in_the_order_of_the_corpus():
    corpus = clean(10)
    corpus[2] = ("plain", "bell\x07")
    corpus[5] = ("bell\x07", "and \x01 another")
    [finding] = [one for one in check(corpus).findings() if one.rule == "control_characters"]
    assert (finding.count, finding.places) == (3, ("t:3", "s:6", "t:6"))
    assert finding.detail == "U+0007 (2), U+0001 (1)"


@pytest.mark.parametrize(
    "character",
    [
        chr(code)
        for code in range(0x3000)
        if chr(code) != "\n" and len(f"a{chr(code)}b".splitlines()) == 2
    ],
    ids=lambda character: f"U+{ord(character):04X}",
)
def test_whatever_splits_a_line_elsewhere_is_named(character):
    assert dict(oddities(f"a{character}b")) == {"line_separators": character}


@pytest.mark.parametrize(
    "line",
    [
        "naïve façade",
        "São João, não! Câmara Âncora",
        "« Bonjour »",
        "日本語の文",
        "می\u200cخواهم",
        "👩\u200d🚀",
        "a\u00a0b",
        "",
    ],
)
def test_ordinary_text_of_many_languages_is_not_odd(line):
    assert list(oddities(line)) == []


def test_white_space_alone_is_an_empty_side_and_no_identical_pair():
    findings = found(check([*clean(2), (" ", "\t"), ("", "")]))
    assert findings["empty"] == (2, ("s:3", "s:4"))
    assert findings.keys() == {"empty", "spaces", "control_characters"}


def test_longest_counts_the_end_token_and_the_share_of_the_text_that_is_lost():
    corpus = [("a" * (LONGEST - 1), "b" * 9), ("c" * LONGEST, "d" * 28)]
    [finding] = check(corpus).findings()
    assert (finding.rule, finding.count, finding.places) == ("too_long", 1, ("s:2",))
    assert finding.severity == "left out"
    # 30 + 10 tokens are kept, 31 + 29 lost.
    assert finding.detail == f"longer than {LONGEST} tokens; 60.0% of the text"


@pytest.mark.parametrize("name", ["validation", "test"])
def test_only_training_leaves_pairs_out(name):
    corpus = [("", "empty"), ("c" * LONGEST, "d" * 28), ("plain", "text")]
    findings = {one.rule: one for one in check(corpus, name).findings()}
    assert findings.keys() == {"empty", "too_long"}
    assert {one.severity for one in findings.values()} == {"note"}
    assert findings["too_long"].treatment.endswith(f"a source is cut to {LONGEST - 1} tokens")


@pytest.mark.parametrize(
    ("name", "app"), [("train", "train"), ("validation", "train"), ("test", "evaluate")]
)
def test_it_is_said_who_refuses_what_cannot_be_read(name, app):
    [finding] = check(clean(3), name, error="x:4: bad").findings()
    assert finding.severity == "refused"
    assert finding.treatment.startswith(f"{app} refuses the corpus")


def test_the_tokenizer_does_with_spaces_what_is_said_of_it():
    tokenizer = Tokenizer.train(["a b c d", "b c d a"] * 5, 12)
    assert tokenizer.encode(["  a  b   c "]) == tokenizer.encode(["a b c"])


def test_nine_tokens_for_one_are_allowed_and_ten_are_not():
    assert found(check([("a", "b" * MOST_UNEVEN)])) == {}
    assert found(check([("b" * (MOST_UNEVEN + 1), "a")])) == {"badly_proportioned": (1, ("s:1",))}
    assert found(check([("aa", "b" * (2 * MOST_UNEVEN))])) == {}


def test_repeated_pairs_and_a_source_with_another_target():
    pairs = [("a", "x"), ("b", "y"), ("a", "x"), ("a", "z"), ("a", "x"), ("a", "z"), ("c", "x")]
    assert found(check(pairs)) == {
        "duplicates": (3, ("s:3 (as s:1)", "s:5 (as s:1)", "s:6 (as s:4)")),
        "other_targets": (1, ("s:4 (as s:1)",)),
    }


def test_overlap_with_training_is_counted_by_side_and_by_pair():
    train = check([("a", "x"), ("b", "y"), ("a", "z"), ("", "")])
    valid = check([("q", "q1"), ("a", "z"), ("b", "w"), ("v", "x"), ("", "")], "validation")
    overlap = {one.rule: (one.count, one.places) for one in valid.in_training(train)}
    assert overlap == {
        "sources_in_training": (2, ("s:2 (as s:1)", "s:3 (as s:2)")),
        "targets_in_training": (2, ("t:2 (as t:3)", "t:4 (as t:1)")),
        "pairs_in_training": (1, ("s:2 (as s:3)",)),
    }
    assert check(clean(3), "test").in_training(train) == []


def test_what_the_vocabulary_lacks_is_named():
    [finding] = check([("plain", "grün"), ("süß", "sweet")]).findings()
    assert (finding.rule, finding.count, finding.places) == ("unknown", 2, ("t:1", "s:2"))
    assert finding.detail == "ü U+00FC (2), ß U+00DF (1)"


def test_unknown_words_of_a_vocabulary_of_words_are_named():
    tokenizer = Tokenizer.train(["a b c d", "b c d a"] * 5, 8, "word")
    split = check([("a b", "c d"), ("a ab", "d")], tokenizer=tokenizer)
    [finding] = split.findings()
    assert (finding.rule, finding.count, finding.detail) == ("unknown", 1, "ab (1)")
    assert split.source.unknown_tokens == 1


def test_figures_of_a_side_by_hand():
    side = check([("ab cd", "1"), ("e", "2"), ("fgh", "3")]).source
    assert side.figures() == {
        "characters": 9,
        "words": 4,
        "tokens": 12,
        "unknown_tokens": 0,
        "tokens_per_word": 9 / 4,
        "mean_length": 4.0,
        "median_length": 4.0,
        "length_95_percent": pytest.approx(5.8),
        "longest": 6,
    }


def test_all_pairs_before_the_place_that_cannot_be_read_are_checked():
    corpus = [*clean(12_345), ("bell\x07", "b")]
    split = check(corpus, error="x:12347: bad")
    assert len(split) == 12_346
    refused, *others = split.findings()
    assert (refused.rule, refused.severity, refused.detail) == (
        *("unreadable", "refused"),
        "x:12347: bad",
    )
    assert [(one.rule, one.places) for one in others if one.rule != "unknown"] == [
        ("control_characters", ("s:12346",))
    ]


def test_unequal_files_are_refused_with_both_counts(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    (tmp_path / "b").write_text("eins\nzwei\n")
    files = TwoFiles(str(tmp_path / "a"), str(tmp_path / "b"))
    split = Split("train", [files], Characters(), LONGEST)
    [finding] = split.findings()
    assert finding.severity == "refused"
    assert "a has 3 lines" in finding.detail
    assert "b has 2" in finding.detail
    assert len(split) == 2


def test_places_of_several_corpora_are_those_of_the_files(tmp_path):
    files = []
    for name, lines in (("a", ["one", "two"]), ("b", ["three", "bell\x07"])):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        (tmp_path / f"{name}2").write_text("".join(line.upper() + "\n" for line in lines))
        files.append(TwoFiles(str(tmp_path / name), str(tmp_path / f"{name}2")))
    split = Split("train", files, None, LONGEST)
    [finding] = split.findings()
    assert finding.places == (f"{tmp_path / 'b'}:2", f"{tmp_path / 'b2'}:2")
    assert split.sizes == [2, 2]


def test_without_a_vocabulary_there_are_no_lengths_and_all_else_is_found():
    split = Split("train", [Listed([("a", "a"), ("", "x")])], None, LONGEST)
    assert found(split) == {"empty": (1, ("s:2",)), "identical": (1, ("s:1",))}
    assert split.source.figures() == {"characters": 1, "words": 1}


def test_repeats_and_common_hashes_agree_with_python_on_random_keys():
    generator = np.random.default_rng(0)
    keys, among = (generator.integers(0, 40, size, np.uint64) for size in (60, 30))
    listed = keys.tolist()
    again = [place for place, key in enumerate(listed) if key in listed[:place]]
    places, first = fingerprints.repeats(keys)
    assert places.tolist() == again
    assert first.tolist() == [listed.index(listed[place]) for place in again]
    there = among.tolist()
    places, first = fingerprints.found(keys, among)
    assert places.tolist() == [place for place, key in enumerate(listed) if key in there]
    assert first.tolist() == [there.index(listed[place]) for place in places]


def test_a_pair_is_not_its_reverse_nor_another_pair_of_the_same_sentences():
    left, right = fingerprints.hashes(["a", "b", "c"]), fingerprints.hashes(["b", "a", "c"])
    several = [fingerprints.of_pairs(left, right), fingerprints.of_pairs(right, left)]
    keys = np.concatenate([*several, fingerprints.of_pairs(left, left)])
    # (a b) (b a) (c c), (b a) (a b) (c c), (a a) (b b) (c c)
    assert len(np.unique(keys)) == 5


def test_what_a_training_lives_with_is_a_line_each(tmp_path):
    """One of each kind; empty pairs are not among them, because training leaves them out."""
    rows = [("a b", "x y"), ("a b", "x y"), ("c\u2028d", "z"), ("", "w"), ("same", "same")]
    files = []
    for side in (0, 1):
        path = tmp_path / f"train.{side}"
        path.write_text("".join(row[side] + "\n" for row in rows), encoding="utf-8")
        files.append(str(path))
    train, validation = TwoFiles(*files), TwoFiles(*files[::-1])
    lines = list(text_checks.notes([train], validation, max_length=10, tokenizer=None))
    assert lines[:3] == [
        f"train: pairs with identical source and target: 1, the first at {files[0]}:5; used as it "
        "is; many of them teach the model to copy",
        f"train: pairs that stand earlier too: 1, the first at {files[0]}:2 (as {files[0]}:1); "
        "used as it is; each counts as often as it stands there",
        f"train: lines that other tools would split: 1, the first at {files[0]}:3; used as it is, "
        "as one line; only \\n ends a line here",
    ]
    [overlap] = [line for line in lines if "pairs that are in the training text" in line]
    assert overlap.startswith("validation: pairs that are in the training text: 1, the first at")
    assert not any("empty" in line for line in lines if line.startswith("train"))
