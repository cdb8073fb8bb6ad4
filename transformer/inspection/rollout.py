# SPDX-License-Identifier: Apache-2.0
"""Attention rollout (Abnar and Zuidema 2020): contributions of the tokens through all layers.

Each layer passes on half of a position through the residual connection and half through the mean of
its heads; the layers are multiplied. Here this is extended to the decoder, which mixes source and
target tokens. Feed-forward networks and vector norms are ignored: a crude measure, for comparison.
"""

import flax.struct
import jax.numpy as jnp

from transformer.arrays import Array, Float


@flax.struct.dataclass
class DecoderRollout:
    """Contributions to each decoder position; the rows of both parts together sum to 1."""

    source: Float[Array, "L T S"]
    target: Float[Array, "L T T"]


def encoder_rollout(weights: Float[Array, "L N S S"]) -> Float[Array, "L S S"]:
    """Contributions of the source tokens to each position after each layer; rows sum to 1.

    Args:
      weights: encoder self-attention.
    """
    rollout = jnp.eye(weights.shape[-1], dtype=weights.dtype)
    layers = []
    for heads in weights:
        rollout = 0.5 * rollout + 0.5 * heads.mean(0) @ rollout
        layers.append(rollout)
    return jnp.stack(layers)


def decoder_rollout(
    self_weights: Float[Array, "L N T T"],
    cross_weights: Float[Array, "L N T S"],
    memory: Float[Array, "S S"],
) -> DecoderRollout:
    """Contributions of the source tokens and of the target tokens read so far, after each layer.

    Self-attention and cross-attention each pass on half through their residual connection.

    Args:
      self_weights: decoder self-attention.
      cross_weights: cross-attention.
      memory: contributions to the encoder's output, the last layer of `encoder_rollout`.
    """
    source = jnp.zeros(cross_weights.shape[-2:], cross_weights.dtype)
    target = jnp.eye(self_weights.shape[-1], dtype=self_weights.dtype)
    sources, targets = [], []
    for self_mean, cross_mean in zip(self_weights.mean(1), cross_weights.mean(1), strict=True):
        source = 0.5 * source + 0.5 * self_mean @ source
        target = 0.5 * target + 0.5 * self_mean @ target
        source = 0.5 * source + 0.5 * cross_mean @ memory
        target = 0.5 * target
        sources.append(source)
        targets.append(target)
    return DecoderRollout(jnp.stack(sources), jnp.stack(targets))
