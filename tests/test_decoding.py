# SPDX-License-Identifier: Apache-2.0
"""Beam search over tables of probabilities: by hand, by brute force, and as its own text says."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import DecodeConfig
from transformer.decoding.beam_search import NEVER, beam_search, length_penalty, search_limits
from transformer.decoding.constraints import Constraints
from transformer.decoding.decode_loop import LEAST
from transformer.errors import InputError

EOS, A, B, C = 2, 3, 4, 5


def node(prefix, vocabulary):
    """The row of a table that belongs to a prefix."""
    state = 0
    for word in prefix:
        state = state * vocabulary + word + 1
    return state


def random_tables(seed, rows, vocabulary, depth, scale=1.5):
    """Logits of every next word after every prefix of every sentence, [B, prefixes, V]."""
    prefixes = sum(vocabulary**length for length in range(depth))
    logits = np.random.default_rng(seed).standard_normal((rows, prefixes, vocabulary)) * scale
    logits[..., :2] += 3.0  # padding and start are tempting, and forbidden
    return logits.astype(np.float32)


STATIC = (
    *("beams", "max_length", "results", "penalty", "alpha", "groups", "diversity", "on_step"),
    "retire",
)


@functools.partial(jax.jit, static_argnames=STATIC)
def search(tables, limits, *, beams, max_length, on_step=None, retire=False, **options):
    """`beam_search` over tables; its cache has them and the prefix that each beam has read."""
    vocabulary = tables.shape[-1]

    def step(tokens, cache):
        tables, state = cache
        if on_step is not None:
            jax.debug.callback(on_step)
        state = jnp.where(tokens == 1, 0, state * vocabulary + tokens + 1)
        place = jnp.minimum(state, tables.shape[1] - 1)
        return jnp.take_along_axis(tables, place[..., None], axis=1), (tables, state)

    def reorder(cache, parents):
        tables, state = cache
        return tables, jnp.take_along_axis(state, parents, axis=1)

    def take(cache, sentences):
        return jax.tree.map(lambda leaf: leaf[sentences], cache)

    cache = tables, jnp.zeros((tables.shape[0], beams), jnp.int32)
    options |= {"beams": beams, "max_length": max_length, "take": take if retire else None}
    return beam_search(step, reorder, cache, limits, **options)


def log_probs_of(table):
    """The oracle's view of one sentence's table."""

    def log_probs(prefix):
        return oracle.log_softmax(table[node(prefix, table.shape[-1])].astype(np.float64))

    return log_probs


def assert_found(found, row, expected):
    """The row holds exactly these (score, log P, tokens), best first, and then empty places."""
    tokens, scores, log_probs = (
        np.asarray(field[row]) for field in (found.tokens, found.scores, found.log_probs)
    )
    for k, (score, log_prob, words) in enumerate(expected):
        assert tuple(tokens[k, : len(words)]) == tuple(words)
        assert not tokens[k, len(words) :].any()
        np.testing.assert_allclose(scores[k], score, rtol=1e-5)
        np.testing.assert_allclose(log_probs[k], log_prob, rtol=1e-5)
    assert (scores[len(expected) :] == np.float32(NEVER)).all()
    assert not tokens[len(expected) :].any()


# By hand: three words (end, a, b), at most three tokens.

HAND = {
    (): (0.1, 0.5, 0.4),
    (A,): (0.35, 0.4, 0.25),
    (B,): (0.9, 0.05, 0.05),
    (A, A): (0.5, 0.3, 0.2),
    (A, B): (0.2, 0.4, 0.4),
    (B, A): (0.1, 0.1, 0.8),
    (B, B): (0.1, 0.1, 0.8),
}
"""The probabilities of end, a and b after each prefix."""


def by_hand(**options):
    """The search over the table above, and how many steps it took."""
    table = np.full((1, 31, 5), -1e9, np.float32)
    for prefix, probabilities in HAND.items():
        table[0, node(prefix, 5), 2:] = np.log(probabilities)
    steps = []
    found = search(
        jnp.asarray(table),
        jnp.array([3]),
        max_length=3,
        penalty="none",
        on_step=functools.partial(steps.append, None),
        **options,
    )
    jax.effects_barrier()
    return found, len(steps)


def entry(probability, *words):
    """One expected hypothesis where nothing is divided by a length."""
    return math.log(probability), math.log(probability), words


def test_one_beam_takes_the_likelier_word_and_is_led_astray():
    """a (.5), a (.4), and at the limit the end (.5), though b end has .36."""
    found, steps = by_hand(beams=1)
    assert_found(found, 0, [entry(0.1, A, A, EOS)])
    assert steps == 3


def test_two_beams_find_the_best_and_look_no_further_than_their_two_best_extensions():
    """Second step: b end .36, a a .2, a end .175: the last is third, so it does not finish."""
    found, steps = by_hand(beams=2)
    assert_found(found, 0, [entry(0.36, B, EOS), entry(0.1, A, A, EOS)])
    assert steps == 3


def test_for_one_result_two_beams_stop_when_nothing_can_beat_it():
    """After two steps the best that lives has .2, which can only fall below .36."""
    found, steps = by_hand(beams=2, results=1)
    assert_found(found, 0, [entry(0.36, B, EOS)])
    assert steps == 2


def test_three_beams_are_done_when_three_have_finished_and_none_that_lives_is_better():
    """After two steps the three that finished have .36, .175 and .1; the best that lives has .2,
    which is less than the first of them, but more than the last.
    """
    finished = [entry(0.36, B, EOS), entry(0.175, A, EOS), entry(0.1, EOS)]
    found, steps = by_hand(beams=3, results=1)
    assert_found(found, 0, finished)
    assert steps == 2
    _, steps = by_hand(beams=3, results=3)
    assert steps == 3


def test_bad_hypotheses_that_end_early_do_not_stop_the_search_before_a_good_one_ends():
    """The one word that follows is all but certain at every place, and the end token, always among
    the few best, all but impossible: each finishes in its turn, worth next to nothing.
    """
    tables = np.full((1, sum(5**length for length in range(6)), 5), -20.0, np.float32)
    tables[..., EOS] = -9.0
    for length in range(6):
        word = A if length < 5 else EOS
        tables[:, node([A] * length, 5), word] = 0.0
    found = search(jnp.asarray(tables), jnp.array([6]), beams=2, max_length=6, results=1)
    assert found.tokens[0, 0].tolist() == [A, A, A, A, A, EOS]
    assert float(found.log_probs[0, 0]) > -0.01


# Against every translation there is.

PENALTIES = [("gnmt", 0.6), ("gnmt", 0.0), ("gnmt", -1.0), ("length", 1.0), ("none", 0.6)]


@pytest.mark.parametrize(("penalty", "alpha"), PENALTIES)
def test_with_room_for_all_the_search_is_brute_force_and_one_result_is_its_best(penalty, alpha):
    """Two words and at most four tokens make 1 + 2 + 4 + 8 translations; K is 16."""
    tables = random_tables(0, 20, 5, 4)
    limits = jnp.array([4] * 16 + [3, 3, 2, 1])
    options = {"beams": 16, "max_length": 4, "penalty": penalty, "alpha": alpha}
    found = search(tables, limits, **options)
    one = search(tables, limits, results=1, **options)
    for row, table in enumerate(tables):
        every = oracle.every_translation(log_probs_of(table), int(limits[row]))
        expected = oracle.best_of(every, penalty, alpha)
        assert len(expected) == 2 ** int(limits[row]) - 1
        assert_found(found, row, expected)
        np.testing.assert_array_equal(one.tokens[row, 0], found.tokens[row, 0])
        assert one.scores[row, 0] == found.scores[row, 0]


# Against the text at the head of the file, in plain Python.


@pytest.mark.parametrize(
    ("beams", "results", "penalty", "alpha"),
    [
        (1, 1, "gnmt", 0.6),
        (2, 2, "gnmt", 0.6),
        (2, 1, "length", 1.0),
        (3, 3, "none", 0.6),
        (3, 2, "gnmt", -1.0),
        (4, 1, "gnmt", 0.6),
        (4, 1, "length", -0.5),
        (5, 1, "length", 2.0),
    ],
)
def test_few_beams_find_what_the_description_says_in_as_many_steps(beams, results, penalty, alpha):
    tables = random_tables(1, 24, 6, 6)
    tables[::3, :, EOS] += 2.0  # some sentences end early
    tables[1::3, :, EOS] -= 1.0
    limits = np.array([6, 5, 6, 4] * 6)
    steps = []
    found = search(
        tables,
        jnp.asarray(limits),
        beams=beams,
        max_length=6,
        results=results,
        penalty=penalty,
        alpha=alpha,
        on_step=functools.partial(steps.append, None),
    )
    jax.effects_barrier()
    longest = 0
    for row, table in enumerate(tables):
        expected, needed = oracle.beam(
            log_probs_of(table), int(limits[row]), beams, results, penalty, alpha
        )
        assert_found(found, row, expected)
        longest = max(longest, needed)
    assert len(steps) == longest


@pytest.mark.parametrize(("penalty", "alpha"), PENALTIES[1:4])
def test_one_beam_is_greedy_search_whatever_the_penalty(penalty, alpha):
    tables = random_tables(2, 24, 6, 6)
    found = search(tables, jnp.full(24, 6), beams=1, max_length=6, penalty=penalty, alpha=alpha)
    lengths = set()
    for row, table in enumerate(tables):
        tokens, log_prob = oracle.greedy(log_probs_of(table), 6)
        score = log_prob / oracle.penalty_of(len(tokens), penalty, alpha)
        assert_found(found, row, [(score, log_prob, tokens)])
        lengths.add(len(tokens))
    assert len(lengths) > 2


def test_the_search_stops_at_once_where_all_has_been_said():
    """The end token is nearly certain at every place, so two hypotheses finish in two steps."""
    tables = random_tables(3, 4, 6, 6)
    tables[..., EOS] += 20.0
    steps = []
    found = search(
        tables,
        jnp.full(4, 6),
        beams=2,
        max_length=6,
        on_step=functools.partial(steps.append, None),
    )
    jax.effects_barrier()
    assert (np.asarray(found.tokens)[:, 0, 0] == EOS).all()
    assert len(steps) == 2


# What holds of every result.


@pytest.fixture(scope="module")
def mixed():
    """(tables, limits, found): sentences of many limits, one of them 0."""
    tables = random_tables(4, 12, 6, 5)
    limits = np.array([5, 0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1])
    found = search(tables, jnp.asarray(limits), beams=3, max_length=5)
    return tables, limits, jax.tree.map(np.asarray, found)


def test_a_hypothesis_ends_with_the_end_token_within_its_limit(mixed):
    _, limits, found = mixed
    assert found.tokens.shape == (12, 3, 5)
    for row, limit in enumerate(limits):
        for words, score in zip(found.tokens[row], found.scores[row], strict=True):
            if score > NEVER:
                (ends,) = np.flatnonzero(words == EOS)
                assert ends < limit
                assert not words[ends + 1 :].any()
                assert words[: ends + 1].all()
            else:
                assert not words.any()


def test_at_the_limit_the_end_token_is_forced_at_its_own_probability(mixed):
    tables, _, found = mixed
    for row in (2, 11):
        np.testing.assert_array_equal(found.tokens[row, 0], [EOS, 0, 0, 0, 0])
        expected = log_probs_of(tables[row])(())[EOS]
        np.testing.assert_allclose(found.log_probs[row, 0], expected, rtol=1e-5)
        assert (found.scores[row, 1:] == np.float32(NEVER)).all()


def test_a_sentence_with_limit_zero_is_not_touched(mixed):
    _, _, found = mixed
    assert not found.tokens[1].any()
    assert (found.scores[1] == np.float32(NEVER)).all()
    assert (found.log_probs[1] == np.float32(NEVER)).all()


def test_padding_and_start_token_are_never_produced(mixed):
    """Though they have the highest probability almost everywhere in these tables."""
    tables, _, found = mixed
    assert (tables.argmax(-1) < 2).mean() > 0.7
    assert not (found.tokens == 1).any()
    assert not found.tokens[found.scores == np.float32(NEVER)].any()


def test_scores_are_best_first_and_are_log_prob_over_penalty(mixed):
    tables, _, found = mixed
    assert (np.diff(found.scores, axis=1) <= 0).all()
    checked = 0
    for row, k in zip(*np.nonzero(found.scores > NEVER / 2), strict=True):
        words = [int(word) for word in found.tokens[row, k] if word]
        log_probs = log_probs_of(tables[row])
        total = sum(log_probs(words[:t])[word] for t, word in enumerate(words))
        np.testing.assert_allclose(found.log_probs[row, k], total, rtol=1e-5)
        penalty = ((5 + len(words)) / 6) ** 0.6
        np.testing.assert_allclose(found.scores[row, k], total / penalty, rtol=1e-5)
        checked += 1
    assert checked > 20


def test_no_hypothesis_is_found_twice(mixed):
    _, _, found = mixed
    for row in range(12):
        words = [tuple(w) for w in found.tokens[row] if w.any()]
        assert len(set(words)) == len(words)


def test_a_sentence_is_searched_as_if_it_were_alone(mixed):
    tables, limits, found = mixed
    for row in (0, 1, 4, 7):
        alone = search(
            tables[row : row + 1], jnp.asarray(limits[row : row + 1]), beams=3, max_length=5
        )
        np.testing.assert_array_equal(alone.tokens[0], found.tokens[row])
        np.testing.assert_allclose(alone.scores[0], found.scores[row], rtol=1e-6)


def test_that_sentences_retire_changes_nothing():
    tables = random_tables(8, LEAST + 2, 5, 5)
    limits = jnp.array([5, 0, 1, 2, 3, 4, 5, 2, 1, 3, 2, 1, 0, 2, 3, 1, 2, 4])
    prefix = np.zeros((limits.size, 5), np.int32)
    prefix[::3, 0], prefix[::5, 1] = B, A
    options = {"beams": 4, "max_length": 5, "groups": 2}
    options["constraints"] = Constraints(block_ngrams=1, prefix=jnp.array(prefix))
    found = search(tables, limits, retire=True, **options)
    assert len(np.unique(found.scores)) > 20
    jax.tree.map(np.testing.assert_array_equal, found, search(tables, limits, **options))


def test_room_beyond_the_limits_changes_nothing(mixed):
    tables, limits, found = mixed
    wider = search(tables, jnp.asarray(limits), beams=3, max_length=9)
    np.testing.assert_array_equal(wider.tokens[..., :5], found.tokens)
    assert not wider.tokens[..., 5:].any()
    np.testing.assert_array_equal(wider.scores, found.scores)


def test_the_defaults_are_gnmt_with_alpha_0_6_and_as_many_results_as_beams(mixed):
    tables, limits, found = mixed
    options = {"penalty": "gnmt", "alpha": 0.6, "results": 3}
    again = search(tables, jnp.asarray(limits), beams=3, max_length=5, **options)
    np.testing.assert_array_equal(again.tokens, found.tokens)
    np.testing.assert_array_equal(again.scores, found.scores)


# Penalties and limits.


@pytest.mark.parametrize(
    ("penalty", "alpha", "length", "expected"),
    [
        ("gnmt", 1.0, 7, 2.0),
        ("gnmt", 0.6, 1, 1.0),
        ("gnmt", 2.0, 13, 9.0),
        ("gnmt", -1.0, 7, 0.5),
        ("gnmt", 0.0, 50, 1.0),
        ("length", 0.5, 9, 3.0),
        ("length", 1.0, 4, 4.0),
        ("none", 0.6, 9, 1.0),
    ],
)
def test_penalties_by_hand(penalty, alpha, length, expected):
    found = float(length_penalty(jnp.array(length), penalty, alpha))
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_larger_alpha_prefers_longer_translations():
    tables = random_tables(5, 16, 6, 6)
    lengths = []
    for alpha in (0.0, 2.0):
        found = search(
            tables, jnp.full(16, 6), beams=4, max_length=6, penalty="length", alpha=alpha
        )
        lengths.append(float((found.tokens[:, 0] != 0).sum(-1).mean()))
    assert lengths[0] < lengths[1]


def test_an_unknown_penalty_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="'wu' is unknown; choose 'gnmt', 'length' or 'none'"):
        length_penalty(jnp.array(3), "wu", 0.6)


def test_limits_are_source_plus_fifty_or_a_fixed_number():
    lengths = jnp.array([3, 20])
    np.testing.assert_array_equal(search_limits(lengths, DecodeConfig()), [53, 70])
    np.testing.assert_array_equal(search_limits(lengths, DecodeConfig(extra_length=5)), [8, 25])
    np.testing.assert_array_equal(search_limits(lengths, DecodeConfig(max_length=7)), [7, 7])
