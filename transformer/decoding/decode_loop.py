# SPDX-License-Identifier: Apache-2.0
"""The loop that beam search and sampling have in common: one step after another, for all sentences
at once, until the last one is done.

Two things keep its steps cheap, and change no result:

* Caches grow. A step reads all of a cache, and limits are far above what most translations need
  (the paper's is the source's length + 50). So a cache begins with a quarter of the room and grows
  to half and then to all of it.
* Sentences that are done retire. A step takes time for every row, and the last of many sentences
  takes long. When no more than a quarter of them go on, these go on alone.

Each room, and the quarter, is compiled on its own: more of them would not pay.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Int

Cache = Any
Sentences = TypeVar("Sentences")
Grow = Callable[[Cache, int], Cache]
Take = Callable[[Cache, Int[Array, " B"]], Cache]

LEAST = 16
"""Fewer sentences than this are too few to retire any."""


def rooms(max_length: int) -> tuple[int, ...]:
    """For how many tokens caches have room, one time after another while a search goes on."""
    if max_length < 16:
        return (max_length,)
    quarter = -(-max_length // 4)
    return quarter, 2 * quarter, max_length


@flax.struct.dataclass
class _State:
    index: Int[Array, ""]
    sentences: Any
    cache: Cache


def decode_loop(
    advance: Callable[[Int[Array, ""], Sentences, Cache], tuple[Sentences, Cache]],
    sentences: Sentences,
    cache: Cache,
    *,
    going_on: Callable[[Sentences], Bool[Array, " B"]],
    max_length: int,
    grow: Grow = lambda cache, _: cache,
    take: Take | None = None,
) -> Sentences:
    """Advances until no sentence goes on, or `max_length` times.

    Args:
      advance: from the number of steps before this one, the sentences and the cache to those after
        it; what becomes of a sentence depends on no other.
      sentences: a pytree whose arrays all have B rows, one a sentence.
      cache: at position 0, with the first room of `rooms`.
      going_on: which sentences are not done.
      max_length: M, static.
      grow: gives a cache room for so many tokens.
      take: the cache of these sentences alone; without it, none retires.
    """
    batch = jax.eval_shape(going_on, sentences).shape[0]
    few = batch // 4 if take is not None and batch >= LEAST else 0

    def until(state: _State, room: int, left: int) -> _State:
        return jax.lax.while_loop(
            lambda now: (going_on(now.sentences).sum() > left) & (now.index < room),
            lambda now: _State(now.index + 1, *advance(now.index, now.sentences, now.cache)),
            state,
        )

    state = _State(jnp.zeros((), jnp.int32), sentences, cache)
    for room in rooms(max_length):
        state = until(state.replace(cache=grow(state.cache, room)), room, few)
    if not few:
        return state.sentences
    # Those that go on come first, then others that are done and stay so.
    chosen = jnp.argsort(~going_on(state.sentences), stable=True)[:few]
    part = jax.tree.map(lambda every: every[chosen], state.sentences)
    part = until(_State(state.index, part, take(state.cache, chosen)), max_length, 0).sentences
    return jax.tree.map(lambda every, own: every.at[chosen].set(own), state.sentences, part)
