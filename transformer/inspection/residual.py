# SPDX-License-Identifier: Apache-2.0
"""The residual stream around every sublayer: its input, the sublayer's output, and the result.

flow = residual_flow(trace.encoder)
norms = flow.norms()
norms["f(x)"] / norms["x"]

A sublayer f adds its output to the stream x. The result is LayerNorm(x + f(x)) with post-norm (the
paper) and x + f(LayerNorm(x)) with pre-norm.
"""

import flax.struct
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float
from transformer.errors import InputError
from transformer.inspection.activations import StackTrace

Vectors = Float[Array | np.ndarray, "U T D"]
Norms = Float[Array | np.ndarray, "U T"]


@flax.struct.dataclass
class ResidualFlow:
    """Vectors around each of a stack's U sublayers, layer after layer."""

    names: tuple[str, ...] = flax.struct.field(pytree_node=False)
    """Layer, from 1, and sublayer: "1 self-attention"."""
    before: Vectors
    """x: the stream before the sublayer."""
    added: Vectors
    """f(x), or f(LayerNorm(x)) with pre-norm: the sublayer's output."""
    after: Vectors
    """The stream after the sublayer."""

    @property
    def total(self) -> Vectors:
        """x + f(x)."""
        return self.before + self.added

    def norms(self) -> dict[str, Norms]:
        """Euclidean norms of ``x``, ``f(x)``, ``x + f(x)`` and the ``output``."""
        vectors = (self.before, self.added, self.total, self.after)
        names = ("x", "f(x)", "x + f(x)", "output")
        return {name: (each**2).sum(-1) ** 0.5 for name, each in zip(names, vectors, strict=True)}

    def cosine(self) -> Norms:
        """Cosine of x and x + f(x); 0 if one of them is 0."""
        norms = self.norms()
        product = norms["x"] * norms["x + f(x)"]
        return (self.before * self.total).sum(-1) / product.clip(1e-30)


def residual_flow(stack: StackTrace) -> ResidualFlow:
    """Residual flow of one stack.

    Args:
      stack: `Trace.encoder` or `Trace.decoder` of one sentence pair, with full capture.

    Raises:
      InputError: when the capture was not full.
    """
    if stack.residual is None:
        raise InputError("the residual stream was not captured; run with capture='full'")
    outputs = {"self-attention": stack.self_attention.output}
    if stack.cross_attention is not None:
        outputs["cross-attention"] = stack.cross_attention.output
    outputs["feed-forward"] = stack.feed_forward

    def in_order(sublayers: Float[Array, "L _ T D"]) -> Vectors:
        """Merge the axes of L layers and of their W sublayers."""
        return sublayers.reshape(-1, *sublayers.shape[2:])

    before = jnp.concatenate([stack.residual[:-1, None], stack.sublayers[:, :-1]], axis=1)
    layers = range(1, len(stack.feed_forward) + 1)
    return ResidualFlow(
        names=tuple(f"{layer} {name}" for layer in layers for name in outputs),
        before=in_order(before),
        added=in_order(jnp.stack(list(outputs.values()), axis=1)),
        after=in_order(stack.sublayers),
    )
