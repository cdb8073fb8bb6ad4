# SPDX-License-Identifier: Apache-2.0
"""Samples come as often as the model says, and depend on nothing that they should not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from test_decoding import EOS, A, B, C, log_probs_of, random_tables

from transformer.decoding.constraints import NEVER
from transformer.decoding.sampling import sample, truncate

D = 6
LIKELY = 1e-3
"""Seeds are fixed; with another one in a thousand the frequencies would be called wrong."""


STATIC = ("samples", "max_length", "temperature", "top_k", "top_p", "min_p", "penalty", "alpha")


@functools.partial(jax.jit, static_argnames=STATIC)
def draw(tables, limits, keys, *, samples, max_length, **options):
    """`sample` over tables of logits; the cache is the prefix that each sample has read."""
    vocabulary = tables.shape[-1]

    def step(tokens, state):
        state = jnp.where(tokens == 1, 0, state * vocabulary + tokens + 1)
        place = jnp.minimum(state, tables.shape[1] - 1)
        return jnp.take_along_axis(tables, place[..., None], axis=1), state

    start = jnp.zeros((tables.shape[0], samples), jnp.int32)
    options = {"samples": samples, "max_length": max_length, **options}
    return sample(step, start, limits, keys, **options)


def keys_of(*numbers):
    """A key for each sentence."""
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(5)))(jnp.array(numbers))


def assert_as_often(counts, probabilities):
    """Chi-square over what can be drawn; nothing else was."""
    counts, probabilities = np.asarray(counts, float), np.asarray(probabilities, float)
    possible = probabilities > 0
    assert not counts[~possible].any()
    if possible.sum() > 1:
        expected = probabilities[possible] / probabilities.sum() * counts.sum()
        assert scipy.stats.chisquare(counts[possible], expected).pvalue > LIKELY


# One word after the other: end, a, b, c, d.

WORDS = (EOS, A, B, C, D)
CHANCES = np.array([0.05, 0.4, 0.3, 0.15, 0.1])


TRUNCATED = {
    "as it is": ({}, CHANCES),
    "hotter": ({"temperature": 2.0}, CHANCES**0.5),
    "colder": ({"temperature": 0.25}, CHANCES**4),
    "frozen": ({"temperature": 1e-6}, [0, 1, 0, 0, 0]),
    "the two most probable": ({"top_k": 2}, [0, 0.4, 0.3, 0, 0]),
    "the most probable": ({"top_k": 1}, [0, 1, 0, 0, 0]),
    "more than there are": ({"top_k": 99}, CHANCES),
    "a, b and c have .85": ({"top_p": 0.8}, [0, 0.4, 0.3, 0.15, 0]),
    "a alone has .01": ({"top_p": 0.01}, [0, 1, 0, 0, 0]),
    "at least .12": ({"min_p": 0.3}, [0, 0.4, 0.3, 0.15, 0]),
    "at least .048": ({"min_p": 0.12}, CHANCES),
    "at least .4": ({"min_p": 1.0}, [0, 1, 0, 0, 0]),
    # The squares' sum is .285: a has .56 of it, a and b .88.
    "colder, then a and b": ({"temperature": 0.5, "top_p": 0.85}, [0, 0.16, 0.09, 0, 0]),
    "colder, then at least .016": (
        {"temperature": 0.5, "min_p": 0.1},
        [0, 0.16, 0.09, 0.0225, 0],
    ),
    # Of the three that are left a and b have .82; of all they have .7.
    "of three, a and b": ({"top_k": 3, "top_p": 0.8}, [0, 0.4, 0.3, 0, 0]),
    "of three, at least .2": ({"top_k": 3, "top_p": 0.9, "min_p": 0.5}, [0, 0.4, 0.3, 0, 0]),
}


@pytest.mark.parametrize("name", TRUNCATED)
def test_what_is_drawn_from_by_hand(name):
    options, expected = TRUNCATED[name]
    found = jax.nn.softmax(truncate(jnp.log(jnp.asarray(CHANCES, jnp.float32)), **options))
    np.testing.assert_allclose(found, np.array(expected) / np.sum(expected), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        *("as it is", "hotter", "colder", "the two most probable", "a, b and c have .85"),
        *("at least .12", "of three, at least .2"),
    ],
)
def test_words_come_as_often_as_the_truncated_softmax_says(name):
    """Padding and start token have most of the model's probability, and are never drawn."""
    options, expected = TRUNCATED[name]
    table = np.log([[0.5, 0.4, *CHANCES / 10]], dtype=np.float32)[None]
    found = draw(
        jnp.asarray(table), jnp.array([2]), keys_of(0), samples=20_000, max_length=2, **options
    )
    first = np.asarray(found.tokens[0, :, 0])
    assert_as_often([(first == word).sum() for word in WORDS], expected)
    total = np.log(CHANCES / 10)[first - EOS] + np.where(first == EOS, 0, np.log(0.005))
    np.testing.assert_allclose(found.log_probs[0], total, rtol=1e-5)


