# SPDX-License-Identifier: Apache-2.0
"""Beam search over tables of logits: by hand, by brute force, and against its specification."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import search_oracle
from search_tables import (
    EOS,
    A,
    B,
    assert_hypotheses,
    log_probs_of,
    node,
    random_tables,
    search,
)

from transformer.config import DecodeConfig
from transformer.decoding.beam_search import NEG_INF, length_penalty, output_length_limits
from transformer.decoding.constraints import Constraints
from transformer.decoding.decode_loop import MIN_BATCH_TO_SHRINK
from transformer.errors import InputError

# By hand: three words (EOS, a, b), at most three tokens.

HAND = {
    (): (0.1, 0.5, 0.4),
    (A,): (0.35, 0.4, 0.25),
    (B,): (0.9, 0.05, 0.05),
    (A, A): (0.5, 0.3, 0.2),
    (A, B): (0.2, 0.4, 0.4),
    (B, A): (0.1, 0.1, 0.8),
    (B, B): (0.1, 0.1, 0.8),
}
"""Probabilities of EOS, a and b after each prefix."""


def by_hand(**options):
    """Search the table above; also returns the number of steps."""
    table = np.full((1, 31, 5), -1e9, np.float32)
    for prefix, probabilities in HAND.items():
        table[0, node(prefix, 5), 2:] = np.log(probabilities)
    steps = []
    actual = search(
        jnp.asarray(table),
        jnp.array([3]),
        max_length=3,
        penalty="none",
        on_step=functools.partial(steps.append, None),
        **options,
    )
    jax.effects_barrier()
    return actual, len(steps)


def entry(probability, *words):
    """One expected hypothesis without length penalty."""
    return math.log(probability), math.log(probability), words


def test_one_beam_chooses_the_most_probable_word_and_misses_the_best_translation():
    """a (.5), a (.4), and at the limit EOS (.5), though "b EOS" has .36."""
    actual, steps = by_hand(num_beams=1)
    assert_hypotheses(actual, 0, [entry(0.1, A, A, EOS)])
    assert steps == 3


def test_two_beams_find_the_best_translation_and_finish_only_their_two_best_extensions():
    """Second step: "b EOS" .36, "a a" .2, "a EOS" .175; the last is third, so not finished."""
    actual, steps = by_hand(num_beams=2)
    assert_hypotheses(actual, 0, [entry(0.36, B, EOS), entry(0.1, A, A, EOS)])
    assert steps == 3


def test_all_four_best_extensions_of_two_beams_may_finish_as_in_tensor2tensor():
    """First step: "EOS" .1 is third and finishes. Second step: "a EOS" .175 finishes, too."""
    actual, steps = by_hand(num_beams=2, finish_from="best_2k")
    assert_hypotheses(actual, 0, [entry(0.36, B, EOS), entry(0.175, A, EOS)])
    assert steps == 3


def test_for_one_result_two_beams_stop_when_no_active_hypothesis_can_beat_it():
    """After two steps the best active hypothesis has .2, which can only fall below .36."""
    actual, steps = by_hand(num_beams=2, num_results=1)
    assert_hypotheses(actual, 0, [entry(0.36, B, EOS)])
    assert steps == 2


def test_three_beams_stop_when_three_have_finished_and_no_active_hypothesis_is_better():
    """After two steps the finished ones have .36, .175 and .1. The best active one has .2: less
    than the first of them, but more than the last.
    """
    finished = [entry(0.36, B, EOS), entry(0.175, A, EOS), entry(0.1, EOS)]
    actual, steps = by_hand(num_beams=3, num_results=1)
    assert_hypotheses(actual, 0, finished)
    assert steps == 2
    _, steps = by_hand(num_beams=3, num_results=3)
    assert steps == 3


def test_bad_hypotheses_that_end_early_do_not_stop_the_search_before_a_good_one_ends():
    """At every position one word is almost certain. EOS is almost impossible, but always among the
    best extensions, so a hypothesis with a very low score finishes at every step.
    """
    tables = np.full((1, sum(5**length for length in range(6)), 5), -20.0, np.float32)
    tables[..., EOS] = -9.0
    for length in range(6):
        word = A if length < 5 else EOS
        tables[:, node([A] * length, 5), word] = 0.0
    actual = search(jnp.asarray(tables), jnp.array([6]), num_beams=2, max_length=6, num_results=1)
    assert actual.tokens[0, 0].tolist() == [A, A, A, A, A, EOS]
    assert float(actual.log_probs[0, 0]) > -0.01


# By brute force.


@pytest.mark.parametrize(("penalty", "alpha"), [("gnmt", 0.6), ("gnmt", -1.0), ("length", 1.0)])
def test_with_more_beams_than_translations_the_search_is_exhaustive(penalty, alpha):
    """Two words and at most four tokens make 1 + 2 + 4 + 8 translations; K is 16. With one result
    requested, the search returns the best of them.
    """
    tables = random_tables(0, 20, 5, 4)
    limits = jnp.array([4] * 16 + [3, 3, 2, 1])
    options = {"num_beams": 16, "max_length": 4, "penalty": penalty, "alpha": alpha}
    actual = search(tables, limits, **options)
    one = search(tables, limits, num_results=1, **options)
    for row, table in enumerate(tables):
        every = search_oracle.every_translation(log_probs_of(table), int(limits[row]))
        expected = search_oracle.best_of(every, penalty, alpha)
        assert len(expected) == 2 ** int(limits[row]) - 1
        assert_hypotheses(actual, row, expected)
        np.testing.assert_array_equal(one.tokens[row, 0], actual.tokens[row, 0])
        assert one.scores[row, 0] == actual.scores[row, 0]


# Against the module docstring of `beam_search`, as plain Python.


@pytest.mark.parametrize(
    ("beams", "results", "penalty", "alpha", "finish_from"),
    [
        (2, 1, "length", 1.0, "best_k"),
        (3, 3, "none", 0.6, "best_k"),
        (3, 2, "gnmt", -1.0, "best_k"),
        (4, 4, "gnmt", 0.6, "best_2k"),
        (4, 1, "length", -0.5, "best_k"),
        (5, 1, "length", 2.0, "best_2k"),
    ],
)
def test_results_and_number_of_steps_are_those_of_the_specification(
    beams, results, penalty, alpha, finish_from
):
    tables = random_tables(1, 24, 6, 6)
    tables[::3, :, EOS] += 2.0  # some sentences end early
    tables[1::3, :, EOS] -= 1.0
    limits = np.array([6, 5, 6, 4] * 6)
    steps = []
    actual = search(
        tables,
        jnp.asarray(limits),
        num_beams=beams,
        max_length=6,
        num_results=results,
        penalty=penalty,
        alpha=alpha,
        finish_from=finish_from,
        on_step=functools.partial(steps.append, None),
    )
    jax.effects_barrier()
    longest = 0
    for row, table in enumerate(tables):
        expected, needed = search_oracle.beam(
            log_probs_of(table), int(limits[row]), beams, results, penalty, alpha, finish_from
        )
        assert_hypotheses(actual, row, expected)
        longest = max(longest, needed)
    assert len(steps) == longest


def test_one_beam_is_greedy_search_with_any_penalty():
    penalty, alpha = "gnmt", -1.0
    tables = random_tables(2, 24, 6, 6)
    actual = search(
        tables, jnp.full(24, 6), num_beams=1, max_length=6, penalty=penalty, alpha=alpha
    )
    lengths = set()
    for row, table in enumerate(tables):
        tokens, log_prob = search_oracle.greedy(log_probs_of(table), 6)
        score = log_prob / search_oracle.penalty_of(len(tokens), penalty, alpha)
        assert_hypotheses(actual, row, [(score, log_prob, tokens)])
        lengths.add(len(tokens))
    assert len(lengths) > 2


# Properties of every result.


@pytest.fixture(scope="module")
def mixed():
    """(tables, limits, hypotheses) of sentences with different limits, one of them 0."""
    tables = random_tables(4, 12, 6, 5)
    limits = np.array([5, 0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1])
    actual = search(tables, jnp.asarray(limits), num_beams=3, max_length=5)
    return tables, limits, jax.tree.map(np.asarray, actual)


def test_a_hypothesis_is_new_and_ends_with_eos_within_its_limit(mixed):
    """Padding and BOS are never produced, though they are the most probable in these tables."""
    tables, limits, actual = mixed
    assert (tables.argmax(-1) < 2).mean() > 0.7
    assert not (actual.tokens == 1).any()
    assert actual.tokens.shape == (12, 3, 5)
    for row, limit in enumerate(limits):
        for words, score in zip(actual.tokens[row], actual.scores[row], strict=True):
            if score > NEG_INF:
                (ends,) = np.flatnonzero(words == EOS)
                assert ends < limit
                assert not words[ends + 1 :].any()
                assert words[: ends + 1].all()
            else:
                assert not words.any()
        found = [tuple(words) for words in actual.tokens[row] if words.any()]
        assert len(set(found)) == len(found)


def test_at_the_limit_eos_is_forced_with_the_probability_of_the_model(mixed):
    """A sentence with limit 0 has no results."""
    tables, _, actual = mixed
    for row in (2, 11):
        np.testing.assert_array_equal(actual.tokens[row, 0], [EOS, 0, 0, 0, 0])
        expected = log_probs_of(tables[row])(())[EOS]
        np.testing.assert_allclose(actual.log_probs[row, 0], expected, rtol=1e-5)
        assert (actual.scores[row, 1:] == np.float32(NEG_INF)).all()
    assert not actual.tokens[1].any()
    assert (actual.scores[1] == np.float32(NEG_INF)).all()
    assert (actual.log_probs[1] == np.float32(NEG_INF)).all()


def test_scores_are_best_first_and_are_log_prob_over_penalty(mixed):
    tables, _, actual = mixed
    assert (np.diff(actual.scores, axis=1) <= 0).all()
    checked = 0
    for row, k in zip(*np.nonzero(actual.scores > NEG_INF / 2), strict=True):
        words = [int(word) for word in actual.tokens[row, k] if word]
        log_probs = log_probs_of(tables[row])
        total = sum(log_probs(words[:t])[word] for t, word in enumerate(words))
        np.testing.assert_allclose(actual.log_probs[row, k], total, rtol=1e-5)
        penalty = ((5 + len(words)) / 6) ** 0.6
        np.testing.assert_allclose(actual.scores[row, k], total / penalty, rtol=1e-5)
        checked += 1
    assert checked > 20


def test_the_results_of_a_sentence_do_not_depend_on_the_rest_of_the_batch(mixed):
    tables, limits, actual = mixed
    for row in (0, 1, 4, 7):
        alone = search(
            tables[row : row + 1], jnp.asarray(limits[row : row + 1]), num_beams=3, max_length=5
        )
        np.testing.assert_array_equal(alone.tokens[0], actual.tokens[row])
        np.testing.assert_allclose(alone.scores[0], actual.scores[row], rtol=1e-6)


def test_dropping_finished_sentences_changes_no_result():
    tables = random_tables(8, MIN_BATCH_TO_SHRINK + 2, 5, 5)
    limits = jnp.array([5, 0, 1, 2, 3, 4, 5, 2, 1, 3, 2, 1, 0, 2, 3, 1, 2, 4])
    prefix = np.zeros((limits.size, 5), np.int32)
    prefix[::3, 0], prefix[::5, 1] = B, A
    options = {"num_beams": 4, "max_length": 5, "num_groups": 2}
    options["constraints"] = Constraints(block_ngrams=1, prefix=jnp.array(prefix))
    actual = search(tables, limits, shrink=True, **options)
    assert len(np.unique(actual.scores)) > 20
    jax.tree.map(np.testing.assert_array_equal, actual, search(tables, limits, **options))


def test_a_larger_max_length_changes_no_result(mixed):
    tables, limits, actual = mixed
    wider = search(tables, jnp.asarray(limits), num_beams=3, max_length=9)
    np.testing.assert_array_equal(wider.tokens[..., :5], actual.tokens)
    assert not wider.tokens[..., 5:].any()
    np.testing.assert_array_equal(wider.scores, actual.scores)


# Penalties and limits.


def test_penalties_by_hand():
    for penalty, alpha, length, expected in (
        ("gnmt", 1.0, 7, 2.0),
        ("gnmt", 0.6, 1, 1.0),
        ("gnmt", 2.0, 13, 9.0),
        ("gnmt", -1.0, 7, 0.5),
        ("gnmt", 0.0, 50, 1.0),
        ("length", 0.5, 9, 3.0),
        ("length", 1.0, 4, 4.0),
        ("none", 0.6, 9, 1.0),
    ):
        actual = float(length_penalty(jnp.array(length), penalty, alpha))
        assert actual == pytest.approx(expected, rel=1e-6), (penalty, alpha, length)


def test_an_unknown_penalty_raises_an_error_that_names_the_known_ones():
    with pytest.raises(InputError, match="'wu' is unknown; choose 'gnmt', 'length' or 'none'"):
        length_penalty(jnp.array(3), "wu", 0.6)


def test_length_limits_are_source_plus_fifty_or_a_fixed_number():
    lengths = jnp.array([3, 20])
    np.testing.assert_array_equal(output_length_limits(lengths, DecodeConfig()), [53, 70])
    np.testing.assert_array_equal(
        output_length_limits(lengths, DecodeConfig(extra_length=5)), [8, 25]
    )
    np.testing.assert_array_equal(output_length_limits(lengths, DecodeConfig(max_length=7)), [7, 7])
