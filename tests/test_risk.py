# SPDX-License-Identifier: Apache-2.0
"""Minimum Bayes risk by hand."""

import collections

import pytest

from transformer.decoding.minimum_bayes_risk import by_mean_similarity
from transformer.text.metrics import sentence_similarity

ALIKE = {
    ("x", "y"): 60.0,
    ("x", "z"): 30.0,
    ("y", "x"): 50.0,
    ("y", "z"): 40.0,
    ("z", "x"): 20.0,
    ("z", "y"): 10.0,
}


def alike(one, other):
    """A similarity that is not the same both ways; a text is like itself to 100."""
    return 100.0 if one == other else ALIKE[one, other]


def test_the_sample_that_is_most_like_the_others_comes_first():
    """x: (60 + 30) / 2; y: (50 + 40) / 2; z: (20 + 10) / 2. Of x and y, x was drawn first."""
    assert by_mean_similarity(["x", "y", "z"], alike) == [(0, 45.0), (1, 45.0), (2, 15.0)]
    assert by_mean_similarity(["z", "y", "x"], alike) == [(1, 45.0), (2, 45.0), (0, 15.0)]


def test_a_text_that_was_drawn_twice_is_listed_once_and_its_copy_counts():
    """z: (20 + 100 + 10) / 3, over x, the other z and y; x: (30 + 30 + 60) / 3."""
    ranked = by_mean_similarity(["z", "x", "z", "y"], alike)
    assert [(place, pytest.approx(mean)) for place, mean in ranked] == [
        (0, 130 / 3),
        (3, 130 / 3),
        (1, 40.0),
    ]


def test_a_sample_alone_is_the_choice():
    assert by_mean_similarity(["x"], alike) == [(0, 0.0)]
    assert by_mean_similarity(["x", "x"], alike) == [(0, 100.0)]


def test_texts_that_are_equally_good_stay_so_whatever_the_order_of_the_sums():
    """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in floating point."""
    shares = {("p", "q"): 0.1, ("p", "r"): 0.2, ("p", "s"): 0.3}
    shares |= {("s", "p"): 0.3, ("s", "q"): 0.2, ("s", "r"): 0.1}
    ranked = by_mean_similarity(
        ["s", "p", "q", "r"], lambda one, other: shares.get((one, other), 0)
    )
    assert [place for place, _ in ranked] == [0, 1, 2, 3]


def test_a_pair_of_texts_is_compared_once():
    asked = collections.Counter()

    def counted(one, other):
        asked[one, other] += 1
        return alike(one, other)

    by_mean_similarity(["x", "y", "x", "y", "x"], counted)
    assert asked == {("x", "x"): 1, ("y", "y"): 1, ("x", "y"): 1, ("y", "x"): 1}


# sacreBLEU's sentence scores.


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        # Words: 3 of 4, pairs 2 of 3, triples 1 of 2, and one of four counted as half of none.
        ("bleu", 100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25),
        ("chrf", None),
    ],
)
def test_similarity_is_the_sentence_score_of_that_name(metric, expected):
    import sacrebleu

    similarity = sentence_similarity(metric)
    one, other = "the black cat sleeps", "the black cat slept"
    assert similarity(one, one) == pytest.approx(100.0)
    if metric == "bleu":
        assert similarity(one, other) == pytest.approx(expected)
        # With two words there are no triples; they are left out, not counted as 0.
        assert similarity("the cat", "the cat") == pytest.approx(100.0)
    else:
        assert similarity(one, other) == sacrebleu.sentence_chrf(one, [other]).score
    assert similarity(one, other) > similarity(one, "a dog barks")


def test_the_translation_nearest_to_the_others_is_chosen_by_both_metrics():
    samples = ["the dog barks", "a cat sleeps here", "the cat sleeps here", "the cat sleeps now"]
    for metric in ("chrf", "bleu"):
        ranked = by_mean_similarity(samples, sentence_similarity(metric))
        assert samples[ranked[0][0]] == "the cat sleeps here"
        assert samples[ranked[-1][0]] == "the dog barks"
