# SPDX-License-Identifier: Apache-2.0
"""Traces: the activations of a forward pass, a view of what the taps of a model recorded.

`trace_of` assembles one for every family that taps (`nn.taps`).
"""

import operator
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Params, Shown
from transformer.errors import InputError
from transformer.models.protocol import Description, Kind, Model

PARTS: dict[Kind, tuple[str, str]] = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}
"""The stack of each kind of attention, and its name in a layer."""


@flax.struct.dataclass
class PerHead:
    """A number for each head, by kind of attention; None for a kind that the model lacks."""

    encoder: Float[Array, "*B _L _N"] | None = None
    decoder: Float[Array, "*B _L _N"] | None = None
    cross: Float[Array, "*B _L _N"] | None = None


@flax.struct.dataclass(repr=False)
class AttentionTrace(Shown):
    """One attention sub-layer, or those of a stack with a leading axis L.

    The trace of one sentence pair (`inspection.run`) has no axis B, here and below.
    """

    weights: Float[Array, "*leading N T S"]
    """After mask and softmax, before dropout; rows sum to 1."""
    scores: Float[Array, "*leading N T S"] | None = None
    """query . key / sqrt(d_k), or the additive score, plus what positions add, before the mask."""
    query: Float[Array, "*leading N T H"] | None = None
    """Queries after rotary positions, if used."""
    key: Float[Array, "*leading N S H"] | None = None
    """Keys after rotary positions; repeated if several query heads share them."""
    value: Float[Array, "*leading N S Hv"] | None = None
    z: Float[Array, "*leading N T Hv"] | None = None
    """For each query, the weighted sum of the values, times the head's gate."""
    head_out: Float[Array, "*leading N T D"] | None = None
    """z W^O for each head; the sum over heads, plus the bias if any, is the output."""
    output: Float[Array, "*leading T D"] | None = None
    """The output of the sub-layer, which is added to the residual stream."""


@flax.struct.dataclass(repr=False)
class StackTrace(Shown):
    """The layers of the encoder or the decoder; fields it lacks are None."""

    self_attention: AttentionTrace | None
    cross_attention: AttentionTrace | None = None
    embedded: Float[Array, "*B T D"] | None = None
    """Scaled token embeddings, before positions are added."""
    positions: Float[Array, "T D"] | None = None
    """What is added to the embeddings: the absolute encodings (zeros if positions enter in
    attention only) and, with `model.timestep_encoding`, that of the first layer.
    """
    feed_forward: Float[Array, "L *B T D"] | None = None
    """The output of each feed-forward network, which is added to the residual stream."""
    sublayers: Float[Array, "L U *B T D"] | None = None
    """The residual stream after each sub-layer."""
    residual: Float[Array, "L+1 *B T D"] | None = None
    """The residual stream: the stack's input, then the output of every layer, with the timestep
    encoding of the next layer if there are such.
    """


@flax.struct.dataclass(repr=False)
class Trace(Shown):
    """One forward pass of a model; a stack that it lacks is None."""

    encoder: StackTrace | None
    decoder: StackTrace | None
    logits: Float[Array, "*B T V"] | None = None

    def attention(self, kind: Kind) -> AttentionTrace | None:
        """The attention of this kind in every layer; None if the model has none."""
        side, name = PARTS[kind]
        return getattr(getattr(self, side), name, None)

    def weights_alone(self) -> "Trace":
        """The attention weights without everything else."""
        return jax.tree_util.tree_map_with_path(
            lambda path, array: array if path[-1].name == "weights" else None, self
        )


def describe(model: Model) -> Description:
    """Describe a model that can be inspected.

    Raises:
      InputError: for something that is no model, or for a model without attention.
    """
    if not hasattr(model, "describe"):
        raise InputError(
            f"model is a {type(model).__name__}, but it must be a model: build(config.model)"
        )
    description = model.describe()
    if not description.attention:
        raise InputError(
            f"the model family {model.config.family!r} has no attention, so there is nothing to "
            "inspect; give a model whose describe() lists kinds of attention"
        )
    return description


