# SPDX-License-Identifier: Apache-2.0
"""The decoding loop of beam search and sampling: one step at a time until every sentence is
finished.

Two optimizations change no result:

* The cache grows. A step reads the complete cache, and length limits are far above the length of
  most translations (paper: source length + 50). The cache starts with a quarter of the maximum
  length and grows to half and then to all of it.
* Finished sentences are dropped. A step takes time for every sentence of the batch, and the last
  few sentences take long. Once at most a quarter of the sentences are active, decoding continues
  with these alone.

Every cache length, and the smaller batch, is compiled separately; more of them would cost more time
than they save.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Int

Cache = Any
"""Decoder cache of a model family; opaque here."""
Sentences = TypeVar("Sentences")
Grow = Callable[[Cache, int], Cache]
Take = Callable[[Cache, Int[Array, " B"]], Cache]

MIN_BATCH_TO_SHRINK = 16
"""Smaller batches keep their finished sentences."""


def cache_lengths(max_length: int) -> tuple[int, ...]:
    """Cache lengths used in turn as decoding proceeds, each compiled once."""
    if max_length < 16:
        return (max_length,)
    quarter = -(-max_length // 4)
    return quarter, 2 * quarter, max_length


@flax.struct.dataclass
class _State:
    index: Int[Array, ""]
    """Number of steps made, which is the target position of the next step."""
    sentences: Any
    cache: Cache


def decode_loop(
    advance: Callable[[Int[Array, ""], Sentences, Cache], tuple[Sentences, Cache]],
    sentences: Sentences,
    cache: Cache,
    *,
    active: Callable[[Sentences], Bool[Array, " B"]],
    max_length: int,
    grow: Grow | None = None,
    take: Take | None = None,
) -> Sentences:
    """Call `advance` until no sentence is active, at most `max_length` times.

    Args:
      advance: one step, `(index, sentences, cache) -> (sentences, cache)`, where `index` counts the
        previous steps. The result for one sentence must not depend on the other sentences.
      sentences: pytree of arrays with leading axis B.
      cache: at position 0, with the first of the `cache_lengths`; without `grow`, with all M.
      active: which sentences need more steps.
      max_length: M, static.
      grow: extends a cache to the given length. None: the loop is compiled once, and every step
        takes time for all M positions.
      take: selects sentences of a cache. None: finished sentences are never dropped.

    Returns:
      `sentences` after the last step, in the given order.
    """
    batch = jax.eval_shape(active, sentences).shape[0]
    small_batch = batch // 4 if take is not None and batch >= MIN_BATCH_TO_SHRINK else 0

    def run(state: _State, length: int, num_left: int) -> _State:
        """Step until position `length`, or until at most `num_left` sentences are active."""
        return jax.lax.while_loop(
            lambda s: (active(s.sentences).sum() > num_left) & (s.index < length),
            lambda s: _State(s.index + 1, *advance(s.index, s.sentences, s.cache)),
            state,
        )

    state = _State(jnp.zeros((), jnp.int32), sentences, cache)
    for length in cache_lengths(max_length) if grow else (max_length,):
        if grow:
            state = state.replace(cache=grow(state.cache, length))
        state = run(state, length, small_batch)
    if not small_batch:
        return state.sentences
    # At most B/4 sentences are active. A stable sort puts them first, and finished ones, which
    # further steps do not change, fill the rest of the small batch.
    chosen = jnp.argsort(~active(state.sentences), stable=True)[:small_batch]  # [B/4]
    subset = jax.tree.map(lambda leaf: leaf[chosen], state.sentences)
    subset = run(_State(state.index, subset, take(state.cache, chosen)), max_length, 0).sentences
    return jax.tree.map(lambda all_, new: all_.at[chosen].set(new), state.sentences, subset)
