# SPDX-License-Identifier: Apache-2.0
"""Beam search over tables of logits, which a test can write by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle

from transformer.decoding.beam_search import NEG_INF, beam_search

EOS, A, B, C = 2, 3, 4, 5


def node(prefix, vocabulary):
    """Row of a table for a prefix."""
    state = 0
    for word in prefix:
        state = state * vocabulary + word + 1
    return state


def random_tables(seed, sentences, vocabulary, depth, scale=1.5):
    """Logits of every next word after every prefix of every sentence, `[B, prefixes, V]`."""
    prefixes = sum(vocabulary**length for length in range(depth))
    logits = np.random.default_rng(seed).standard_normal((sentences, prefixes, vocabulary)) * scale
    logits[..., :2] += 3.0  # padding and BOS are probable, and forbidden
    return logits.astype(np.float32)


STATIC = (
    *("num_beams", "max_length", "num_results", "penalty", "alpha", "num_groups", "diversity"),
    *("finish_from", "on_step", "shrink"),
)


@functools.partial(jax.jit, static_argnames=STATIC)
def search(tables, limits, *, num_beams, max_length, on_step=None, shrink=False, **options):
    """`beam_search` over tables; the cache holds the tables and the prefix read by each beam."""
    vocabulary = tables.shape[-1]

    def step(tokens, cache):
        tables, state = cache
        if on_step is not None:
            jax.debug.callback(on_step)
        state = jnp.where(tokens == 1, 0, state * vocabulary + tokens + 1)
        index = jnp.minimum(state, tables.shape[1] - 1)
        return jnp.take_along_axis(tables, index[..., None], axis=1), (tables, state)

    def reorder(cache, parents):
        tables, state = cache
        return tables, jnp.take_along_axis(state, parents, axis=1)

    def take(cache, sentences):
        return jax.tree.map(lambda leaf: leaf[sentences], cache)

    cache = tables, jnp.zeros((tables.shape[0], num_beams), jnp.int32)
    options |= {"num_beams": num_beams, "max_length": max_length, "take": take if shrink else None}
    return beam_search(step, reorder, cache, limits, **options)


def log_probs_of(table):
    """One sentence's table as a function from prefix to log-probabilities, for the oracle."""

    def log_probs(prefix):
        return oracle.log_softmax(table[node(prefix, table.shape[-1])].astype(np.float64))

    return log_probs


def assert_hypotheses(actual, row, expected):
    """Sentence `row` has exactly these (score, log P, tokens), best first, then empty entries."""
    tokens, scores, log_probs = (
        np.asarray(field[row]) for field in (actual.tokens, actual.scores, actual.log_probs)
    )
    for k, (score, log_prob, words) in enumerate(expected):
        assert tuple(tokens[k, : len(words)]) == tuple(words)
        assert not tokens[k, len(words) :].any()
        np.testing.assert_allclose(scores[k], score, rtol=1e-5)
        np.testing.assert_allclose(log_probs[k], log_prob, rtol=1e-5)
    assert (scores[len(expected) :] == np.float32(NEG_INF)).all()
    assert not tokens[len(expected) :].any()
