# SPDX-License-Identifier: Apache-2.0
"""Beam search (paper 6.1) and diverse beam search; greedy search is the case of one beam.

The search knows no model. A `step` function maps the last token of every beam and a cache to logits
and a new cache, and `reorder` permutes the beams of a cache. The search is one compiled loop.

Exact semantics:

* A hypothesis is a sequence of tokens that ends with EOS, within the sentence's length limit. At
  the limit only EOS may follow, so every score is that of a complete translation. `constraints`
  defines which other tokens may not follow.
* Each step extends the active hypotheses by every token and ranks the extensions by
  log-probability. Among the best K, those that end with EOS become finished (as in Hugging Face;
  with ``finish_from="best_2k"`` among the best 2K, as in Tensor2Tensor). Among the best 2K, the
  first K without EOS become the active hypotheses of the next step.
* The score of a finished hypothesis is log P / penalty(length). EOS counts in the length.
* A sentence is finished when K hypotheses have finished and no active hypothesis, at its current
  length, has a better score than the last of the results that were requested. (Without the second
  condition a few bad early hypotheses would stop the search before a good one ends.)
* A sentence is also finished when no active hypothesis can enter the results. A log-probability can
  only fall, so an upper bound on the final score is the current log-probability over the penalty at
  the most favorable length that is still possible.

Diverse beam search (Vijayakumar et al. 2016) splits the K beams into G groups of K/G beams:

* Each group is a separate beam search, as above. In each step the groups advance in turn.
* When a group ranks its extensions, the log-probability of an extension is lowered by `diversity`
  for each active hypothesis of an earlier group that chose the same token in this step. Active
  hypotheses do not end with EOS, so EOS is never penalized.
* The penalty affects only this ranking. Hypotheses keep the log-probability of the model.
* A finished group continues, for the benefit of later groups, until all groups of its sentence are
  finished.
* Every group keeps its best K finished hypotheses, and those of all groups are ranked together. A
  translation that several groups found is one result.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Shown, SpecialIds, gather
from transformer.config import DecodeConfig
from transformer.decoding.constraints import NEG_INF, UNCONSTRAINED, Constraints, next_log_probs
from transformer.decoding.decode_loop import Cache, Grow, Take, decode_loop
from transformer.errors import InputError
from transformer.platforms import operation

Step = Callable[[Int[Array, "B K"], Cache], tuple[Float[Array, "B K V"], Cache]]
Reorder = Callable[[Cache, Int[Array, "B K"]], Cache]


@flax.struct.dataclass(repr=False)
class Hypotheses(Shown):
    """Results of a search, best first, or samples in the order in which they were drawn."""

    tokens: Int[Array, "B K M"]
    """Padded; ends with EOS. All padding where there is no hypothesis."""
    scores: Float[Array, "B K"]
    """log P / penalty(length), natural logarithm; `NEG_INF` where there is no hypothesis."""
    log_probs: Float[Array, "B K"]
    """log P(tokens | source), natural logarithm, EOS included."""


@flax.struct.dataclass
class _Group:
    """State of one group of K/G beams."""

    active_tokens: Int[Array, "B group_beams M"]
    active_log_probs: Float[Array, "B group_beams"]
    """`NEG_INF` for beams without a hypothesis."""
    finished: Hypotheses
    """The best K finished so far, best first."""
    num_finished: Int[Array, " B"]
    """Number of hypotheses that ever finished."""
    is_finished: Bool[Array, " B"]
    """Whether the search of this group is over."""


@flax.struct.dataclass
class _State:
    """State of the search; every array has the leading axis B, as `decode_loop` requires."""

    length_limits: Int[Array, " B"]
    constraints: Constraints
    groups: tuple[_Group, ...]


def length_penalty(length: Array, penalty: str, alpha: float) -> Float[Array, "..."]:
    """Divisor of log P: ``gnmt`` ((5 + length) / 6)^alpha, ``length`` length^alpha, ``none`` 1.

    Args:
      length: number of tokens, EOS included.
      penalty: one of the names above.
      alpha: exponent; larger values favor longer translations.

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


def output_length_limits(
    source_lengths: Int[Array, " B"], config: DecodeConfig
) -> Int[Array, " B"]:
    """Maximum length of each translation, EOS included (paper 6.1: source length + 50)."""
    if config.max_length is not None:
        return jnp.full_like(source_lengths, config.max_length)
    return source_lengths + config.extra_length


