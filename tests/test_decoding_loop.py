# SPDX-License-Identifier: Apache-2.0
"""The loop of search and sampling: caches grow, sentences that are done retire."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.decoding.decode_loop import LEAST, decode_loop, rooms


def test_room_is_a_quarter_then_half_then_all_and_for_few_tokens_all_at_once():
    assert rooms(74) == (19, 38, 74)
    assert rooms(16) == (4, 8, 16)
    assert rooms(15) == (15,)


def run(limits, max_length, take=None):
    """Sentence b goes on for `limits[b]` steps; each step writes its number into b's row.

    Returns what the sentences and the cache kept, and how many rows and places each step had.
    """
    seen, caches = [], []

    def advance(index, sentences, cache):
        limits, counts, kept = sentences
        jax.debug.callback(lambda _: seen.append(cache.shape), index)
        on = index < limits
        cache = cache.at[:, index].set(jnp.where(on, index, -1))
        kept = jnp.where(on, cache[:, index], kept)
        return (limits, counts + on, kept), cache

    def grow(cache, room):
        caches.append(room)
        return jnp.pad(cache, ((0, 0), (0, room - cache.shape[1])), constant_values=-1)

    limits = jnp.array(limits)
    nothing = jnp.zeros(limits.shape, jnp.int32)
    found = decode_loop(
        advance,
        (limits, nothing, nothing - 1),
        jnp.zeros((limits.size, 0), jnp.int32),
        going_on=lambda sentences: sentences[1] < sentences[0],
        max_length=max_length,
        grow=grow,
        take=take,
    )
    jax.effects_barrier()
    return found, seen, caches


@pytest.mark.parametrize("max_length", [17, 40])
def test_a_cache_has_room_for_every_step_and_grows_only_when_it_is_full(max_length):
    for limit in (0, 3, max_length // 2, max_length):
        (_, counts, kept), seen, caches = run([limit, limit // 2], max_length)
        assert tuple(caches) == rooms(max_length)
        assert counts.tolist() == [limit, limit // 2]
        assert kept.tolist() == [limit - 1, limit // 2 - 1]
        needed = [min(r for r in rooms(max_length) if r > step) for step in range(limit)]
        assert seen == [(2, room) for room in needed]


def take(cache, sentences):
    return cache[sentences]


@pytest.mark.parametrize("seed", range(3))
def test_when_a_quarter_goes_on_it_goes_on_alone_and_to_the_same_end(seed):
    limits = np.random.default_rng(seed).integers(0, 30, 20)
    limits[5] = 40
    (_, counts, kept), seen, _ = run(limits, 40, take)
    assert counts.tolist() == limits.tolist()
    assert kept.tolist() == (limits - 1).tolist()
    # Five are left once the sixth longest is done.
    together = np.sort(limits)[-6]
    assert [rows for rows, _ in seen] == [20] * together + [5] * (40 - together)


def test_few_sentences_are_never_parted():
    limits = [3] * (LEAST - 2) + [20]
    _, seen, _ = run(limits, 20, take)
    assert {rows for rows, _ in seen} == {len(limits)}


def test_nothing_is_computed_where_nothing_goes_on():
    for count in (1, LEAST):
        (_, counts, _), seen, _ = run([0] * count, 20, take)
        assert seen == []
        assert counts.tolist() == [0] * count
