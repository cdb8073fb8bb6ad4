# SPDX-License-Identifier: Apache-2.0
"""Samples have the frequencies of the model, and depend on nothing else than they should."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from search_tables import EOS, A, B, C, log_probs_of, random_tables

from transformer.config import DecodeConfig
from transformer.cpu.most_probable import most_probable_by_bisection
from transformer.decoding import generate
from transformer.decoding.constraints import NEG_INF
from transformer.decoding.sampling import most_probable, sample, truncate
from transformer.errors import InputError
from transformer.platforms import compiling_for

D = 6
SIGNIFICANCE = 1e-3
"""Significance level. Seeds are fixed; one other seed in a thousand would fail."""


STATIC = ("num_samples", "max_length", "temperature", "top_k", "top_p", "min_p", "penalty", "alpha")


@functools.partial(jax.jit, static_argnames=STATIC)
def draw(tables, limits, keys, *, num_samples, max_length, **options):
    """`sample` over tables of logits; the cache is the prefix read by each sample."""
    vocabulary = tables.shape[-1]

    def step(tokens, state):
        state = jnp.where(tokens == 1, 0, state * vocabulary + tokens + 1)
        index = jnp.minimum(state, tables.shape[1] - 1)
        return jnp.take_along_axis(tables, index[..., None], axis=1), state

    start = jnp.zeros((tables.shape[0], num_samples), jnp.int32)
    options = {"num_samples": num_samples, "max_length": max_length, **options}
    return sample(step, start, limits, keys, **options)


def keys_of(*numbers):
    """A key for each sentence."""
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(5)))(jnp.array(numbers))


def assert_frequencies(counts, probabilities):
    """Chi-square test over the outcomes that have a probability; no other outcome occurred."""
    counts, probabilities = np.asarray(counts, float), np.asarray(probabilities, float)
    possible = probabilities > 0
    assert not counts[~possible].any()
    if possible.sum() > 1:
        expected = probabilities[possible] / probabilities.sum() * counts.sum()
        assert scipy.stats.chisquare(counts[possible], expected).pvalue > SIGNIFICANCE


# A single word: EOS, a, b, c or d.

WORDS = (EOS, A, B, C, D)
PROBABILITIES = np.array([0.05, 0.4, 0.3, 0.15, 0.1])


TRUNCATED = {
    "as it is": ({}, PROBABILITIES),
    "hotter": ({"temperature": 2.0}, PROBABILITIES**0.5),
    "colder": ({"temperature": 0.25}, PROBABILITIES**4),
    "frozen": ({"temperature": 1e-6}, [0, 1, 0, 0, 0]),
    "the two most probable": ({"top_k": 2}, [0, 0.4, 0.3, 0, 0]),
    "the most probable": ({"top_k": 1}, [0, 1, 0, 0, 0]),
    "more than there are": ({"top_k": 99}, PROBABILITIES),
    "a, b and c have .85": ({"top_p": 0.8}, [0, 0.4, 0.3, 0.15, 0]),
    "a alone has .01": ({"top_p": 0.01}, [0, 1, 0, 0, 0]),
    "at least .12": ({"min_p": 0.3}, [0, 0.4, 0.3, 0.15, 0]),
    "at least .048": ({"min_p": 0.12}, PROBABILITIES),
    "at least .4": ({"min_p": 1.0}, [0, 1, 0, 0, 0]),
    # The squares sum to .285: a has .56 of it, a and b .88.
    "colder, then a and b": ({"temperature": 0.5, "top_p": 0.85}, [0, 0.16, 0.09, 0, 0]),
    "colder, then at least .016": (
        {"temperature": 0.5, "min_p": 0.1},
        [0, 0.16, 0.09, 0.0225, 0],
    ),
    # Of the three that top_k keeps, a and b have .82; of all they have .7.
    "of three, a and b": ({"top_k": 3, "top_p": 0.8}, [0, 0.4, 0.3, 0, 0]),
    "of three, at least .2": ({"top_k": 3, "top_p": 0.9, "min_p": 0.5}, [0, 0.4, 0.3, 0, 0]),
}


def test_truncated_distributions_by_hand():
    log_probs = jnp.log(jnp.asarray(PROBABILITIES, jnp.float32))
    for name, (options, expected) in TRUNCATED.items():
        actual = jax.nn.softmax(truncate(log_probs, **options))
        expected = np.array(expected) / np.sum(expected)
        np.testing.assert_allclose(actual, expected, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["as it is", "colder", "of three, at least .2"])
def test_words_are_drawn_with_the_probabilities_of_the_truncated_distribution(name):
    """Padding and BOS have most of the probability of the model, and are never drawn."""
    options, expected = TRUNCATED[name]
    table = np.log([[0.5, 0.4, *PROBABILITIES / 10]], dtype=np.float32)[None]
    actual = draw(
        jnp.asarray(table), jnp.array([2]), keys_of(0), num_samples=20_000, max_length=2, **options
    )
    first = np.asarray(actual.tokens[0, :, 0])
    assert_frequencies([(first == word).sum() for word in WORDS], expected)
    total = np.log(PROBABILITIES / 10)[first - EOS] + np.where(first == EOS, 0, np.log(0.005))
    np.testing.assert_allclose(actual.log_probs[0], total, rtol=1e-5)


def test_a_token_as_probable_as_the_last_one_kept_is_kept_too():
    logits = jnp.log(jnp.array([0.1, 0.3, 0.3, 0.3]))
    for options in ({"top_k": 1}, {"top_p": 0.2}, {"min_p": 1.0}):
        kept = np.asarray(truncate(logits, **options)) > NEG_INF / 2
        assert kept.tolist() == [False, True, True, True], options


@pytest.mark.parametrize("form", [most_probable, most_probable_by_bisection])
@pytest.mark.parametrize("scale", [3, 1000])
def test_both_forms_of_truncation_keep_the_tokens_that_numpy_keeps(form, scale):
    """With the larger scale most tokens are less probable than the best by e^-100 or more."""
    rng = np.random.default_rng(0)
    log_probs = jax.nn.log_softmax(jnp.asarray(rng.normal(0, scale, (5, 4, 97)), jnp.float32))
    log_probs = log_probs.at[:, :, 7].set(NEG_INF)
    order = np.argsort(-np.asarray(log_probs), axis=-1)
    for weights, totals in (
        (jnp.ones_like(log_probs), (1, 2, 40, 97, 500)),
        (jnp.exp(log_probs), (0.01, 0.3, 0.9, 0.999, 1.5)),
    ):
        ranked = np.take_along_axis(np.asarray(weights, np.float64), order, axis=-1)
        before = np.cumsum(ranked, axis=-1) - ranked  # weights of the more probable tokens
        for total in totals:
            rank = np.argsort(order, axis=-1)
            expected = np.take_along_axis(before < total, rank, axis=-1)
            np.testing.assert_array_equal(form(log_probs, weights, total), expected)


@pytest.mark.parametrize("options", [{"top_k": 40}, {"top_p": 0.9}, {"temperature": 1e-3}])
def test_the_same_tokens_are_kept_on_every_platform(options):
    log_probs = jax.nn.log_softmax(jnp.linspace(-500.0, 0.0, 97))
    kept = []
    for platform in ("cpu", "cuda"):
        with compiling_for(platform):
            kept.append(truncate(log_probs, **options) > NEG_INF / 2)
    np.testing.assert_array_equal(*kept)
    assert 0 < kept[0].sum() == options.get("top_k", kept[0].sum())


# Rules of a user.

RULES = """
import jax.numpy as jnp