def beam_search(
    step: Step,
    reorder: Reorder,
    cache: Cache,
    length_limits: Int[Array, " B"],
    *,
    num_beams: int,
    max_length: int,
    grow: Grow | None = None,
    take: Take | None = None,
    num_results: int | None = None,
    penalty: str = "gnmt",
    alpha: float = 0.6,
    num_groups: int = 1,
    diversity: float = 0.5,
    finish_from: Literal["best_k", "best_2k"] = "best_k",
    constraints: Constraints = UNCONSTRAINED,
    special_ids: SpecialIds = SpecialIds(),
) -> Hypotheses:
    """Search for the best translations; the module docstring defines the semantics.

    Args:
      step: reads the last token of each beam and predicts the next; it reads BOS at position 0.
      reorder: `reorder(cache, parents)` makes beam k continue from the cache of beam
        `parents[b, k]`, which belongs to the same group.
      cache: for B sentences and K beams, as `decode_loop.decode_loop` needs it.
      length_limits: maximum length of each translation, EOS included, from 1 to `max_length`. A
        sentence with limit 0 is not searched and has no results.
      num_beams: K. 1 is greedy search: the most probable token at every step.
      max_length: M, static.
      grow, take: see `decode_loop.decode_loop`.
      num_results: number of results that must be certain before the search of a sentence may stop
        early; K if None. The remaining results are filled from the other finished hypotheses.
      penalty, alpha: see `length_penalty`.
      num_groups: G, a divisor of K.
      diversity: penalty per hypothesis of an earlier group that chose the same token at this step.
      finish_from: which of the extensions of a step may finish. One beam is greedy with either.
      constraints: tokens that may not follow.
      special_ids: ids of padding, BOS and EOS.

    Returns:
      K hypotheses for each sentence, best first.
    """
    group_beams = num_beams // num_groups
    num_results = min(num_results or num_beams, group_beams)

    def score(log_probs: Array, length: Array) -> Array:
        return log_probs / length_penalty(length, penalty, alpha)

    def best(old: Hypotheses, new: Hypotheses) -> Hypotheses:
        """The K hypotheses with the highest scores, best first."""
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), old, new)
        scores, chosen = jax.lax.top_k(both.scores, num_beams)  # [B, K]
        tokens = gather(both.tokens, chosen[..., None])  # [B, K, M]
        exists = (scores > NEG_INF / 2)[..., None]
        return Hypotheses(
            tokens=jnp.where(exists, tokens, special_ids.pad),
            scores=scores,
            log_probs=gather(both.log_probs, chosen),
        )

    def advance(index: Int[Array, ""], state: _State, cache: Cache) -> tuple[_State, Cache]:
        """Extend every hypothesis by the token at position `index`."""
        tokens = _all_beams([group.active_tokens for group in state.groups])  # [B, K, M]
        logits, cache = step(last_tokens(tokens, index, special_ids.bos), cache)  # [B, K, V]
        log_probs = next_log_probs(
            logits, tokens, index, state.length_limits, state.constraints, special_ids
        )

        groups, parents = [], []
        for number, group in enumerate(state.groups):
            first_beam = number * group_beams
            group_log_probs = log_probs[:, first_beam : first_beam + group_beams]  # [B, K/G, V]
            counts = _chosen_counts(groups, index, log_probs.shape[-1]) if groups else None
            group, group_parents = advance_group(
                group, group_log_probs, counts, index, state.length_limits
            )
            groups.append(group)
            parents.append(first_beam + group_parents)
        return state.replace(groups=tuple(groups)), reorder(cache, _all_beams(parents))

    def advance_group(
        group: _Group,
        log_probs: Float[Array, "B group_beams V"],
        chosen_counts: Float[Array, "B V"] | None,
        index: Int[Array, ""],
        length_limits: Int[Array, " B"],
    ) -> tuple[_Group, Int[Array, "B group_beams"]]:
        """Extend one group; also returns the parent, within the group, of each active beam."""
        # log P of every extension of every active hypothesis.
        ranking = log_probs = group.active_log_probs[..., None] + log_probs  # [B, K/G, V]
        batch, _, vocab_size = log_probs.shape
        if chosen_counts is not None:
            ranking = log_probs - diversity * chosen_counts[:, None]

        # 2 K/G candidates suffice: at most K/G of them end, one for each parent, so K/G remain.
        # Greedy search needs one: if it is EOS, the sentence is finished.
        num_candidates = 1 if num_beams == 1 else min(2 * group_beams, group_beams * vocab_size)
        ranking, flat = operation("top_k", top_k)(ranking, num_candidates)  # [B, 2K/G]
        log_probs = gather(log_probs.reshape(batch, -1), flat)
        parents, tokens = jnp.divmod(flat, vocab_size)
        sequences = gather(group.active_tokens, parents[..., None])
        sequences = jax.lax.dynamic_update_index_in_dim(sequences, tokens, index, axis=2)
        # sequences: [B, 2K/G, M]

        # Among the best K/G (or all 2K/G) candidates, those that end with EOS become finished.
        is_eos = tokens == special_ids.eos
        num_finishing = group_beams if finish_from == "best_k" else num_candidates
        ends = is_eos & (jnp.arange(num_candidates) < num_finishing)
        ends &= (log_probs > NEG_INF / 2) & ~group.is_finished[:, None]
        scores = jnp.where(ends, score(log_probs, index + 1), NEG_INF)
        finished = best(group.finished, Hypotheses(sequences, scores, log_probs))  # [B, K]
        num_finished = group.num_finished + ends.sum(-1, dtype=jnp.int32)

        # The best K/G candidates without EOS stay active.
        _, chosen = jax.lax.top_k(jnp.where(is_eos, NEG_INF, ranking), group_beams)
        active_log_probs = gather(jnp.where(is_eos, NEG_INF, log_probs), chosen)  # [B, K/G]
        active_tokens = gather(sequences, chosen[..., None])  # [B, K/G, M]
        parents = gather(parents, chosen)  # [B, K/G]

        # Log P only falls, and the penalty is monotonic in the length: its largest value over the
        # lengths that are still possible is at the shortest or at the longest of them.
        largest_penalty = jnp.maximum(
            length_penalty(index + 2, penalty, alpha), length_penalty(length_limits, penalty, alpha)
        )
        best_possible_score = (active_log_probs / largest_penalty[:, None]).max(-1)  # [B]
        best_active_score = score(active_log_probs, index + 1).max(-1)  # [B]
        worst_result = finished.scores[:, num_results - 1]  # [B]
        is_finished = (
            group.is_finished
            | ((num_finished >= group_beams) & (worst_result >= best_active_score))
            | (worst_result >= best_possible_score)
            | (index + 1 >= length_limits)
        )
        group = _Group(active_tokens, active_log_probs, finished, num_finished, is_finished)
        return group, parents

    batch = len(length_limits)
    no_hypotheses = Hypotheses(
        tokens=jnp.full((batch, num_beams, max_length), special_ids.pad, jnp.int32),
        scores=jnp.full((batch, num_beams), NEG_INF),
        log_probs=jnp.full((batch, num_beams), NEG_INF),
    )
    # Only beam 0 starts with a hypothesis, the empty one. Otherwise all beams would stay equal.
    first_beam_only = jnp.where(jnp.arange(group_beams) == 0, 0.0, NEG_INF)
    start = _Group(
        active_tokens=no_hypotheses.tokens[:, :group_beams],
        active_log_probs=jnp.broadcast_to(first_beam_only, (batch, group_beams)),
        finished=no_hypotheses,
        num_finished=jnp.zeros((batch,), jnp.int32),
        is_finished=length_limits <= 0,
    )
    state = decode_loop(
        advance,
        _State(length_limits, constraints, (start,) * num_groups),
        cache,
        active=lambda state: ~jnp.stack([group.is_finished for group in state.groups]).all(0),
        max_length=max_length,
        grow=grow,
        take=take,
    )
    results, *others = (group.finished for group in state.groups)
    for other in others:
        # [B, K, K]: hypothesis j of this group is result i of the earlier groups.
        is_same = (results.tokens[:, :, None] == other.tokens[:, None]).all(-1)
        new_scores = jnp.where(is_same.any(1), NEG_INF, other.scores)
        results = best(results, other.replace(scores=new_scores))
    return results  # [B, K]


