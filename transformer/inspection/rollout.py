# SPDX-License-Identifier: Apache-2.0
"""Attention rollout: through all layers, how much of each position comes from each word.

Abnar and Zuidema (2020), for encoders: a layer gives each position half of itself, which the
residual connection carries past attention, and half of what its heads read on average; layers are
multiplied. Here the same is said of the decoder, whose positions are made of the source and of the
target read so far. Feed-forward networks and the lengths of vectors are left out: this is a crude
measure, kept for comparison.
"""

import flax.struct
import jax.numpy as jnp

from transformer.arrays import Array, Float


@flax.struct.dataclass
class DecoderRollout:
    """What each decoder position is made of; both parts of a row together sum to 1."""

    source: Float[Array, "L T S"]
    target: Float[Array, "L T T"]


def encoder_rollout(weights: Float[Array, "L N S S"]) -> Float[Array, "L S S"]:
    """After each layer, the shares that the source tokens have in each position; rows sum to 1.

    Args:
      weights: of the encoder's self-attention.
    """
    shares = jnp.eye(weights.shape[-1], dtype=weights.dtype)
    after = []
    for heads in weights:
        shares = 0.5 * shares + 0.5 * heads.mean(0) @ shares
        after.append(shares)
    return jnp.stack(after)


def decoder_rollout(
    self_weights: Float[Array, "L N T T"],
    cross_weights: Float[Array, "L N T S"],
    memory: Float[Array, "S S"],
) -> DecoderRollout:
    """After each layer, the shares of source tokens and of the target tokens that were read.

    Both attentions of a layer give half to what they read and leave half to the residual stream.

    Args:
      self_weights: of the decoder's self-attention.
      cross_weights: of the encoder-decoder attention.
      memory: what the encoder's output is made of, the last of `encoder_rollout`.
    """
    from_source = jnp.zeros(cross_weights.shape[-2:], cross_weights.dtype)
    from_target = jnp.eye(self_weights.shape[-1], dtype=self_weights.dtype)
    sources, targets = [], []
    for own, cross in zip(self_weights.mean(1), cross_weights.mean(1), strict=True):
        from_source = 0.5 * from_source + 0.5 * own @ from_source
        from_target = 0.5 * from_target + 0.5 * own @ from_target
        from_source = 0.5 * from_source + 0.5 * cross @ memory
        from_target = 0.5 * from_target
        sources.append(from_source)
        targets.append(from_target)
    return DecoderRollout(jnp.stack(sources), jnp.stack(targets))