def nothing(log_probs):
    return log_probs > 0

def probabilities(log_probs):
    return jnp.exp(log_probs)
"""


@pytest.fixture
def rules(tmp_path):
    """A function from the name of a rule in a user's file to its name in a config."""
    file = tmp_path / "rules.py"
    file.write_text(RULES)
    return lambda name: f"{file}:{name}"


def test_a_rule_named_in_a_config_decides_which_tokens_are_drawn(shallow, rules):
    """Of a user's file, with no change elsewhere.

    The most probable token is always kept: a rule that keeps nothing makes all samples equal.
    """
    model, params = shallow
    source = jnp.array([[4, 5, 6, 2], [7, 8, 2, 0]])

    def tokens(**options):
        config = DecodeConfig(method="sample", max_length=6, **options)
        search = functools.partial(generate.generate, model, config=config, num_results=20)
        return jax.jit(search)(params, source, keys=keys_of(0, 1)).tokens

    greedy = tokens(truncation=rules("nothing"))
    assert greedy.shape == (2, 20, 6)
    np.testing.assert_array_equal(greedy, np.repeat(greedy[:, :1], 20, axis=1))
    with pytest.raises(InputError, match="must return Booleans"):
        tokens(truncation=rules("probabilities"))


def test_a_rule_is_a_function_from_python():
    """Typical sampling (Meister et al. 2023) of the words: their entropy is 1.39 nats."""

    def typical(log_probs):
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1, keepdims=True)
        return jnp.abs(-log_probs - entropy) < 0.6

    kept = truncate(jnp.log(jnp.asarray(PROBABILITIES)), truncation=typical)
    np.testing.assert_array_equal(kept > NEG_INF / 2, [False, True, True, True, False])


