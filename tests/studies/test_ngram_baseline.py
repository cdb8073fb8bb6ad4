# SPDX-License-Identifier: Apache-2.0
"""The Kneser-Ney baseline: numbers worked by hand, and distributions that sum to 1."""

import itertools
import math

import numpy as np
import pytest

from experiments.studies.ngram_baseline.kneser_ney import FALLBACK_DISCOUNTS, KneserNey, discounts

BOS, EOS, A, B, C = 1, 2, 4, 5, 6


def test_discounts_follow_from_the_counts_of_counts():
    """n1 = 6, n2 = 3, n3 = 2, n4 = 1: Y = 6 / 12, D1 = 1 - 2 Y 3/6, and so on."""
    counts = [1] * 6 + [2] * 3 + [3] * 2 + [4] + [9] * 5
    expected = (1 - 2 * 0.5 * 3 / 6, 2 - 3 * 0.5 * 2 / 3, 3 - 4 * 0.5 * 1 / 2)
    np.testing.assert_allclose(discounts(counts), expected)
    for undetermined in ([], [1, 1, 3], [1] + [2] * 2 + [3] * 9 + [4]):
        assert discounts(undetermined) == FALLBACK_DISCOUNTS, "those of KenLM"


def test_a_bigram_model_by_hand():
    """Text: "a b", "a b", "a c". All orders have the discounts 0.5, 1 and 1.5.

    Bigrams: <s>a 3, ab 2, ac 1, b</s> 2, c</s> 1. Distinct predecessors: a 1, b 1, c 1, </s> 2.
    Unigrams: total 5, left by the discounts (0.5 + 0.5 + 0.5 + 1) / 5 = 0.5.
    """
    model = KneserNey([[A, B, EOS], [A, B, EOS], [A, C, EOS]], 2, BOS, num_tokens=5)
    uniform = 0.5 / 5
    unigram = {A: 0.5 / 5 + uniform, B: 0.1 + uniform, C: 0.1 + uniform, EOS: 1 / 5 + uniform}
    for token, probability in unigram.items():
        assert model.probability(token, ()) == pytest.approx(probability)
    # After a: b 2 and c 1, of 3; the discounts leave (1 + 0.5) / 3.
    assert model.probability(B, (A,)) == pytest.approx((2 - 1) / 3 + 0.5 * unigram[B])
    assert model.probability(C, (A,)) == pytest.approx((1 - 0.5) / 3 + 0.5 * unigram[C])
    assert model.probability(EOS, (A,)) == pytest.approx(0.5 * unigram[EOS])
    assert model.probability(B, (C, C, A)) == model.probability(B, (A,)), "one token counts"
    # A token that was never seen has a share of the uniform distribution.
    assert model.probability(7, (A,)) == pytest.approx(0.5 * uniform)
    # At the beginning: a 3 of 3, which leaves 1.5 / 3.
    first = (3 - 1.5) / 3 + 0.5 * unigram[A]
    second = (1 - 0.5) / 3 + 0.5 * unigram[C]
    last = (1 - 0.5) / 1 + 0.5 * unigram[EOS]
    expected = math.log(first) + math.log(second) + math.log(last)
    assert model.log_prob([A, C, EOS]) == pytest.approx(expected)


def test_probabilities_sum_to_1_after_every_history():
    rng = np.random.default_rng(0)
    text = [[*rng.choice([A, B, C, 7, 8], rng.integers(1, 9)), EOS] for _ in range(60)]
    tokens = [EOS, A, B, C, 7, 8, 9]  # 9 occurs nowhere
    for order in (1, 3, 5):
        model = KneserNey(text, order, BOS, num_tokens=7)
        for history in itertools.product([BOS, A, 9], repeat=order - 1):
            probabilities = [model.probability(token, history) for token in tokens]
            assert sum(probabilities) == pytest.approx(1) and min(probabilities) > 0
