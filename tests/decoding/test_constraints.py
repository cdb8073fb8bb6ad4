# SPDX-License-Identifier: Apache-2.0
"""Which tokens may follow: by hand, by brute force, and against the specification."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import search_oracle
from search_tables import EOS, A, B, C, assert_hypotheses, log_probs_of, random_tables, search

from transformer.decoding.constraints import NEG_INF, Constraints, next_log_probs
from transformer.decoding.sampling import sample

FORCED = [(), (B,), (C, A), (A, A, A), (B, C, B, C, B, C), (C,)]
"""Prefixes of six translations; the fifth is longer than the length limit."""


def padded(prefixes, width):
    """Prefixes as a padded array."""
    rows = np.zeros((len(prefixes), width), np.int32)
    for row, prefix in zip(rows, prefixes, strict=True):
        row[: min(len(prefix), width)] = prefix[:width]
    return jnp.asarray(rows)


def allowed(tokens, limit, prefix=None, **rules):
    """The words that may follow one hypothesis."""
    log_probs = next_log_probs(
        jnp.zeros((1, 1, 6)),
        padded([tokens], 7)[:, None],
        jnp.array(len(tokens)),
        jnp.array([limit]),
        Constraints(prefix=None if prefix is None else padded([prefix], 7), **rules),
    )
    return set(np.flatnonzero(np.asarray(log_probs)[0, 0] > NEG_INF).tolist())


# By hand: the words are EOS, a, b and c.


ALLOWED = [
    ((), 7, {}, {EOS, A, B, C}),
    ((A, B), 3, {}, {EOS}),
    # Minimum length: no EOS before two tokens.
    ((), 7, {"min_length": 2}, {A, B, C}),
    ((A,), 7, {"min_length": 2}, {A, B, C}),
    ((A, B), 7, {"min_length": 2}, {EOS, A, B, C}),
    ((A,), 2, {"min_length": 5}, {EOS}),
    # N-grams: "a b" has occurred, so b may not follow a again.
    ((A, B, A), 7, {"block_ngrams": 2}, {EOS, A, C}),
    ((A, B), 7, {"block_ngrams": 2}, {EOS, A, B, C}),
    ((A, A), 7, {"block_ngrams": 2}, {EOS, B, C}),
    ((A, B), 7, {"block_ngrams": 1}, {EOS, C}),
    ((A, B, C, A, B), 7, {"block_ngrams": 3}, {EOS, A, B}),
    ((A, B, C, A), 7, {"block_ngrams": 3}, {EOS, A, B, C}),
    ((A, B, C), 7, {"block_ngrams": 9}, {EOS, A, B, C}),
    # Prefix: its tokens one by one, before all other rules but the limit.
    ((), 7, {"prefix": (B, B)}, {B}),
    ((B,), 7, {"prefix": (B, B), "block_ngrams": 1, "min_length": 3}, {B}),
    ((B, B), 7, {"prefix": (B, B), "block_ngrams": 1}, {EOS, A, C}),
    ((B, B), 3, {"prefix": (B, B, B)}, {EOS}),
    # The rules leave no other token.
    ((A, B, C), 7, {"block_ngrams": 1, "min_length": 5}, {EOS}),
]
"""Tokens so far, the limit, the rules, and the words that may follow."""


def test_tokens_that_may_follow_by_hand():
    for tokens, limit, rules, expected in ALLOWED:
        assert allowed(tokens, limit, **rules) == expected, (tokens, limit, rules)


def test_positions_after_the_end_of_a_hypothesis_are_ignored():
    """The array is longer than the hypothesis and may contain anything there."""
    tokens = jnp.array([[[A, B, C, B, C, B]]])
    log_probs = next_log_probs(
        jnp.zeros((1, 1, 6)),
        tokens,
        jnp.array(1),
        jnp.array([6]),
        Constraints(block_ngrams=2),
    )
    assert (np.asarray(log_probs)[0, 0, 2:] > NEG_INF).all()


def test_log_probabilities_are_not_renormalized_over_the_allowed_tokens():
    logits = random_tables(0, 1, 6, 1)[:, None, 0]
    log_probs = next_log_probs(
        jnp.asarray(logits),
        jnp.array([[[A, B, A, 0, 0, 0]]]),
        jnp.array(3),
        jnp.array([6]),
        Constraints(min_length=4, block_ngrams=2),
    )
    expected = oracle.log_softmax(logits[0, 0].astype(np.float64))
    np.testing.assert_allclose(log_probs[0, 0, [A, C]], expected[[A, C]], rtol=1e-6)
    assert (np.asarray(log_probs)[0, 0, [0, 1, EOS, B]] == np.float32(NEG_INF)).all()


# By brute force: three words and at most four tokens make 1 + 3 + 9 + 27 translations.


@pytest.mark.parametrize(
    ("rules", "forced"),
    [
        ({"min_length": 2}, None),
        ({"block_ngrams": 1}, None),
        ({"min_length": 2, "block_ngrams": 2}, FORCED),
    ],
)
def test_an_exhaustive_search_returns_exactly_the_allowed_translations(rules, forced):
    tables = random_tables(1, 6, 6, 4)
    prefix = None if forced is None else padded(forced, 4)
    constraints = Constraints(prefix=prefix, **rules)
    actual = search(tables, jnp.full(6, 4), num_beams=40, max_length=4, constraints=constraints)

    def is_allowed(words, begin):
        *body, _ = words
        blocked = any(
            search_oracle.comes_again(tuple(body[:end]), rules["block_ngrams"])
            for end in range(len(begin) + 1, len(body) + 1)
            if "block_ngrams" in rules
        )
        long_enough = len(body) >= rules.get("min_length", 0) or len(words) == 4
        return long_enough and not blocked and tuple(body[: len(begin)]) == begin

    for row, table in enumerate(tables):
        begin = () if forced is None else forced[row][:3]
        every = list(search_oracle.every_translation(log_probs_of(table), 4))
        assert len(every) == 40
        log_probs = log_probs_of(table)
        free = sum(log_probs(begin[:end])[word] for end, word in enumerate(begin))
        kept = [(words, log_prob - free) for words, log_prob in every if is_allowed(words, begin)]
        assert 0 < len(kept) < 40 or not (begin or rules), "otherwise this test shows little"
        assert_hypotheses(actual, row, search_oracle.best_of(kept, "gnmt", 0.6))


# Against the module docstring of `constraints`, as plain Python.


@pytest.mark.parametrize(
    ("beams", "rules"),
    [(1, {"block_ngrams": 2, "min_length": 4}), (3, {"min_length": 3, "block_ngrams": 1})],
)
def test_constrained_results_are_those_of_the_specification(beams, rules):
    """With the last rules every word is blocked at the fourth token at the latest."""
    tables = random_tables(2, 6, 6, 6)
    limits = [6, 5, 6, 4, 6, 3]
    constraints = Constraints(prefix=padded(FORCED, 6), **rules)
    actual = search(
        tables,
        jnp.array(limits),
        num_beams=beams,
        max_length=6,
        constraints=constraints,
        num_results=beams,
    )
    for row, table in enumerate(tables):
        expected, _ = search_oracle.beam(
            *(log_probs_of(table), limits[row], beams, beams, "gnmt", 0.6),
            forced=FORCED[row],
            **rules,
        )
        if beams == 1:
            words, log_prob = search_oracle.greedy(
                log_probs_of(table), limits[row], forced=FORCED[row], **rules
            )
            expected = search_oracle.best_of([(words, log_prob)], "gnmt", 0.6)
        assert_hypotheses(actual, row, expected)


def test_if_every_other_token_is_blocked_eos_follows_before_the_minimum_length():
    """Two words that may occur once each, and a minimum of five tokens."""
    tables = random_tables(3, 4, 5, 6)
    constraints = Constraints(min_length=5, block_ngrams=1)
    actual = search(tables, jnp.full(4, 6), num_beams=4, max_length=6, constraints=constraints)
    for row in np.asarray(actual.tokens):
        assert {tuple(words[words != 0]) for words in row if words.any()} == {
            (A, B, EOS),
            (B, A, EOS),
        }


def test_samples_obey_the_same_constraints():
    tables = jnp.asarray(random_tables(4, 6, 6, 4))
    limits = np.array([6, 6, 6, 6, 4, 3])

    def step(tokens, state):
        state = jnp.where(tokens == 1, 0, state * 6 + tokens + 1)
        index = jnp.minimum(state, tables.shape[1] - 1)
        return jnp.take_along_axis(tables, index[..., None], axis=1), state

    actual = jax.jit(
        lambda: sample(
            step,
            jnp.zeros((6, 50), jnp.int32),
            jnp.asarray(limits),
            jax.random.split(jax.random.key(0), 6),
            num_samples=50,
            max_length=6,
            constraints=Constraints(3, 2, padded(FORCED, 6)),
        )
    )()
    lengths = set()
    for row, begin in enumerate(FORCED):
        for words in np.asarray(actual.tokens[row]):
            *body, end = (int(word) for word in words if word)
            begin = begin[: limits[row] - 1]
            assert end == EOS
            assert tuple(body[: len(begin)]) == begin
            assert len(body) >= min(3, limits[row] - 1)
            for stop in range(len(begin) + 1, len(body) + 1):
                assert not search_oracle.comes_again(tuple(body[:stop]), 2)
            lengths.add(len(body))
    assert lengths == {2, 3, 4, 5}