# Sequences of words.


def test_translations_are_drawn_with_their_probability_and_independently_for_each_sentence():
    """Three words, at most three tokens: 1 + 3 + 9 translations, for two equal sentences."""
    table = random_tables(9, 1, 6, 3, scale=0.7)
    table[..., :2] -= 50.0  # otherwise forbidden tokens would have a share of the probability
    tables = jnp.asarray(np.repeat(table, 2, axis=0))
    actual = draw(tables, jnp.array([3, 3]), keys_of(1, 2), num_samples=8000, max_length=3)
    log_probs = log_probs_of(table[0])
    probabilities = {(EOS, 0, 0): np.exp(log_probs(())[EOS])}
    for one in (A, B, C):
        first = np.exp(log_probs(())[one])
        probabilities[(one, EOS, 0)] = first * np.exp(log_probs((one,))[EOS])
        for two in (A, B, C):
            probabilities[(one, two, EOS)] = first * np.exp(log_probs((one,))[two])
    assert sum(probabilities.values()) == pytest.approx(1.0)
    rows = [[tuple(map(int, words)) for words in row] for row in np.asarray(actual.tokens)]
    for row in rows:
        assert set(row) <= set(probabilities)
        counts = [row.count(words) for words in probabilities]
        assert_frequencies(counts, list(probabilities.values()))
    # The first words of the two sentences are independent.
    both = [(one[0], two[0]) for one, two in zip(*rows, strict=True)]
    start = np.exp(log_probs(()))
    pairs = [(one, two) for one in (EOS, A, B, C) for two in (EOS, A, B, C)]
    assert_frequencies(
        [both.count(pair) for pair in pairs], [start[a] * start[b] for a, b in pairs]
    )


@pytest.fixture(scope="module")
def drawn():
    """(tables, limits, samples): six sentences with different limits, eight samples each."""
    tables = jnp.asarray(random_tables(10, 6, 6, 5))
    limits = jnp.array([5, 0, 1, 3, 5, 4])
    actual = draw(tables, limits, keys_of(*range(6)), num_samples=8, max_length=5)
    return tables, limits, jax.tree.map(np.asarray, actual)


def test_a_sample_ends_with_eos_within_its_limit(drawn):
    _, limits, actual = drawn
    for row, limit in enumerate(limits):
        for words in actual.tokens[row]:
            if limit:
                (ends,) = np.flatnonzero(words == EOS)
                assert ends < limit
                assert not words[ends + 1 :].any()
                assert (words[: ends + 1] >= EOS).all()
            else:
                assert not words.any()
    assert (actual.scores[1] == np.float32(NEG_INF)).all()


def test_log_probabilities_and_scores_are_those_of_the_model_without_truncation(drawn):
    tables, limits, _ = drawn
    options = {"temperature": 0.5, "top_k": 3, "penalty": "length", "alpha": 1.0}
    actual = draw(tables, limits, keys_of(*range(6)), num_samples=8, max_length=5, **options)
    for row in (0, 2, 3, 4, 5):
        log_probs = log_probs_of(np.asarray(tables[row]))
        for k in range(8):
            words = [int(word) for word in actual.tokens[row, k] if word]
            total = sum(log_probs(words[:t])[word] for t, word in enumerate(words))
            np.testing.assert_allclose(actual.log_probs[row, k], total, rtol=1e-5)
            np.testing.assert_allclose(actual.scores[row, k], total / len(words), rtol=1e-5)


def test_the_samples_of_a_sentence_do_not_depend_on_the_rest_of_the_batch(drawn):
    tables, limits, actual = drawn
    order = np.array([4, 0, 3])
    other = draw(tables[order], limits[order], keys_of(*order), num_samples=8, max_length=5)
    np.testing.assert_array_equal(other.tokens, actual.tokens[order])
    np.testing.assert_allclose(other.log_probs, actual.log_probs[order], rtol=1e-6)


def test_the_first_samples_depend_neither_on_the_number_of_samples_nor_on_max_length(drawn):
    tables, limits, actual = drawn
    other = draw(tables, limits, keys_of(*range(6)), num_samples=3, max_length=9)
    np.testing.assert_array_equal(other.tokens[..., :5], actual.tokens[:, :3])
    assert not other.tokens[..., 5:].any()


def test_another_key_draws_other_samples(drawn):
    tables, limits, actual = drawn
    other = draw(tables, limits, keys_of(*range(6, 12)), num_samples=8, max_length=5)
    assert (np.asarray(other.tokens) != actual.tokens).any(-1).mean() > 0.3
    for row in (0, 3, 4):
        assert len({tuple(words) for words in actual.tokens[row]}) > 2
