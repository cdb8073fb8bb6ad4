# SPDX-License-Identifier: Apache-2.0
"""What every sub-layer reads, computes and leaves behind, from a full trace."""

import flax.struct
import jax.numpy as jnp

from transformer.arrays import Array, Float, Params
from transformer.capture import StackTrace
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.layers import ACTIVATIONS, feed_forward, layer_norm

NAMES = {
    "encoder": ("self_attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}
"""The sub-layers of a layer, in order."""


@flax.struct.dataclass
class Flow:
    """The residual stream through all U sub-layers of a stack, layer after layer."""

    names: tuple[str, ...] = flax.struct.field(pytree_node=False)
    before: Float[Array, "U *B T D"]
    """x: what the stream is when it comes to the sub-layer."""
    added: Float[Array, "U *B T D"]
    """f(x), or with pre-norm f(LayerNorm(x)): what the sub-layer computes, without dropout."""
    after: Float[Array, "U *B T D"]
    """What goes on: LayerNorm(x + f(x)) with post-norm, x + f(LayerNorm(x)) with pre-norm."""


def flow(params: Params, config: TransformerConfig, trace: StackTrace, side: str) -> Flow:
    """The flow through the ``encoder`` or the ``decoder``.

    A trace keeps the heads' outputs and the stream after each sub-layer; the feed-forward networks'
    outputs are computed once more.

    Args:
      params: the model's.
      config: the model's.
      trace: of this side, captured in full, with or without a batch axis.
      side: ``encoder`` or ``decoder``.

    Raises:
      InputError: when the trace was not captured in full.
    """
    if trace.sublayers is None:
        raise InputError("the trace has no sub-layers; capture it with capture='full'")
    names, before, added, after = [], [], [], []
    for layer in range(config.depth(side)):
        x, own = trace.residual[layer], params[side][f"layer_{layer}"]
        for place, name in enumerate(NAMES[side]):
            names.append(f"{layer + 1} {name.replace('_', '-')}")
            before.append(x)
            if name == "feed_forward":
                added.append(_feed_forward(own, config, x))
            else:
                attended = getattr(trace, name).head_out[layer].sum(-3)
                added.append(attended + own[name].get("output_bias", 0.0))
            x = trace.sublayers[layer, place]
            after.append(x)
    return Flow(tuple(names), *(jnp.stack(part) for part in (before, added, after)))


def _feed_forward(
    own: Params, config: TransformerConfig, x: Float[Array, "*B T D"]
) -> Float[Array, "*B T D"]:
    """The network's output, read as the config's norm placement has it."""
    rows = x.reshape(-1, *x.shape[-2:])
    if config.norm == "pre":
        norm = own["feed_forward_residual"]["norm"]
        rows = layer_norm(rows, norm["scale"], norm["bias"], config.norm_epsilon)
    activation = ACTIVATIONS[config.activation]
    return feed_forward(rows, **own["feed_forward"], activation=activation).reshape(x.shape)
