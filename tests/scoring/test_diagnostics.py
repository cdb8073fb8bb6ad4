# SPDX-License-Identifier: Apache-2.0
"""Length, repetition, empty and copied translations, on cases that can be counted by hand."""

import math

from experiments.scoring import diagnostics


def words(count):
    """A sentence with this number of words."""
    return " ".join("w" * count)


def test_sentences_are_grouped_by_the_words_of_their_reference():
    references = [words(count) for count in (1, 61, 5, 6, 60, 200, 0)]
    buckets = diagnostics.length_buckets(references)
    assert [(bucket.name, bucket.rows, bucket.mean) for bucket in buckets] == [
        ("0 to 5", [0, 2, 6], 2.0),
        ("6 to 10", [3], 6.0),
        ("41 to 60", [4], 60.0),
        ("over 60", [1, 5], 130.5),
    ]
    # Every sentence is in one.
    references = [words(count) for count in range(80)]
    rows = [row for bucket in diagnostics.length_buckets(references) for row in bucket.rows]
    assert sorted(rows) == list(range(80))


def test_the_length_ratio_counts_all_words():
    assert diagnostics.length_ratio(["a b c", "a"], ["a b", "a b c d e f"]) == 4 / 8
    assert diagnostics.length_ratio(["", ""], ["a", "b"]) == 0
    assert math.isnan(diagnostics.length_ratio(["a"], [""]))


def test_words_are_separated_by_spaces_or_are_characters_of_scripts_without_spaces():
    for text, expected in (
        ("The cat, which sat: a cat's-paw\u00a0...", "The|cat,|which|sat:|a|cat's-paw|..."),
        ("高い3階。 ok", "高|い|3|階|。|ok"),
        ("แมว", "แ|ม|ว"),
        ("고양이가 잔다.", "고양이가|잔다."),
    ):
        assert diagnostics.words(text) == expected.split("|")


def test_texts_without_spaces_have_lengths_and_repetitions():
    reference, short = "这只动物没有过马路因为它太累了。", "这只。"
    assert diagnostics.length_ratio([short], [reference]) == 3 / 16
    assert [bucket.name for bucket in diagnostics.length_buckets([reference])] == ["16 to 20"]
    assert diagnostics.extra_repeats("是是是是", reference, 2) == 2


def test_only_repetition_beyond_the_reference_counts():
    for translation, reference, n, extra in (
        ("the cat the cat", "the cat", 1, 1),
        ("the cat the cat", "the cat", 2, 1),
        ("the cat the cat", "the cat", 3, 0),
        ("the cat the cat", "the cat and the cat", 2, 0),
        ("a a a a a", "b", 1, 4),
        ("a a a a a", "b", 2, 3),
        ("a a a a a", "a a a", 1, 2),
        ("a b c", "x", 1, 0),
        ("", "a", 1, 0),
        ("a", "", 2, 0),
    ):
        assert diagnostics.extra_repeats(translation, reference, n) == extra


def test_an_empty_translation_counts_only_if_its_source_is_not_empty():
    assert diagnostics.empty(["a", "b", " ", "c"], ["x", "", "", "  "]) == [1, 3]


def test_a_copy_of_the_source_counts_only_if_the_reference_differs():
    sources = ["Paris", "the cat", "the dog ", "", "a"]
    references = ["Paris", "die Katze", "der Hund", "x", "b"]
    assert diagnostics.copied(sources, references, ["Paris", "the cat", "the dog", "", "c"]) == [
        1,
        2,
    ]
