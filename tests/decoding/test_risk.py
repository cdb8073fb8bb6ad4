# SPDX-License-Identifier: Apache-2.0
"""Minimum Bayes risk decoding by hand."""

import collections

import pytest

from transformer.decoding.minimum_bayes_risk import rank_by_similarity
from transformer.text.metrics import sentence_similarity

SIMILARITY = {
    ("x", "y"): 60.0,
    ("x", "z"): 30.0,
    ("y", "x"): 50.0,
    ("y", "z"): 40.0,
    ("z", "x"): 20.0,
    ("z", "y"): 10.0,
}


def similarity(candidate, reference):
    """An asymmetric similarity; 100 for equal texts."""
    return 100.0 if candidate == reference else SIMILARITY[candidate, reference]


def test_the_sample_that_is_most_similar_to_the_others_comes_first():
    """x: (60 + 30) / 2; y: (50 + 40) / 2; z: (20 + 10) / 2. Of x and y, the first sample wins."""
    assert rank_by_similarity(["x", "y", "z"], similarity) == [(0, 45.0), (1, 45.0), (2, 15.0)]
    assert rank_by_similarity(["z", "y", "x"], similarity) == [(1, 45.0), (2, 45.0), (0, 15.0)]


def test_a_text_that_was_sampled_twice_is_listed_once_and_its_copy_counts():
    """z: (20 + 100 + 10) / 3, over x, the other z and y; x: (30 + 30 + 60) / 3."""
    ranked = rank_by_similarity(["z", "x", "z", "y"], similarity)
    assert [(index, pytest.approx(mean)) for index, mean in ranked] == [
        (0, 130 / 3),
        (3, 130 / 3),
        (1, 40.0),
    ]


def test_a_single_text_is_the_result():
    assert rank_by_similarity(["x"], similarity) == [(0, 0.0)]
    assert rank_by_similarity(["x", "x"], similarity) == [(0, 100.0)]


def test_ties_do_not_depend_on_the_order_of_the_sums():
    """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in floating point."""
    shares = {("p", "q"): 0.1, ("p", "r"): 0.2, ("p", "s"): 0.3}
    shares |= {("s", "p"): 0.3, ("s", "q"): 0.2, ("s", "r"): 0.1}
    ranked = rank_by_similarity(
        ["s", "p", "q", "r"], lambda one, other: shares.get((one, other), 0)
    )
    assert [index for index, _ in ranked] == [0, 1, 2, 3]


def test_the_similarity_of_a_pair_of_texts_is_computed_once():
    calls = collections.Counter()

    def counted(one, other):
        calls[one, other] += 1
        return similarity(one, other)

    rank_by_similarity(["x", "y", "x", "y", "x"], counted)
    assert calls == {("x", "x"): 1, ("y", "y"): 1, ("x", "y"): 1, ("y", "x"): 1}


# sacreBLEU's sentence scores.


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        # Unigrams 3 of 4, bigrams 2 of 3, trigrams 1 of 2, and the only 4-gram smoothed to 1/2.
        ("bleu", 100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25),
        ("chrf", None),
    ],
)
def test_similarity_is_the_sentence_score_of_sacrebleu(metric, expected):
    import sacrebleu

    score = sentence_similarity(metric)
    one, other = "the black cat sleeps", "the black cat slept"
    assert score(one, one) == pytest.approx(100.0)
    if metric == "bleu":
        assert score(one, other) == pytest.approx(expected)
        # Two words have no trigrams; those are left out, not counted as 0.
        assert score("the cat", "the cat") == pytest.approx(100.0)
    else:
        assert score(one, other) == sacrebleu.sentence_chrf(one, [other]).score
    assert score(one, other) > score(one, "a dog barks")


def test_both_metrics_choose_the_most_central_translation():
    samples = ["the dog barks", "a cat sleeps here", "the cat sleeps here", "the cat sleeps now"]
    for metric in ("chrf", "bleu"):
        ranked = rank_by_similarity(samples, sentence_similarity(metric))
        assert samples[ranked[0][0]] == "the cat sleeps here"
        assert samples[ranked[-1][0]] == "the dog barks"
