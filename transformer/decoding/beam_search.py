# SPDX-License-Identifier: Apache-2.0
"""Beam search, and greedy search as its case of one beam, over an abstract step function (paper
6.1).

This file knows no model: a step maps the last token of every beam and a cache to logits and a new
cache, and `reorder` makes beam k go on from another beam's cache. The whole search is one compiled
loop.

The search, exactly:

* A hypothesis is a sequence of tokens that ends with the end token, within the sentence's limit; at
  the limit only the end token may follow, so that every score is that of a complete translation.
  What else may not follow is said in `constraints`.
* At each step the live hypotheses are extended by every token and the best 2K extensions are
  looked at, by log-probability. Those among the best K that end are finished; the best K that do
  not end live on.
* A finished hypothesis is worth log P / penalty(length), the end token counted in the length.
* A sentence is done when K hypotheses have finished and no live hypothesis is worth more, at the
  length it has, than the last of the results asked for. (K finished ones alone would not do: a few
  bad ones that end early must not stop the search before a good one that is under way.)
* It is also done as soon as no live hypothesis can still come among the results: its
  log-probability can only fall, so its worth is at most that log-probability over the penalty at
  one end of the lengths still open to it.

Diverse beam search (Vijayakumar et al. 2016) divides the K beams into groups of equal size:

* Each group is a search of its own, as above, with its share of the beams. At each step the groups
  take their turns.
* Where a group ranks its extensions, an extension's log-probability is lowered by `diversity` for
  every hypothesis of an earlier group that lives on from this same step with the same last token.
  The end token is therefore never made dearer.
* That is all the penalty does: it decides which extensions a group looks at, in which order, and is
  then forgotten. Hypotheses are worth, and live on with, their own log-probability.
* A group that is done goes on being searched, for the groups after it, until its sentence is done:
  when all its groups are.
* The results of all groups are ranked together. Two groups may find the same translation, which is
  then there twice; a larger `diversity` makes that rare.
"""

import functools
from collections.abc import Callable, Sequence

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import BOS_ID, EOS_ID, PAD_ID, Array, Bool, Float, Int
from transformer.config import DecodeConfig
from transformer.decoding.constraints import NEVER, UNCONSTRAINED, Constraints, next_log_probs
from transformer.decoding.decode_loop import Cache, Grow, Take, decode_loop
from transformer.decoding.top_k import top_k
from transformer.errors import InputError

Step = Callable[[Int[Array, "B K"], Cache], tuple[Float[Array, "B K V"], Cache]]
Reorder = Callable[[Cache, Int[Array, "B K"]], Cache]


@flax.struct.dataclass
class Hypotheses:
    """The results of a search, best first, or samples in the order in which they were drawn."""

    tokens: Int[Array, "B K M"]
    """Padded with 0; the end token is there unless the place is empty."""
    scores: Float[Array, "B K"]
    """log P / penalty(length), natural logarithm; `NEVER` where fewer than K were found."""
    log_probs: Float[Array, "B K"]
    """log P(tokens | source), natural logarithm, the end token included."""


@flax.struct.dataclass
class _Group:
    """The search of one group; G is its share of the K beams."""

    live_tokens: Int[Array, "B G M"]
    live_log_probs: Float[Array, "B G"]
    finished: Hypotheses
    finished_count: Int[Array, " B"]
    done: Bool[Array, " B"]


