# SPDX-License-Identifier: Apache-2.0
"""Diverse beam search over tables of probabilities, as the text of `decoding` says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from test_decoding import EOS, A, B, C, assert_found, log_probs_of, random_tables, search

from transformer.decoding.constraints import Constraints


@pytest.mark.parametrize(
    ("beams", "groups", "diversity", "results", "penalty", "alpha"),
    [
        (2, 2, 0.5, 2, "gnmt", 0.6),
        (4, 2, 0.7, 1, "length", -0.5),
        (6, 3, 2.0, 3, "none", 0.6),
    ],
)
def test_diverse_beams_find_what_the_description_says_in_as_many_steps(
    beams, groups, diversity, results, penalty, alpha
):
    tables = random_tables(6, 24, 6, 6)
    tables[::3, :, EOS] += 2.0
    limits = np.array([6, 5, 6, 4] * 6)
    options = {"results": results, "penalty": penalty, "alpha": alpha}
    steps = []
    found = search(
        tables,
        jnp.asarray(limits),
        beams=beams,
        max_length=6,
        groups=groups,
        diversity=diversity,
        on_step=functools.partial(steps.append, None),
        **options,
    )
    jax.effects_barrier()
    longest, others = 0, 0
    for row, table in enumerate(tables):
        expected, needed = oracle.diverse_beam(
            log_probs_of(table), int(limits[row]), beams, groups, diversity, **options
        )
        assert_found(found, row, expected)
        longest = max(longest, needed)
        others += (
            expected != oracle.beam(log_probs_of(table), int(limits[row]), beams, **options)[0]
        )
    assert len(steps) == longest
    assert others > 12, "or this shows little"


def test_diverse_beams_keep_the_same_constraints():
    """No word comes twice, so that a group soon has fewer hypotheses than beams."""
    tables = random_tables(9, 24, 6, 5)
    constraints = Constraints(block_ngrams=1)
    found = search(
        tables, jnp.full(24, 5), beams=6, max_length=5, groups=2, constraints=constraints
    )
    for row, table in enumerate(tables):
        options = (6, 2, 0.5, 6, "gnmt", 0.6)
        expected, _ = oracle.diverse_beam(log_probs_of(table), 5, *options, block_ngrams=1)
        assert_found(found, row, expected)


def test_diverse_beams_with_one_group_are_beam_search():
    """The very same program, whatever the price of a token would be; and so says the oracle."""
    tables, limits = random_tables(7, 12, 6, 5), jnp.full(12, 5)
    options = {"beams": 3, "max_length": 5}
    programs = {
        str(jax.make_jaxpr(lambda changed=changed: search(tables, limits, **options, **changed))())
        for changed in ({}, {"groups": 1, "diversity": 9.0})
    }
    assert len(programs) == 1
    found = search(tables, limits, **options, groups=1, diversity=9.0)
    plain = search(tables, limits, **options)
    jax.tree.map(np.testing.assert_array_equal, found, plain)
    for row, table in enumerate(tables):
        options = ("gnmt", 0.6)
        expected, _ = oracle.diverse_beam(log_probs_of(table), 5, 3, 1, 9.0, 3, *options)
        assert expected == oracle.beam(log_probs_of(table), 5, 3, 3, *options)[0]
        assert_found(found, row, expected)


def test_where_a_token_is_dear_every_group_begins_with_another_and_scores_are_the_models_own():
    tables = random_tables(8, 12, 6, 5)
    tables[:, 0, EOS] -= 20.0
    options = {"beams": 3, "max_length": 5, "penalty": "none"}
    found = search(tables, jnp.full(12, 5), groups=3, diversity=50.0, **options)
    for row, table in enumerate(tables):
        assert {int(word) for word in found.tokens[row, :, 0]} == {A, B, C}
        for words, log_prob in zip(found.tokens[row], found.log_probs[row], strict=True):
            words = [int(word) for word in words if word]
            total = sum(log_probs_of(table)(words[:t])[word] for t, word in enumerate(words))
            np.testing.assert_allclose(log_prob, total, rtol=1e-5)
    np.testing.assert_array_equal(found.scores, found.log_probs)
    assert (np.diff(found.scores) <= 0).all()
