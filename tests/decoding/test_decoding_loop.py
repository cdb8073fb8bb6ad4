# SPDX-License-Identifier: Apache-2.0
"""The decoding loop: caches grow, and finished sentences are dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.decoding.decode_loop import MIN_BATCH_TO_SHRINK, cache_lengths, decode_loop


def test_cache_lengths_are_a_quarter_a_half_and_all_and_short_caches_do_not_grow():
    assert cache_lengths(74) == (19, 38, 74)
    assert cache_lengths(16) == (4, 8, 16)
    assert cache_lengths(15) == (15,)


def run(limits, max_length, take=None):
    """Sentence b is active for `limits[b]` steps; each step writes its index into b's cache.

    Returns the final sentences, the cache shape at each step, and the cache lengths.
    """
    shapes, lengths = [], []

    def advance(index, sentences, cache):
        limits, counts, kept = sentences
        jax.debug.callback(lambda _: shapes.append(cache.shape), index)
        on = index < limits
        cache = cache.at[:, index].set(jnp.where(on, index, -1))
        kept = jnp.where(on, cache[:, index], kept)
        return (limits, counts + on, kept), cache

    def grow(cache, length):
        lengths.append(length)
        return jnp.pad(cache, ((0, 0), (0, length - cache.shape[1])), constant_values=-1)

    limits = jnp.array(limits)
    zeros = jnp.zeros(limits.shape, jnp.int32)
    sentences = decode_loop(
        advance,
        (limits, zeros, zeros - 1),
        jnp.zeros((limits.size, 0), jnp.int32),
        active=lambda sentences: sentences[1] < sentences[0],
        max_length=max_length,
        grow=grow,
        take=take,
    )
    jax.effects_barrier()
    return sentences, shapes, lengths


@pytest.mark.parametrize("max_length", [17, 40])
def test_a_cache_is_long_enough_for_every_step_and_grows_only_when_it_is_full(max_length):
    for limit in (0, 3, max_length // 2, max_length):
        (_, counts, kept), shapes, lengths = run([limit, limit // 2], max_length)
        assert tuple(lengths) == cache_lengths(max_length)
        assert counts.tolist() == [limit, limit // 2]
        assert kept.tolist() == [limit - 1, limit // 2 - 1]
        needed = [min(n for n in cache_lengths(max_length) if n > step) for step in range(limit)]
        assert shapes == [(2, length) for length in needed]


def take(cache, sentences):
    return cache[sentences]


@pytest.mark.parametrize("seed", range(3))
def test_once_a_quarter_is_active_it_continues_alone_with_the_same_result(seed):
    limits = np.random.default_rng(seed).integers(0, 30, 20)
    limits[5] = 40
    (_, counts, kept), shapes, _ = run(limits, 40, take)
    assert counts.tolist() == limits.tolist()
    assert kept.tolist() == (limits - 1).tolist()
    # Five are active once the sixth longest is finished.
    together = np.sort(limits)[-6]
    assert [batch for batch, _ in shapes] == [20] * together + [5] * (40 - together)


def test_small_batches_are_never_shrunk():
    limits = [3] * (MIN_BATCH_TO_SHRINK - 2) + [20]
    _, shapes, _ = run(limits, 20, take)
    assert {batch for batch, _ in shapes} == {len(limits)}


def test_no_step_is_made_if_no_sentence_is_active():
    for count in (1, MIN_BATCH_TO_SHRINK):
        (_, counts, _), shapes, _ = run([0] * count, 20, take)
        assert shapes == []
        assert counts.tolist() == [0] * count