def test_a_token_as_probable_as_the_last_one_kept_is_kept_too():
    logits = jnp.log(jnp.array([0.1, 0.3, 0.3, 0.3]))
    for options in ({"top_k": 1}, {"top_p": 0.2}, {"min_p": 1.0}):
        kept = np.asarray(truncate(logits, **options)) > NEVER / 2
        assert kept.tolist() == [False, True, True, True], options


# Words after words.


def test_translations_come_as_often_as_their_probability_in_every_sentence():
    """Three words, at most three tokens: 1 + 3 + 9 translations, of two sentences alike."""
    table = random_tables(9, 1, 6, 3, scale=0.7)
    table[..., :2] -= 50.0  # or what is forbidden would have a share of the probability
    tables = jnp.asarray(np.repeat(table, 2, axis=0))
    found = draw(tables, jnp.array([3, 3]), keys_of(1, 2), samples=8000, max_length=3)
    log_probs = log_probs_of(table[0])
    chances = {(EOS, 0, 0): np.exp(log_probs(())[EOS])}
    for one in (A, B, C):
        first = np.exp(log_probs(())[one])
        chances[(one, EOS, 0)] = first * np.exp(log_probs((one,))[EOS])
        for two in (A, B, C):
            chances[(one, two, EOS)] = first * np.exp(log_probs((one,))[two])
    assert sum(chances.values()) == pytest.approx(1.0)
    rows = [[tuple(map(int, words)) for words in row] for row in np.asarray(found.tokens)]
    for row in rows:
        assert set(row) <= set(chances)
        assert_as_often([row.count(words) for words in chances], list(chances.values()))
    # The two sentences have nothing to do with each other.
    both = [(one[0], two[0]) for one, two in zip(*rows, strict=True)]
    start = np.exp(log_probs(()))
    pairs = [(one, two) for one in (EOS, A, B, C) for two in (EOS, A, B, C)]
    assert_as_often([both.count(pair) for pair in pairs], [start[a] * start[b] for a, b in pairs])


@pytest.fixture(scope="module")
def drawn():
    """(tables, limits, samples): six sentences of many limits, eight samples each."""
    tables = jnp.asarray(random_tables(10, 6, 6, 5))
    limits = jnp.array([5, 0, 1, 3, 5, 4])
    found = draw(tables, limits, keys_of(*range(6)), samples=8, max_length=5)
    return tables, limits, jax.tree.map(np.asarray, found)


def test_a_sample_ends_with_the_end_token_within_its_limit(drawn):
    _, limits, found = drawn
    for row, limit in enumerate(limits):
        for words in found.tokens[row]:
            if limit:
                (ends,) = np.flatnonzero(words == EOS)
                assert ends < limit
                assert not words[ends + 1 :].any()
                assert (words[: ends + 1] >= EOS).all()
            else:
                assert not words.any()
    assert (found.scores[1] == np.float32(NEVER)).all()


def test_log_probabilities_and_scores_are_the_models_own_whatever_was_drawn_from(drawn):
    tables, limits, _ = drawn
    options = {"temperature": 0.5, "top_k": 3, "penalty": "length", "alpha": 1.0}
    found = draw(tables, limits, keys_of(*range(6)), samples=8, max_length=5, **options)
    for row in (0, 2, 3, 4, 5):
        log_probs = log_probs_of(np.asarray(tables[row]))
        for k in range(8):
            words = [int(word) for word in found.tokens[row, k] if word]
            total = sum(log_probs(words[:t])[word] for t, word in enumerate(words))
            np.testing.assert_allclose(found.log_probs[row, k], total, rtol=1e-5)
            np.testing.assert_allclose(found.scores[row, k], total / len(words), rtol=1e-5)


def test_a_sentences_samples_do_not_depend_on_the_others_in_its_batch(drawn):
    tables, limits, found = drawn
    order = np.array([4, 0, 3])
    other = draw(tables[order], limits[order], keys_of(*order), samples=8, max_length=5)
    np.testing.assert_array_equal(other.tokens, found.tokens[order])
    np.testing.assert_allclose(other.log_probs, found.log_probs[order], rtol=1e-6)


def test_the_first_samples_are_the_same_when_more_are_drawn_or_there_is_more_room(drawn):
    tables, limits, found = drawn
    other = draw(tables, limits, keys_of(*range(6)), samples=3, max_length=9)
    np.testing.assert_array_equal(other.tokens[..., :5], found.tokens[:, :3])
    assert not other.tokens[..., 5:].any()


def test_another_key_draws_other_samples(drawn):
    tables, limits, found = drawn
    other = draw(tables, limits, keys_of(*range(6, 12)), samples=8, max_length=5)
    assert (np.asarray(other.tokens) != found.tokens).any(-1).mean() > 0.3
    for row in (0, 3, 4):
        assert len({tuple(words) for words in found.tokens[row]}) > 2
