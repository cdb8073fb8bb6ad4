# SPDX-License-Identifier: Apache-2.0
"""Sampling translations token by token, over the same abstract step function as beam search.

The random bits of a sample depend on the key of its sentence, its number among the samples of that
sentence and the position, and on nothing else: neither on the other sentences of the batch nor on
the number of samples.
"""

import math
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Key, SpecialIds, gather
from transformer.decoding.beam_search import Hypotheses, Step, last_tokens, length_penalty
from transformer.decoding.constraints import NEG_INF, UNCONSTRAINED, Constraints, next_log_probs
from transformer.decoding.decode_loop import Cache, Grow, Take, decode_loop
from transformer.errors import InputError
from transformer.platforms import operation

Truncation = Callable[[Float[Array, "B K V"]], Bool[Array, "B K V"]]
"""A rule for which tokens may be drawn, given their log-probabilities."""


@flax.struct.dataclass
class _State:
    """State of the sampling; every array has the leading axis B, as `decode_loop` requires."""

    length_limits: Int[Array, " B"]
    constraints: Constraints
    keys: Key[Array, "B K"]
    tokens: Int[Array, "B K M"]
    log_probs: Float[Array, "B K"]
    is_finished: Bool[Array, "B K"]


def sample(
    step: Step,
    cache: Cache,
    length_limits: Int[Array, " B"],
    keys: Key[Array, " B"],
    *,
    num_samples: int,
    max_length: int,
    grow: Grow | None = None,
    take: Take | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    truncation: Truncation | None = None,
    penalty: str = "gnmt",
    alpha: float = 0.6,
    constraints: Constraints = UNCONSTRAINED,
    special_ids: SpecialIds = SpecialIds(),
) -> Hypotheses:
    """Draw every token from the model's distribution, adapted by `truncate`.

    Args:
      step: reads the last token of each sample and predicts the next; it reads BOS at position 0.
      cache: for B sentences and K samples, as `decode_loop.decode_loop` needs it. Each sample is a
        separate group, because no sample continues from another.
      length_limits: maximum length of each translation, EOS included. Nothing is drawn for a
        sentence with limit 0.
      keys: one for each sentence.
      num_samples: K.
      max_length: M, static.
      grow, take: see `decode_loop.decode_loop`.
      temperature, top_k, top_p, min_p, truncation: see `truncate`.
      penalty, alpha: see `beam_search.length_penalty`.
      constraints: tokens that may not follow.
      special_ids: ids of padding, BOS and EOS.

    Returns:
      K samples for each sentence, in the order in which they were drawn. Log-probabilities are
      those of the model, not of the adapted distribution.
    """
    batch = len(length_limits)
    fold_in = jnp.vectorize(jax.random.fold_in)
    draw = jnp.vectorize(jax.random.categorical, signature="(),(v)->()")

    def advance(index: Int[Array, ""], state: _State, cache: Cache) -> tuple[_State, Cache]:
        """Draw the token at position `index`."""
        logits, cache = step(last_tokens(state.tokens, index, special_ids.bos), cache)  # [B, K, V]
        log_probs = next_log_probs(
            logits, state.tokens, index, state.length_limits, state.constraints, special_ids
        )
        adapted = truncate(log_probs, temperature, top_k, top_p, min_p, truncation)
        tokens = draw(fold_in(state.keys, index), adapted).astype(jnp.int32)  # [B, K]
        log_probs = gather(log_probs, tokens[..., None], axis=-1)[..., 0]  # [B, K]
        tokens = jnp.where(state.is_finished, special_ids.pad, tokens)
        state = state.replace(
            tokens=jax.lax.dynamic_update_index_in_dim(state.tokens, tokens, index, axis=2),
            log_probs=state.log_probs + jnp.where(state.is_finished, 0.0, log_probs),
            is_finished=state.is_finished | (tokens == special_ids.eos),
        )
        return state, cache

    skipped = jnp.broadcast_to((length_limits <= 0)[:, None], (batch, num_samples))
    state = _State(
        length_limits=length_limits,
        constraints=constraints,
        keys=fold_in(keys[:, None], jnp.arange(num_samples)),
        tokens=jnp.full((batch, num_samples, max_length), special_ids.pad, jnp.int32),
        log_probs=jnp.where(skipped, NEG_INF, 0.0),
        is_finished=skipped,
    )
    state = decode_loop(
        advance,
        state,
        cache,
        active=lambda state: ~state.is_finished.all(-1),
        max_length=max_length,
        grow=grow,
        take=take,
    )
    lengths = jnp.maximum((state.tokens != special_ids.pad).sum(-1), 1)  # [B, K]
    scores = state.log_probs / length_penalty(lengths, penalty, alpha)
    return Hypotheses(state.tokens, jnp.where(skipped, NEG_INF, scores), state.log_probs)


def truncate(
    log_probs: Float[Array, "... V"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    truncation: Truncation | None = None,
) -> Float[Array, "... V"]:
    """Logits of the distribution to draw from, `NEG_INF` for tokens that are never drawn.

    The steps apply in this order, each to the distribution that the previous one left. A token as
    probable as the last one kept is kept too.

    Args:
      log_probs: log-probabilities of the model.
      temperature: divides the log-probabilities.
      top_k: keeps the k most probable tokens.
      top_p: keeps the fewest most probable tokens whose probabilities sum to at least this.
      min_p: keeps the tokens with at least this share of the probability of the most probable one.
      truncation: returns which tokens to keep, given the log-probabilities. The most probable one
        is always kept.

    Raises:
      InputError: if `truncation` returns no Boolean array.
    """
    logits = log_probs / temperature
    keep_top = operation("most_probable", most_probable)
    if top_k is not None:
        logits = jnp.where(keep_top(logits, jnp.ones_like(logits), top_k), logits, NEG_INF)
    if top_p < 1:
        logits = jnp.where(keep_top(logits, jax.nn.softmax(logits), top_p), logits, NEG_INF)
    best = logits.max(-1, keepdims=True)
    if min_p > 0:
        logits = jnp.where(logits >= best + math.log(min_p), logits, NEG_INF)
    if truncation is not None:
        kept = truncation(jax.nn.log_softmax(logits))
        if getattr(kept, "dtype", None) != jnp.bool_:
            raise InputError(f"the truncation rule returned {kept}, but must return Booleans")
        logits = jnp.where(kept | (logits == best), logits, NEG_INF)
    return logits


def most_probable(
    log_probs: Float[Array, "... V"], weights: Float[Array, "... V"], total: int | float
) -> Bool[Array, "... V"]:
    """Mark the fewest most probable tokens whose weights sum to at least `total`."""
    order = jnp.argsort(log_probs, axis=-1, descending=True)
    sums = jnp.cumsum(gather(weights, order, axis=-1), axis=-1)
    # Number of tokens kept, less one. Rounding may leave the sum of all weights below `total`.
    last = jnp.minimum((sums < total).sum(-1, keepdims=True), order.shape[-1] - 1)  # [..., 1]
    return log_probs >= gather(log_probs, gather(order, last, axis=-1), axis=-1)
