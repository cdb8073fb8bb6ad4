# SPDX-License-Identifier: Apache-2.0
"""What may come next in a translation, whichever way it is decoded.

By the first of these rules that applies:

1. At a sentence's limit only the end token may follow, so that every translation is complete.
2. Within a forced prefix only the prefix's own token may follow.
3. Elsewhere any token may but padding and the start token, and
   * not the end token before `min_length` tokens,
   * not a token that completes an n-gram of `block_ngrams` tokens which is in the translation
     already; a forced prefix is part of it;
   * where these two leave nothing, the end token.

The end token comes once, so it is in no n-gram that could come twice. A probability is always the
model's own: what is forbidden is taken out, and the rest is not scaled up.
"""

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import BOS_ID, EOS_ID, PAD_ID, Array, Bool, Float, Int

NEVER = -1e30
"""The score of what cannot be chosen; finite, so that sums and products of it are."""


@flax.struct.dataclass
class Constraints:
    """Rules 2 and 3 above; the defaults constrain nothing and cost nothing."""

    min_length: int = flax.struct.field(pytree_node=False, default=0)
    """The fewest tokens before the end token."""
    block_ngrams: int | None = flax.struct.field(pytree_node=False, default=None)
    """No n-gram of so many tokens comes twice."""
    prefix: Int[Array, "B M"] | None = None
    """What each translation begins with, padded with 0."""


UNCONSTRAINED = Constraints()


def next_log_probs(
    logits: Float[Array, "B K V"],
    produced: Int[Array, "B K M"],
    index: Int[Array, ""],
    limits: Int[Array, " B"],
    constraints: Constraints = UNCONSTRAINED,
) -> Float[Array, "B K V"]:
    """Log-probabilities, in float32, of what may come next; `NEVER` for what may not.

    Args:
      logits: of the token at position `index`.
      produced: each hypothesis so far; what stands at `index` and after it is not looked at.
      index: how many tokens each hypothesis has.
      limits: the most tokens each sentence's translation may have, the end token included.
      constraints: the rules beside the limit.
    """
    token = jnp.arange(logits.shape[-1])
    allowed = (token != PAD_ID) & (token != BOS_ID)
    if constraints.block_ngrams is not None:
        allowed = allowed & ~_repeats(produced, index, constraints.block_ngrams, token.size)
    if constraints.min_length:
        # A logit of NEVER says that the model itself rules a token out.
        going_on = allowed & (token != EOS_ID) & (logits > NEVER / 2)
        may_end = (index >= constraints.min_length) | ~going_on.any(-1, keepdims=True)
        allowed = going_on | (may_end & (token == EOS_ID))
    if constraints.prefix is not None:
        forced = jax.lax.dynamic_index_in_dim(constraints.prefix, index, axis=1)[..., None]
        allowed = jnp.where(forced != PAD_ID, token == forced, allowed)
    at_limit = (index + 1 >= limits)[:, None, None]
    allowed = jnp.where(at_limit, token == EOS_ID, allowed)
    return jnp.where(allowed, jax.nn.log_softmax(logits.astype(jnp.float32)), NEVER)


def _repeats(
    produced: Int[Array, "B K M"], index: Int[Array, ""], size: int, vocabulary: int
) -> Bool[Array, "B K V"]:
    """Which tokens would complete an n-gram of `size` tokens that has come before."""
    batch, beams, length = produced.shape
    windows = max(length - size + 1, 0)
    # Every n-gram produced so far, by the place of its first token; its last comes before `index`.
    repeated = jnp.broadcast_to(jnp.arange(windows) + size <= index, (batch, beams, windows))
    for offset in range(size - 1):
        latest = jax.lax.dynamic_index_in_dim(produced, index - size + 1 + offset, axis=2)
        repeated = repeated & (produced[:, :, offset : offset + windows] == latest)
    last = produced[:, :, size - 1 :]
    rows, columns = jnp.arange(batch)[:, None, None], jnp.arange(beams)[:, None]
    nothing = jnp.zeros((batch, beams, vocabulary), bool)
    return nothing.at[rows, columns, last].max(repeated)
