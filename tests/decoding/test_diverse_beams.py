# SPDX-License-Identifier: Apache-2.0
"""Diverse beam search over tables of logits, against the specification in `beam_search`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import search_oracle
from search_tables import EOS, A, B, C, assert_hypotheses, log_probs_of, random_tables, search

from transformer.decoding.constraints import Constraints


@pytest.mark.parametrize(
    ("beams", "groups", "diversity", "results", "penalty", "alpha"),
    [
        (4, 2, 0.7, 1, "length", 1.0),
        (6, 3, 2.0, 3, "none", 0.6),
    ],
)
def test_diverse_results_and_number_of_steps_are_those_of_the_specification(
    beams, groups, diversity, results, penalty, alpha
):
    tables = random_tables(6, 24, 6, 6)
    tables[::3, :, EOS] += 2.0
    limits = np.array([6, 5, 6, 4] * 6)
    options = {"num_results": results, "penalty": penalty, "alpha": alpha}
    steps = []
    actual = search(
        tables,
        jnp.asarray(limits),
        num_beams=beams,
        max_length=6,
        num_groups=groups,
        diversity=diversity,
        on_step=functools.partial(steps.append, None),
        **options,
    )
    jax.effects_barrier()
    longest, different = 0, 0
    for row, table in enumerate(tables):
        expected, needed = search_oracle.diverse_beam(
            log_probs_of(table), int(limits[row]), beams, groups, diversity, **options
        )
        assert_hypotheses(actual, row, expected)
        longest = max(longest, needed)
        different += (
            expected
            != search_oracle.beam(log_probs_of(table), int(limits[row]), beams, **options)[0]
        )
    assert len(steps) == longest
    assert different > 12, "otherwise this test shows little"


def test_diverse_beams_obey_the_same_constraints():
    """No word occurs twice, so a group soon has fewer hypotheses than beams."""
    tables = random_tables(9, 24, 6, 5)
    constraints = Constraints(block_ngrams=1)
    actual = search(
        tables, jnp.full(24, 5), num_beams=6, max_length=5, num_groups=2, constraints=constraints
    )
    for row, table in enumerate(tables):
        options = (6, 2, 0.5, 6, "gnmt", 0.6)
        expected, _ = search_oracle.diverse_beam(log_probs_of(table), 5, *options, block_ngrams=1)
        assert_hypotheses(actual, row, expected)


def test_diverse_beams_with_one_group_are_beam_search():
    """The same program for every `diversity`, and the same results as those of the oracle."""
    tables, limits = random_tables(7, 12, 6, 5), jnp.full(12, 5)
    options = {"num_beams": 3, "max_length": 5}
    programs = {
        str(jax.make_jaxpr(lambda changed=changed: search(tables, limits, **options, **changed))())
        for changed in ({}, {"num_groups": 1, "diversity": 9.0})
    }
    assert len(programs) == 1
    actual = search(tables, limits, **options, num_groups=1, diversity=9.0)
    plain = search(tables, limits, **options)
    jax.tree.map(np.testing.assert_array_equal, actual, plain)
    for row, table in enumerate(tables):
        options = ("gnmt", 0.6)
        expected, _ = search_oracle.diverse_beam(log_probs_of(table), 5, 3, 1, 9.0, 3, *options)
        assert expected == search_oracle.beam(log_probs_of(table), 5, 3, 3, *options)[0]
        assert_hypotheses(actual, row, expected)


def test_a_translation_of_two_groups_is_one_result_and_the_next_ones_follow():
    """Without diversity both groups of two beams are one and the same search."""
    tables, limits = random_tables(10, 12, 6, 5), jnp.full(12, 5)
    tables[..., EOS] += 2.0
    options = {"max_length": 5, "num_results": 2}
    actual = search(tables, limits, num_beams=4, num_groups=2, diversity=0.0, **options)
    two = search(tables, limits, num_beams=2, **options)
    np.testing.assert_array_equal(actual.tokens[:, :2], two.tokens)
    np.testing.assert_array_equal(actual.scores[:, :2], two.scores)
    counts = []
    for row in range(12):
        results = [tuple(words) for words in np.asarray(actual.tokens[row]) if words.any()]
        assert len(set(results)) == len(results)
        counts.append(len(results))
    assert max(counts) > 2, "hypotheses that finished after the best two of a group"


def test_with_a_large_diversity_every_group_begins_differently_and_scores_stay_those_of_the_model():
    tables = random_tables(8, 12, 6, 5)
    tables[:, 0, EOS] -= 20.0
    options = {"num_beams": 3, "max_length": 5, "penalty": "none"}
    actual = search(tables, jnp.full(12, 5), num_groups=3, diversity=50.0, **options)
    for row, table in enumerate(tables):
        assert {int(word) for word in actual.tokens[row, :, 0]} == {A, B, C}
        for words, log_prob in zip(actual.tokens[row], actual.log_probs[row], strict=True):
            words = [int(word) for word in words if word]
            total = sum(log_probs_of(table)(words[:t])[word] for t, word in enumerate(words))
            np.testing.assert_allclose(log_prob, total, rtol=1e-5)
    np.testing.assert_array_equal(actual.scores, actual.log_probs)
    assert (np.diff(actual.scores) <= 0).all()
