# SPDX-License-Identifier: Apache-2.0
"""What may follow: by hand, and by looking at every translation there is."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from test_decoding import EOS, A, B, C, assert_found, log_probs_of, random_tables, search

from transformer.decoding.constraints import NEVER, Constraints, next_log_probs
from transformer.decoding.sampling import sample

FORCED = [(), (B,), (C, A), (A, A, A), (B, C, B, C, B, C), (C,)]
"""What each of six translations begins with; the fifth is longer than any translation may be."""


def padded(prefixes, width):
    """As the rows of an array."""
    rows = np.zeros((len(prefixes), width), np.int32)
    for row, prefix in zip(rows, prefixes, strict=True):
        row[: min(len(prefix), width)] = prefix[:width]
    return jnp.asarray(rows)


def allowed(produced, limit, prefix=None, **rules):
    """The words that may follow what one hypothesis holds."""
    log_probs = next_log_probs(
        jnp.zeros((1, 1, 6)),
        padded([produced], 7)[:, None],
        jnp.array(len(produced)),
        jnp.array([limit]),
        Constraints(prefix=None if prefix is None else padded([prefix], 7), **rules),
    )
    return set(np.flatnonzero(np.asarray(log_probs)[0, 0] > NEVER).tolist())


# By hand: the words are the end, a, b and c.


@pytest.mark.parametrize(
    ("produced", "limit", "rules", "expected"),
    [
        ((), 7, {}, {EOS, A, B, C}),
        ((A, B), 3, {}, {EOS}),
        # Minimum length: the end token not before two tokens.
        ((), 7, {"min_length": 2}, {A, B, C}),
        ((A,), 7, {"min_length": 2}, {A, B, C}),
        ((A, B), 7, {"min_length": 2}, {EOS, A, B, C}),
        ((A,), 2, {"min_length": 5}, {EOS}),
        # N-grams: "a b" has come, so b may not follow a; "b a" may come once more only after b.
        ((A, B, A), 7, {"block_ngrams": 2}, {EOS, A, C}),
        ((A, B), 7, {"block_ngrams": 2}, {EOS, A, B, C}),
        ((A, A), 7, {"block_ngrams": 2}, {EOS, B, C}),
        ((A, B), 7, {"block_ngrams": 1}, {EOS, C}),
        ((A, B, C, A, B), 7, {"block_ngrams": 3}, {EOS, A, B}),
        ((A, B, C, A), 7, {"block_ngrams": 3}, {EOS, A, B, C}),
        ((A, B, C), 7, {"block_ngrams": 9}, {EOS, A, B, C}),
        # Prefix: its tokens one by one, whatever else is asked, but within the limit.
        ((), 7, {"prefix": (B, B)}, {B}),
        ((B,), 7, {"prefix": (B, B), "block_ngrams": 1, "min_length": 3}, {B}),
        ((B, B), 7, {"prefix": (B, B), "block_ngrams": 1}, {EOS, A, C}),
        ((B, B), 3, {"prefix": (B, B, B)}, {EOS}),
        # Nothing else is left.
        ((A, B, C), 7, {"block_ngrams": 1, "min_length": 5}, {EOS}),
    ],
)
def test_what_may_follow_by_hand(produced, limit, rules, expected):
    assert allowed(produced, limit, **rules) == expected


def test_what_stands_behind_a_hypothesis_is_not_looked_at():
    """Its array has room for more, and in it may be anything."""
    produced = jnp.array([[[A, B, C, B, C, B]]])
    log_probs = next_log_probs(
        jnp.zeros((1, 1, 6)),
        produced,
        jnp.array(1),
        jnp.array([6]),
        Constraints(block_ngrams=2),
    )
    assert (np.asarray(log_probs)[0, 0, 2:] > NEVER).all()


def test_log_probabilities_are_the_models_own_whatever_is_forbidden():
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
    assert (np.asarray(log_probs)[0, 0, [0, 1, EOS, B]] == np.float32(NEVER)).all()


# By brute force: three words and at most four tokens make 1 + 3 + 9 + 27 translations.


@pytest.mark.parametrize(
    ("rules", "forced"),
    [
        ({"min_length": 2}, None),
        ({"min_length": 9}, None),
        ({"block_ngrams": 1}, None),
        ({"block_ngrams": 2}, None),
        ({}, FORCED),
        ({"min_length": 2, "block_ngrams": 2}, FORCED),
    ],
)
def test_with_room_for_all_the_search_finds_every_translation_that_is_allowed(rules, forced):
    tables = random_tables(1, 6, 6, 4)
    prefix = None if forced is None else padded(forced, 4)
    constraints = Constraints(prefix=prefix, **rules)
    found = search(tables, jnp.full(6, 4), beams=40, max_length=4, constraints=constraints)

    def is_allowed(words, begin):
        *body, _ = words
        blocked = any(
            oracle.comes_again(tuple(body[:end]), rules["block_ngrams"])
            for end in range(len(begin) + 1, len(body) + 1)
            if "block_ngrams" in rules
        )
        long_enough = len(body) >= rules.get("min_length", 0) or len(words) == 4
        return long_enough and not blocked and tuple(body[: len(begin)]) == begin

    for row, table in enumerate(tables):
        begin = () if forced is None else forced[row][:3]
        every = list(oracle.every_translation(log_probs_of(table), 4))
        assert len(every) == 40
        kept = [(words, log_prob) for words, log_prob in every if is_allowed(words, begin)]
        assert 0 < len(kept) < 40 or not (begin or rules), "or this shows little"
        assert_found(found, row, oracle.best_of(kept, "gnmt", 0.6))


# Against the text at the head of the file, in plain Python.


@pytest.mark.parametrize(
    ("beams", "rules"),
    [(1, {"block_ngrams": 2}), (2, {"min_length": 4}), (3, {"min_length": 3, "block_ngrams": 1})],
)
def test_few_beams_find_what_the_description_says(beams, rules):
    """With the last rules every word is blocked at the fourth token at the latest."""
    tables = random_tables(2, 6, 6, 6)
    limits = [6, 5, 6, 4, 6, 3]
    constraints = Constraints(prefix=padded(FORCED, 6), **rules)
    found = search(
        tables, jnp.array(limits), beams=beams, max_length=6, constraints=constraints, results=beams
    )
    for row, table in enumerate(tables):
        expected, _ = oracle.beam(
            *(log_probs_of(table), limits[row], beams, beams, "gnmt", 0.6),
            forced=FORCED[row],
            **rules,
        )
        if beams == 1:
            words, log_prob = oracle.greedy(
                log_probs_of(table), limits[row], forced=FORCED[row], **rules
            )
            expected = oracle.best_of([(words, log_prob)], "gnmt", 0.6)
        assert_found(found, row, expected)


def test_a_search_in_which_all_is_blocked_ends_where_nothing_may_follow():
    """Two words that may come once each, and a minimum of five tokens."""
    tables = random_tables(3, 4, 5, 6)
    constraints = Constraints(min_length=5, block_ngrams=1)
    found = search(tables, jnp.full(4, 6), beams=4, max_length=6, constraints=constraints)
    for row in np.asarray(found.tokens):
        assert {tuple(words[words != 0]) for words in row if words.any()} == {
            (A, B, EOS),
            (B, A, EOS),
        }


def test_samples_keep_the_same_rules():
    tables = jnp.asarray(random_tables(4, 6, 6, 4))
    limits = np.array([6, 6, 6, 6, 4, 3])

    def step(tokens, state):
        state = jnp.where(tokens == 1, 0, state * 6 + tokens + 1)
        place = jnp.minimum(state, tables.shape[1] - 1)
        return jnp.take_along_axis(tables, place[..., None], axis=1), state

    found = jax.jit(
        lambda: sample(
            step,
            jnp.zeros((6, 50), jnp.int32),
            jnp.asarray(limits),
            jax.random.split(jax.random.key(0), 6),
            samples=50,
            max_length=6,
            constraints=Constraints(3, 2, padded(FORCED, 6)),
        )
    )()
    lengths = set()
    for row, begin in enumerate(FORCED):
        for words in np.asarray(found.tokens[row]):
            *body, end = (int(word) for word in words if word)
            begin = begin[: limits[row] - 1]
            assert end == EOS
            assert tuple(body[: len(begin)]) == begin
            assert len(body) >= min(3, limits[row] - 1)
            for stop in range(len(begin) + 1, len(body) + 1):
                assert not oracle.comes_again(tuple(body[:stop]), 2)
            lengths.add(len(body))
    assert lengths == {2, 3, 4, 5}
