# SPDX-License-Identifier: Apache-2.0
"""Translations drawn from the model, token by token, over the same abstract step as beam search.

A sample's randomness depends on its sentence's key, its number among the sentence's samples and the
position, and on nothing else: not on the other sentences, nor on how many samples are drawn.
"""

import math

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import BOS_ID, EOS_ID, PAD_ID, Array, Bool, Float, Int, Key
from transformer.decoding.beam_search import Hypotheses, Step, length_penalty
from transformer.decoding.constraints import NEVER, UNCONSTRAINED, Constraints, next_log_probs
from transformer.decoding.decode_loop import Cache, Grow, Take, decode_loop


@flax.struct.dataclass
class _Samples:
    limits: Int[Array, " B"]
    constraints: Constraints
    keys: Key[Array, "B K"]
    tokens: Int[Array, "B K M"]
    log_probs: Float[Array, "B K"]
    ended: Bool[Array, "B K"]


def sample(
    step: Step,
    cache: Cache,
    limits: Int[Array, " B"],
    keys: Key[Array, " B"],
    *,
    samples: int,
    max_length: int,
    grow: Grow = lambda cache, _: cache,
    take: Take | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    penalty: str = "gnmt",
    alpha: float = 0.6,
    constraints: Constraints = UNCONSTRAINED,
) -> Hypotheses:
    """Draws every token from the model's distribution, sharpened and truncated as asked.

    Args:
      step: reads the last token of each sample; position 0 reads the start token.
      cache: for B sentences and K samples, at position 0, with the first room of
        `decoding_loop.rooms`; a group for each sample, because no sample goes on from another.
      limits: the most tokens each sentence's translation may have, the end token included; nothing
        is drawn for a sentence with limit 0.
      keys: one a sentence.
      samples: K.
      max_length: M, static.
      grow: see `decoding_loop.decode_loop`.
      take: see `decoding_loop.decode_loop`.
      temperature: see `truncate`.
      top_k: see `truncate`.
      top_p: see `truncate`.
      min_p: see `truncate`.
      penalty: see `decoding.length_penalty`.
      alpha: see `decoding.length_penalty`.
      constraints: what may not follow.

    Returns:
      K samples a sentence in the order in which they were drawn. The log-probabilities are the
      model's own, not those of the distribution that was drawn from.
    """
    batch = limits.shape[0]
    numbered = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    sample_keys = jax.vmap(numbered, in_axes=(0, None))(keys, jnp.arange(samples))
    at_position = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(0, None)), in_axes=(0, None))
    draw = jax.vmap(jax.vmap(jax.random.categorical))

    def advance(index: Array, drawn: _Samples, cache: Cache) -> tuple[_Samples, Cache]:
        last = jax.lax.dynamic_index_in_dim(
            drawn.tokens, jnp.maximum(index - 1, 0), axis=2, keepdims=False
        )
        logits, cache = step(jnp.where(index == 0, BOS_ID, last), cache)
        log_probs = next_log_probs(logits, drawn.tokens, index, drawn.limits, drawn.constraints)
        chances = truncate(log_probs, temperature, top_k, top_p, min_p)
        token = draw(at_position(drawn.keys, index), chances).astype(jnp.int32)
        log_prob = jnp.take_along_axis(log_probs, token[..., None], axis=-1)[..., 0]
        token = jnp.where(drawn.ended, PAD_ID, token)
        drawn = drawn.replace(
            tokens=jax.lax.dynamic_update_index_in_dim(drawn.tokens, token, index, axis=2),
            log_probs=drawn.log_probs + jnp.where(drawn.ended, 0.0, log_prob),
            ended=drawn.ended | (token == EOS_ID),
        )
        return drawn, cache

    nowhere = jnp.broadcast_to((limits <= 0)[:, None], (batch, samples))
    start = _Samples(
        limits=limits,
        constraints=constraints,
        keys=sample_keys,
        tokens=jnp.full((batch, samples, max_length), PAD_ID, jnp.int32),
        log_probs=jnp.where(nowhere, NEVER, 0.0),
        ended=nowhere,
    )
    drawn = decode_loop(
        advance,
        start,
        cache,
        going_on=lambda drawn: ~drawn.ended.all(-1),
        max_length=max_length,
        grow=grow,
        take=take,
    )
    lengths = jnp.maximum((drawn.tokens != PAD_ID).sum(-1), 1)
    scores = drawn.log_probs / length_penalty(lengths, penalty, alpha)
    return Hypotheses(drawn.tokens, jnp.where(nowhere, NEVER, scores), drawn.log_probs)


def truncate(
    log_probs: Float[Array, "... V"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Float[Array, "... V"]:
    """Logits of the distribution to draw from; `NEVER` for tokens that are not to be drawn.

    In this order, each on the distribution that the one before it has left: `temperature` divides
    the log-probabilities; `top_k` keeps the so many most probable tokens; `top_p` keeps the fewest
    most probable tokens that together have at least this probability; `min_p` keeps those with at
    least this share of the most probable one's. A token that is exactly as probable as the last one
    kept is kept too.
    """
    logits = log_probs / temperature
    if top_k is not None:
        logits = _most_probable(logits, jnp.ones_like(logits), top_k)
    if top_p < 1:
        logits = _most_probable(logits, jax.nn.softmax(logits), top_p)
    if min_p > 0:
        least = logits.max(-1, keepdims=True) + math.log(min_p)
        logits = jnp.where(logits >= least, logits, NEVER)
    return logits


def _most_probable(
    logits: Float[Array, "... V"], weights: Float[Array, "... V"], wanted: int | float
) -> Float[Array, "... V"]:
    """Keeps the fewest most probable tokens whose weights sum to what is wanted.

    The least logit to keep is found by bisection: to sort a vocabulary takes ten times as long on a
    CPU. Tokens less probable than the most probable one by a factor of e^100 are not kept.
    """
    below = logits - logits.max(-1, keepdims=True)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        enough = jnp.where(below >= middle, weights, 0.0).sum(-1, keepdims=True) >= wanted
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    # 100 / 2^36 is less than float32 can tell apart near the threshold.
    high = jnp.zeros_like(below[..., :1])
    low, _ = jax.lax.fori_loop(0, 36, halve, (high - 100.0, high))
    return jnp.where(below >= low, logits, NEVER)
