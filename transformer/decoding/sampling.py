# SPDX-License-Identifier: Apache-2.0
"""Sampling translations token by token, over the same abstract step function as beam search.

The random bits of a sample depend on the key of its sentence, its number among the samples of that
sentence and the position, and on nothing else: neither on the other sentences of the batch nor on
the number of samples.
"""

import math

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Key, SpecialIds
from transformer.decoding.beam_search import Hypotheses, Step, length_penalty
from transformer.decoding.constraints import NEG_INF, UNCONSTRAINED, Constraints, next_log_probs
from transformer.decoding.decode_loop import Cache, Grow, Take, decode_loop
from transformer.nn.gather import gather
from transformer.nn.matmul import cpu_forms


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
      temperature, top_k, top_p, min_p: see `truncate`.
      penalty, alpha: see `beam_search.length_penalty`.
      constraints: tokens that may not follow.
      special_ids: ids of padding, BOS and EOS.

    Returns:
      K samples for each sentence, in the order in which they were drawn. Log-probabilities are
      those of the model, not of the adapted distribution.
    """
    batch = length_limits.shape[0]
    fold_in_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    sample_keys = jax.vmap(fold_in_each, in_axes=(0, None))(keys, jnp.arange(num_samples))  # [B, K]
    fold_in_index = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(0, None)), in_axes=(0, None))
    draw = jax.vmap(jax.vmap(jax.random.categorical))

    def advance(index: Int[Array, ""], state: _State, cache: Cache) -> tuple[_State, Cache]:
        """Draw the token at position `index`."""
        last_tokens = jax.lax.dynamic_index_in_dim(
            state.tokens, jnp.maximum(index - 1, 0), axis=2, keepdims=False
        )  # [B, K]
        logits, cache = step(
            jnp.where(index == 0, special_ids.bos, last_tokens), cache
        )  # [B, K, V]
        log_probs = next_log_probs(
            logits, state.tokens, index, state.length_limits, state.constraints, special_ids
        )
        adapted = truncate(log_probs, temperature, top_k, top_p, min_p)
        tokens = draw(fold_in_index(state.keys, index), adapted).astype(jnp.int32)  # [B, K]
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
        keys=sample_keys,
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
    """
    logits = log_probs / temperature
    keep_top = keep_top_by_bisection if cpu_forms() else keep_top_by_sorting
    if top_k is not None:
        logits = keep_top(logits, jnp.ones_like(logits), top_k)
    if top_p < 1:
        logits = keep_top(logits, jax.nn.softmax(logits), top_p)
    if min_p > 0:
        threshold = logits.max(-1, keepdims=True) + math.log(min_p)
        logits = jnp.where(logits >= threshold, logits, NEG_INF)
    return logits


def keep_top_by_sorting(
    logits: Float[Array, "... V"], weights: Float[Array, "... V"], total: int | float
) -> Float[Array, "... V"]:
    """Mask all but the fewest most probable tokens whose weights sum to at least `total`."""
    order = jnp.argsort(-logits, axis=-1)  # [..., V], most probable first
    sums = jnp.cumsum(gather(weights, order, axis=-1), axis=-1)
    # Number of tokens kept, less one. Rounding may leave the sum of all weights below `total`.
    last = jnp.minimum((sums < total).sum(-1, keepdims=True), logits.shape[-1] - 1)  # [..., 1]
    threshold = gather(logits, gather(order, last, axis=-1), axis=-1)
    return jnp.where(logits >= threshold, logits, NEG_INF)


def keep_top_by_bisection(
    logits: Float[Array, "... V"], weights: Float[Array, "... V"], total: int | float
) -> Float[Array, "... V"]:
    """`keep_top_by_sorting` for CPUs, on which sorting a vocabulary takes ten times as long.

    Bisection finds the smallest logit to keep. Tokens less probable than the most probable one by a
    factor of e^100 are never kept.
    """
    shifted = logits - logits.max(-1, keepdims=True)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        enough = jnp.where(shifted >= middle, weights, 0.0).sum(-1, keepdims=True) >= total
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    # After 36 steps the interval, 100 / 2^36, is below the resolution of float32.
    high = jnp.zeros_like(shifted[..., :1])  # [..., 1]
    low, _ = jax.lax.fori_loop(0, 36, halve, (high - 100.0, high))
    return jnp.where(shifted >= low, logits, NEG_INF)