def top_k(values: Float[Array, "B K V"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k largest of the K V values of each sentence, largest first, and their flat indices.

    Equal values come in the order of their indices. `k` is at most K V.
    """
    return tuple(jax.lax.top_k(values.reshape(len(values), -1), k))


def last_tokens(
    tokens: Int[Array, "B K M"], index: Int[Array, ""], bos_id: int
) -> Int[Array, "B K"]:
    """The token before position `index` of each hypothesis; BOS at position 0."""
    return jnp.where(index == 0, bos_id, tokens[:, :, index - 1])


def _all_beams(groups: Sequence[Array]) -> Array:
    """Concatenate the beams of all groups: `[B, K/G, ...]` each -> `[B, K, ...]`."""
    return jnp.concatenate(groups, axis=1)


def _chosen_counts(
    groups: Sequence[_Group], index: Int[Array, ""], vocab_size: int
) -> Float[Array, "B V"]:
    """Number of active hypotheses of these groups that have each token at position `index`."""
    tokens = _all_beams([group.active_tokens for group in groups])[:, :, index]
    exists = _all_beams([group.active_log_probs for group in groups]) > NEG_INF / 2
    counts = jnp.zeros((len(tokens), vocab_size))
    return counts.at[jnp.arange(len(tokens))[:, None], tokens].add(exists)
