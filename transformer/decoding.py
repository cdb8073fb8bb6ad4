# SPDX-License-Identifier: Apache-2.0
"""Beam search, and greedy search as its case of one beam, over an abstract step function (paper
6.1).

This file knows no model: a step maps the last token of every beam and a cache to logits and a new
cache, and `reorder` makes beam k go on from another beam's cache. The whole search is one compiled
loop.

The search, exactly:

* A hypothesis is a sequence of tokens that ends with the end token, within the sentence's limit; at
  the limit only the end token may follow, so that every score is that of a complete translation.
* At each step the live hypotheses are extended by every token and the best 2K extensions are
  looked at, by log-probability. Those among the best K that end are finished; the best K that do
  not end live on.
* A finished hypothesis is worth log P / penalty(length), the end token counted in the length.
* A sentence is done when K hypotheses have finished, or as soon as no live hypothesis can still
come
  among the results: its log-probability can only fall, so its worth is at most that log-probability
  over the penalty at one end of the lengths still open to it.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import BOS_ID, EOS_ID, PAD_ID, Array, Bool, Float, Int
from transformer.config import DecodeConfig
from transformer.errors import InputError

Cache = Any
Step = Callable[[Int[Array, "B K"], Cache], tuple[Float[Array, "B K V"], Cache]]
Reorder = Callable[[Cache, Int[Array, "B K"]], Cache]

NEVER = -1e30
"""The score of what cannot be chosen; finite, so that sums and products of it are."""


@flax.struct.dataclass
class Hypotheses:
    """The results of a search, best first."""

    tokens: Int[Array, "B K M"]
    """Padded with 0; the end token is there unless the place is empty."""
    scores: Float[Array, "B K"]
    """log P / penalty(length), natural logarithm; `NEVER` where fewer than K were found."""
    log_probs: Float[Array, "B K"]
    """log P(tokens | source), natural logarithm, the end token included."""


@flax.struct.dataclass
class _Search:
    index: Int[Array, ""]
    live_tokens: Int[Array, "B K M"]
    live_log_probs: Float[Array, "B K"]
    finished: Hypotheses
    finished_count: Int[Array, " B"]
    done: Bool[Array, " B"]
    cache: Cache


def length_penalty(length: Array, penalty: str, alpha: float) -> Float[Array, "..."]:
    """What log P is divided by: ``gnmt`` ((5 + length) / 6)^alpha, ``length`` length^alpha,
    ``none`` 1.

    `length` counts the end token.

    Raises:
      InputError: for an unknown penalty.
    """
    length = jnp.asarray(length, jnp.float32)
    if penalty == "gnmt":
        return ((5.0 + length) / 6.0) ** alpha
    if penalty == "length":
        return length**alpha
    if penalty == "none":
        return jnp.ones_like(length)
    raise InputError(f"length penalty {penalty!r} is unknown; choose 'gnmt', 'length' or 'none'")


def search_limits(source_lengths: Int[Array, " B"], config: DecodeConfig) -> Int[Array, " B"]:
    """The most tokens each translation may have, the end token included (paper 6.1: source +
    50).
    """
    if config.max_length is not None:
        return jnp.full_like(source_lengths, config.max_length)
    return source_lengths + config.extra_length


def beam_search(
    step: Step,
    reorder: Reorder,
    cache: Cache,
    limits: Int[Array, " B"],
    *,
    beams: int,
    max_length: int,
    results: int | None = None,
    penalty: str = "gnmt",
    alpha: float = 0.6,
) -> Hypotheses:
    """The best translations that the search described above finds.

    Args:
      step: reads the last token of each beam; position 0 reads the start token.
      reorder: gathers the cache along its beams.
      cache: for B sentences and K beams, at position 0.
      limits: the most tokens each sentence's translation may have, the end token included; at least
        1 and at most `max_length`. A sentence with limit 0 is not searched at all.
      beams: K; 1 is greedy search: the most probable token at every step.
      max_length: M, static.
      results: how many of the best must be certain before a sentence may stop early; `beams` if
        None. The remaining places are then filled with whatever had finished.
      penalty: see `length_penalty`.
      alpha: see `length_penalty`.

    Returns:
      K hypotheses a sentence, best first.
    """
    results = results or beams
    batch = limits.shape[0]

    def worth(log_probs, length):
        return log_probs / length_penalty(length, penalty, alpha)

    def advance(search: _Search) -> _Search:
        last = jax.lax.dynamic_index_in_dim(
            search.live_tokens, jnp.maximum(search.index - 1, 0), axis=2, keepdims=False
        )
        last = jnp.where(search.index == 0, BOS_ID, last)
        logits, cache = step(last, search.cache)
        at_limit = (search.index + 1 >= limits)[:, None]
        log_probs = search.live_log_probs[..., None] + _next_log_probs(logits, at_limit)

        # 2K candidates are enough: at most K of them end, so K that do not remain.
        vocabulary = log_probs.shape[-1]
        candidates = min(2 * beams, beams * vocabulary)
        best, flat_ids = jax.lax.top_k(log_probs.reshape(batch, -1), candidates)
        parents, tokens = flat_ids // vocabulary, (flat_ids % vocabulary).astype(jnp.int32)
        sequences = jnp.take_along_axis(search.live_tokens, parents[..., None], axis=1)
        sequences = jax.lax.dynamic_update_index_in_dim(sequences, tokens, search.index, axis=2)
        possible = best > NEVER / 2

        ends = (tokens == EOS_ID) & (jnp.arange(candidates) < beams) & possible
        scores = jnp.where(ends, worth(best, search.index + 1), NEVER)
        scores = jnp.where(search.done[:, None], NEVER, scores)
        finished = _best_of(search.finished, Hypotheses(sequences, scores, best), beams)
        newly = (scores > NEVER / 2).sum(-1, dtype=jnp.int32)
        finished_count = search.finished_count + newly

        going_on = jnp.where(tokens == EOS_ID, NEVER, best)
        live_log_probs, chosen = jax.lax.top_k(going_on, beams)
        live_tokens = jnp.take_along_axis(sequences, chosen[..., None], axis=1)
        live_parents = jnp.take_along_axis(parents, chosen, axis=1)

        # log P can only fall; the penalty is monotone in the length, so its largest value over the
        # lengths still open is at one end of them.
        shortest, longest = (
            length_penalty(length, penalty, alpha)[..., None]
            for length in (search.index + 2, limits)
        )
        hope = (live_log_probs / jnp.maximum(shortest, longest)).max(-1)
        certain = finished.scores[:, results - 1] >= hope
        done = search.done | (finished_count >= beams) | certain | (search.index + 1 >= limits)
        return _Search(
            index=search.index + 1,
            live_tokens=live_tokens,
            live_log_probs=live_log_probs,
            finished=finished,
            finished_count=finished_count,
            done=done,
            cache=reorder(cache, live_parents),
        )

    nothing = Hypotheses(
        tokens=jnp.full((batch, beams, max_length), PAD_ID, jnp.int32),
        scores=jnp.full((batch, beams), NEVER),
        log_probs=jnp.full((batch, beams), NEVER),
    )
    only_the_first = jnp.where(jnp.arange(beams) == 0, 0.0, NEVER)
    start = _Search(
        index=jnp.zeros((), jnp.int32),
        live_tokens=nothing.tokens,
        live_log_probs=jnp.broadcast_to(only_the_first, (batch, beams)),
        finished=nothing,
        finished_count=jnp.zeros((batch,), jnp.int32),
        done=limits <= 0,
        cache=cache,
    )
    return jax.lax.while_loop(
        lambda search: ~search.done.all() & (search.index < max_length), advance, start
    ).finished


def _next_log_probs(
    logits: Float[Array, "B K V"], at_limit: Bool[Array, "B 1"]
) -> Float[Array, "B K V"]:
    """Log-probabilities in float32 of what may come next; at the limit only the end token may."""
    token = jnp.arange(logits.shape[-1])
    allowed = (token != PAD_ID) & (token != BOS_ID)
    allowed = allowed & (~at_limit[..., None] | (token == EOS_ID))
    return jnp.where(allowed, jax.nn.log_softmax(logits.astype(jnp.float32)), NEVER)


def _best_of(kept: Hypotheses, new: Hypotheses, beams: int) -> Hypotheses:
    """The best of two sets of hypotheses, best first."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), kept, new)
    scores, chosen = jax.lax.top_k(both.scores, beams)
    found = (scores > NEVER / 2)[..., None]
    tokens = jnp.take_along_axis(both.tokens, chosen[..., None], axis=1)
    return Hypotheses(
        tokens=jnp.where(found, tokens, PAD_ID),
        scores=scores,
        log_probs=jnp.take_along_axis(both.log_probs, chosen, axis=1),
    )
