# SPDX-License-Identifier: Apache-2.0
"""The residual stream around every sub-layer: what comes in, what is added, what goes on.

flow = residual_flow(trace.encoder)
norm(flow.added) / norm(flow.before)

A sub-layer f adds its output to the stream x. With post-norm (the paper's) the stream goes on as
LayerNorm(x + f(x)); with pre-norm as x + f(LayerNorm(x)).
"""

import flax.struct
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.nn.capture import StackTrace

Vectors = Float[Array | np.ndarray, "U T D"]
Lengths = Float[Array | np.ndarray, "U T"]


@flax.struct.dataclass
class ResidualFlow:
    """The vectors around each of a stack's U sub-layers, layer after layer."""

    names: tuple[str, ...] = flax.struct.field(pytree_node=False)
    """The layer, from 1, and the sub-layer: "1 self-attention"."""
    before: Vectors
    """x: the stream that comes to the sub-layer."""
    added: Vectors
    """f(x), or with pre-norm f(LayerNorm(x)): what the sub-layer puts out."""
    after: Vectors
    """The stream that goes on."""

    @property
    def total(self) -> Vectors:
        """x + f(x)."""
        return self.before + self.added

    def cosine(self) -> Lengths:
        """Of x and x + f(x): 1 where the sub-layer turned nothing; 0 where one of them is 0."""
        lengths = vector_norm(self.before) * vector_norm(self.total)
        return (self.before * self.total).sum(-1) / lengths.clip(1e-30)

    def normalised(self, config: TransformerConfig) -> Vectors:
        """The vectors whose mean and variance over D the layer norms take away."""
        return self.before if config.norm == "pre" else self.total


def residual_flow(stack: StackTrace) -> ResidualFlow:
    """The flow through one stack.

    Args:
      stack: `Trace.encoder` or `Trace.decoder` of one sentence pair, captured in full.

    Raises:
      InputError: when the capture was not full.
    """
    if stack.residual is None:
        raise InputError("the residual stream was not captured; run with capture='full'")
    outputs = {"self-attention": stack.self_attention.output}
    if stack.cross_attention is not None:
        outputs["cross-attention"] = stack.cross_attention.output
    outputs["feed-forward"] = stack.feed_forward

    def in_order(sublayers: Float[Array, "L W T D"]) -> Vectors:
        """Layer after layer, of W sub-layers each."""
        return sublayers.reshape(-1, *sublayers.shape[2:])

    before = jnp.concatenate([stack.residual[:-1, None], stack.sublayers[:, :-1]], axis=1)
    layers = range(1, len(stack.feed_forward) + 1)
    return ResidualFlow(
        names=tuple(f"{layer} {name}" for layer in layers for name in outputs),
        before=in_order(before),
        added=in_order(jnp.stack(list(outputs.values()), axis=1)),
        after=in_order(stack.sublayers),
    )


def vector_norm(vectors: Vectors) -> Lengths:
    """Their Euclidean norms."""
    return (vectors**2).sum(-1) ** 0.5
