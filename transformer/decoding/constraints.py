# SPDX-License-Identifier: Apache-2.0
"""Constraints on the next token, shared by beam search and sampling.

The first rule that applies decides which tokens may follow a hypothesis:

1. At the length limit: only EOS, so that every translation is complete.
2. Within a forced prefix: only the prefix's token at that position.
3. Otherwise every token except padding and BOS, and

   * not EOS before `min_length` tokens;
   * not a token that completes an n-gram of `block_ngrams` tokens that the hypothesis, including
     its forced prefix, already contains;
   * if these two rules leave no token: EOS.

EOS occurs once, so no n-gram that contains it can repeat. Log-probabilities are those of the model:
forbidden tokens are masked and the remaining ones are not renormalized. A forced token has
log-probability 0, so that the log-probability of a hypothesis is that of what follows its prefix.
(If it counted, a length penalty would divide that of an improbable prefix, such as the language
code of a multilingual model, by a longer length, and prefer long translations.)
"""

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, SpecialIds

NEG_INF = -1e30
"""Score of what cannot be chosen. Finite, so that sums and products with it stay finite."""


@flax.struct.dataclass
class Constraints:
    """Rules 2 and 3. With the defaults nothing is constrained and nothing is computed."""

    min_length: int = flax.struct.field(pytree_node=False, default=0)
    """Minimum number of tokens before EOS."""
    block_ngrams: int | None = flax.struct.field(pytree_node=False, default=None)
    """No n-gram of this length occurs twice."""
    prefix: Int[Array, "B M"] | None = None
    """Forced first tokens of each translation, padded."""


UNCONSTRAINED = Constraints()


def next_log_probs(
    logits: Float[Array, "B K V"],
    tokens: Int[Array, "B K M"],
    index: Int[Array, ""],
    length_limits: Int[Array, " B"],
    constraints: Constraints = UNCONSTRAINED,
    special_ids: SpecialIds = SpecialIds(),
) -> Float[Array, "B K V"]:
    """Log-probabilities of the next token, `NEG_INF` for forbidden tokens.

    Args:
      logits: predictions for position `index`.
      tokens: tokens of each hypothesis; positions from `index` on are ignored.
      index: number of tokens that each hypothesis has.
      length_limits: maximum number of tokens of each translation, EOS included.
      constraints: rules 2 and 3.
      special_ids: ids of padding, BOS and EOS.
    """
    token_ids = jnp.arange(logits.shape[-1])
    is_eos = token_ids == special_ids.eos
    allowed = (token_ids != special_ids.pad) & (token_ids != special_ids.bos)  # [V] to [B, K, V]
    if constraints.block_ngrams is not None:
        allowed = allowed & ~_repeats_ngram(tokens, index, constraints.block_ngrams, token_ids.size)
    if constraints.min_length:
        # A logit of NEG_INF means that the model itself excludes the token.
        continues = allowed & ~is_eos & (logits > NEG_INF / 2)
        may_end = (index >= constraints.min_length) | ~continues.any(-1, keepdims=True)
        allowed = continues | (may_end & is_eos)
    log_probs = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)  # [B, K, V]
    at_limit = (index + 1 >= length_limits)[:, None, None]  # [B, 1, 1]
    if constraints.prefix is not None:
        forced = constraints.prefix[:, index, None, None]  # [B, 1, 1]
        is_forced = (forced != special_ids.pad) & ~at_limit
        allowed = jnp.where(is_forced, token_ids == forced, allowed)
        log_probs = jnp.where(is_forced, 0.0, log_probs)
    allowed = jnp.where(at_limit, is_eos, allowed)
    return jnp.where(allowed, log_probs, NEG_INF)


def _repeats_ngram(
    tokens: Int[Array, "B K M"], index: Int[Array, ""], n: int, vocab_size: int
) -> Bool[Array, "B K V"]:
    """Mark the tokens that would complete an n-gram which the hypothesis already contains."""
    batch, num_beams, length = tokens.shape
    num_ngrams = max(length - n + 1, 0)
    # Entry i is about the n-gram that begins at position i and ends before `index`.
    repeated = jnp.arange(num_ngrams) + n <= index
    repeated = jnp.broadcast_to(repeated, (batch, num_beams, num_ngrams))  # [B, K, M-n+1]
    # Keep the n-grams whose first n-1 tokens equal the hypothesis's last n-1 tokens.
    for offset in range(n - 1):
        current = tokens[:, :, index - n + 1 + offset, None]  # [B, K, 1]
        repeated = repeated & (tokens[:, :, offset : offset + num_ngrams] == current)
    last_tokens = tokens[:, :, n - 1 :]  # [B, K, M-n+1]
    sentence, beam = jnp.arange(batch)[:, None, None], jnp.arange(num_beams)[:, None]
    nothing = jnp.zeros((batch, num_beams, vocab_size), bool)
    return nothing.at[sentence, beam, last_tokens].max(repeated)