def trace_of(params: Params, tapped: dict[str, Any]) -> Trace:
    """The trace of a model's collection ``trace``, with the axis B.

    Taps are found by their modules' names: the stacks ``encoder`` and ``decoder``; their layers
    ``layer_0``, ``layer_1``, ..., or the stack itself if it has none; in a layer
    ``self_attention``, ``cross_attention`` and ``feed_forward``, and the residual connection
    ``<sub-layer>_residual`` of each; and the ``embedding``.
    """
    embedding = tapped.get("embedding", {})
    stacks = {}
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        stacks[stack] = _stack_trace(params.get(stack, {}), tapped.get(stack, {}))
        embedded, positions = (embedding.get(f"{side}_{name}") for name in ("tokens", "positions"))
        if stacks[stack] is not None and embedded is not None:
            stacks[stack] = stacks[stack].replace(embedded=embedded[0], positions=positions[0])
    return Trace(**stacks)


def _stack_trace(params: Params, tapped: dict[str, Any]) -> StackTrace | None:
    """The trace of one stack; None if nothing in it was tapped."""
    if not tapped:
        return None
    layers = layers_of(tapped)
    stack = StackTrace(
        self_attention=_attention_trace(params, layers, "self_attention"),
        cross_attention=_attention_trace(params, layers, "cross_attention"),
    )
    if "residual" not in tapped:
        return stack
    sublayers = ("self_attention", "cross_attention", "feed_forward")
    present = [f"{name}_residual" for name in sublayers if f"{name}_residual" in layers[0]]
    outputs = [[layer[name]["output"] for name in present] for layer in layers]  # [L][U]
    return stack.replace(
        feed_forward=jnp.stack([layer["feed_forward"]["output"] for layer in layers]),
        sublayers=jnp.stack([jnp.stack(row) for row in outputs]),
        residual=jnp.stack(tapped["residual"]),
    )


def layers_of(tapped: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of each layer of a stack; one that is shared has a value for each application."""
    number = sum(name.startswith("layer_") for name in tapped)
    layers = [tapped[f"layer_{i}"] for i in range(number)] or [tapped]

    def is_leaf(node: object) -> bool:
        return isinstance(node, tuple)

    times = max(map(len, jax.tree.leaves(layers[0], is_leaf=is_leaf)))
    return [
        jax.tree.map(operator.itemgetter(time), layer, is_leaf=is_leaf)
        for layer in layers
        for time in range(times)
    ]


def _attention_trace(
    params: Params, layers: list[dict[str, Any]], name: str
) -> AttentionTrace | None:
    """The attention of this name in every layer, heads before positions."""
    if name not in layers[0]:
        return None
    stacked = jax.tree.map(lambda *values: jnp.stack(values), *(layer[name] for layer in layers))
    heads = {
        site: stacked[site].swapaxes(2, 3)  # [L, B, T, N, H] to [L, B, N, T, H]
        for site in ("query", "key", "value", "z")
        if site in stacked
    }
    others = {site: stacked[site] for site in ("weights", "scores", "output") if site in stacked}
    trace = AttentionTrace(**heads, **others)
    kernels = stacked_kernels(params, name, "output", len(layers))  # [L, N, H, D]
    if trace.z is None or trace.output is None:
        return trace
    if kernels is None:  # the context of one head is the output
        return trace.replace(head_out=trace.z)
    kernels = kernels.astype(trace.z.dtype)
    return trace.replace(head_out=jnp.einsum("LBNTH,LNHD->LBNTD", trace.z, kernels))


def stacked_kernels(params: Params, name: str, kernel: str, depth: int) -> Array | None:
    """A kernel of the attention `name` in all L layers of a stack; None if it has none.

    With `model.shared_layers`, all L layers have the parameters of layer_0.
    """
    layers = [params[f"layer_{i}"] for i in range(depth) if f"layer_{i}" in params]
    kernels = [layer[name][kernel] for layer in layers if kernel in layer.get(name, {})]
    return jnp.stack(kernels * (depth // len(kernels))) if kernels else None


def without_batch(trace: Trace) -> Trace:
    """Remove the batch axis of a trace of one sentence pair."""
    axes = {"embedded": 0, "logits": 0, "sublayers": 2}

    def remove(path: tuple[Any, ...], array: Array) -> Array:
        name = path[-1].name
        return array if name == "positions" else array.squeeze(axes.get(name, 1))

    return jax.tree_util.tree_map_with_path(remove, trace)