@flax.struct.dataclass
class _Search:
    limits: Int[Array, " B"]
    constraints: Constraints
    groups: tuple[_Group, ...]


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
    grow: Grow = lambda cache, _: cache,
    take: Take | None = None,
    results: int | None = None,
    penalty: str = "gnmt",
    alpha: float = 0.6,
    groups: int = 1,
    diversity: float = 0.5,
    constraints: Constraints = UNCONSTRAINED,
) -> Hypotheses:
    """The best translations that the search described above finds.

    Args:
      step: reads the last token of each beam; position 0 reads the start token.
      reorder: gathers the cache along its beams.
      cache: for B sentences and K beams, at position 0, with the first room of
        `decoding_loop.rooms`.
      limits: the most tokens each sentence's translation may have, the end token included; at least
        1 and at most `max_length`. A sentence with limit 0 is not searched at all.
      beams: K; 1 is greedy search: the most probable token at every step.
      max_length: M, static.
      grow: see `decoding_loop.decode_loop`.
      take: see `decoding_loop.decode_loop`.
      results: how many of the best must be certain before a sentence may stop early; `beams` if
        None. The remaining places are then filled with whatever had finished.
      penalty: see `length_penalty`.
      alpha: see `length_penalty`.
      groups: into how many the beams are divided; must divide them.
      diversity: what a group pays for a token that a hypothesis of an earlier group has just taken.
      constraints: what may not follow.

    Returns:
      K hypotheses a sentence, best first.
    """
    size = beams // groups
    results = min(results or beams, size)

    def worth(log_probs, length):
        return log_probs / length_penalty(length, penalty, alpha)

    def advance(index: Int[Array, ""], search: _Search, cache: Cache) -> tuple[_Search, Cache]:
        live_tokens = _side_by_side([group.live_tokens for group in search.groups])
        last = jax.lax.dynamic_index_in_dim(
            live_tokens, jnp.maximum(index - 1, 0), axis=2, keepdims=False
        )
        last = jnp.where(index == 0, BOS_ID, last)
        logits, cache = step(last, cache)
        log_probs = next_log_probs(logits, live_tokens, index, search.limits, search.constraints)

        advanced, parents = [], []
        for number, group in enumerate(search.groups):
            own = log_probs[:, number * size : (number + 1) * size] if groups > 1 else log_probs
            taken = _times_taken(advanced, index, own.shape[-1]) if advanced else None
            group, own_parents = advance_group(group, own, taken, index, search.limits)
            advanced.append(group)
            parents.append(own_parents + number * size if number else own_parents)
        return search.replace(groups=tuple(advanced)), reorder(cache, _side_by_side(parents))

    def advance_group(group, next_log_probs, taken, index, limits) -> tuple[_Group, Array]:
        log_probs = group.live_log_probs[..., None] + next_log_probs

        # 2K candidates are enough: at most K of them end, so K that do not remain. Of a single beam
        # one is enough: where it ends, no other of this length can be worth more.
        batch, _, vocabulary = log_probs.shape
        candidates = 1 if beams == 1 else min(2 * size, size * vocabulary)
        value = log_probs if taken is None else log_probs - diversity * taken[:, None]
        ranked, flat_ids = top_k(value.reshape(batch, -1), candidates)
        best = ranked
        if taken is not None:
            best = jnp.take_along_axis(log_probs.reshape(batch, -1), flat_ids, axis=1)
        parents, tokens = flat_ids // vocabulary, (flat_ids % vocabulary).astype(jnp.int32)
        sequences = jnp.take_along_axis(group.live_tokens, parents[..., None], axis=1)
        sequences = jax.lax.dynamic_update_index_in_dim(sequences, tokens, index, axis=2)
        possible = best > NEVER / 2

        ends = (tokens == EOS_ID) & (jnp.arange(candidates) < size) & possible
        scores = jnp.where(ends, worth(best, index + 1), NEVER)
        scores = jnp.where(group.done[:, None], NEVER, scores)
        finished = _best_of(group.finished, Hypotheses(sequences, scores, best), size)
        newly = (scores > NEVER / 2).sum(-1, dtype=jnp.int32)
        finished_count = group.finished_count + newly

        going_on = jnp.where(tokens == EOS_ID, NEVER, ranked)
        live_log_probs, chosen = jax.lax.top_k(going_on, size)
        if taken is not None:
            going_on = jnp.where(tokens == EOS_ID, NEVER, best)
            live_log_probs = jnp.take_along_axis(going_on, chosen, axis=1)
        live_tokens = jnp.take_along_axis(sequences, chosen[..., None], axis=1)
        live_parents = jnp.take_along_axis(parents, chosen, axis=1)

        # log P can only fall; the penalty is monotone in the length, so its largest value over the
        # lengths still open is at one end of them.
        shortest, longest = (
            length_penalty(length, penalty, alpha)[..., None] for length in (index + 2, limits)
        )
        hope = (live_log_probs / jnp.maximum(shortest, longest)).max(-1)
        now = worth(live_log_probs, index + 1).max(-1)
        last_result = finished.scores[:, results - 1]
        enough = (finished_count >= size) & (last_result >= now)
        done = group.done | enough | (last_result >= hope) | (index + 1 >= limits)
        group = _Group(live_tokens, live_log_probs, finished, finished_count, done)
        return group, live_parents

    batch = limits.shape[0]
    nothing = Hypotheses(
        tokens=jnp.full((batch, size, max_length), PAD_ID, jnp.int32),
        scores=jnp.full((batch, size), NEVER),
        log_probs=jnp.full((batch, size), NEVER),
    )
    only_the_first = jnp.where(jnp.arange(size) == 0, 0.0, NEVER)
    start = _Group(
        live_tokens=nothing.tokens,
        live_log_probs=jnp.broadcast_to(only_the_first, (batch, size)),
        finished=nothing,
        finished_count=jnp.zeros((batch,), jnp.int32),
        done=limits <= 0,
    )
    found = decode_loop(
        advance,
        _Search(limits, constraints, (start,) * groups),
        cache,
        going_on=lambda search: ~_done(search),
        max_length=max_length,
        grow=grow,
        take=take,
    ).groups
    first, *others = (group.finished for group in found)
    for other in others:
        first = _best_of(first, other, first.scores.shape[1] + size)
    return first


def _done(search: _Search) -> Bool[Array, " B"]:
    """Whether all groups of a sentence are done."""
    return functools.reduce(jnp.logical_and, [group.done for group in search.groups])


def _side_by_side(groups: Sequence[Array]) -> Array:
    """All beams, from those of each group."""
    return jnp.concatenate(groups, axis=1) if len(groups) > 1 else groups[0]


def _times_taken(
    groups: Sequence[_Group], index: Int[Array, ""], vocabulary: int
) -> Float[Array, "B V"]:
    """How many hypotheses of these groups live on with each token at position `index`."""
    tokens = _side_by_side([group.live_tokens for group in groups])
    tokens = jax.lax.dynamic_index_in_dim(tokens, index, axis=2, keepdims=False)
    alive = _side_by_side([group.live_log_probs for group in groups]) > NEVER / 2
    rows = jnp.arange(tokens.shape[0])[:, None]
    nobody = jnp.zeros((tokens.shape[0], vocabulary))
    return nobody.at[rows, tokens].add(alive.astype(jnp.float32))


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
