# SPDX-License-Identifier: Apache-2.0
"""The decoder of recurrent models: its layers, its attention, and its output layer.

The time step, `_decoder_step`, is one function for training and for cached decoding.
"""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int
from transformer.config import RecurrentConfig
from transformer.models.recurrent.attention import additive_scores, dot_scores, local_window, maxout
from transformer.models.recurrent.cells import CELLS, Multiply, State, multiply_by, scan_time
from transformer.models.recurrent.layers import EncodedSource, RecurrentLayer, cast
from transformer.nn.attention import masked_softmax
from transformer.nn.dropout import apply_dropout
from transformer.nn.matmul import matmul, project
from transformer.nn.parameters import declare, glorot_uniform


@flax.struct.dataclass
class DecoderState:
    """What the decoder keeps from one target position to the next, for each beam or target."""

    layers: tuple[State, ...]
    """Arrays [B,K,D]."""
    input_feed: Float[Array, "B K D"] | None
    """With input feeding, the last attentional vector."""


@flax.struct.dataclass
class Attended:
    """The result of attention."""

    context: Float[Array, "B T A"]
    weights: Float[Array, "B T S"] | None = None
    scores: Float[Array, "B T S"] | None = None


@flax.struct.dataclass
class SourceKeys:
    """What attention needs of a source; computed once."""

    annotations: Float[Array, "B S A"]
    keys: Float[Array, "B S D"]
    mask: Bool[Array, "B 1 S"]
    gate: Float[Array, ""] | None = None
    """Factor of the context, for interventions."""


class RecurrentDecoder(nn.Module):
    """The layers that write the target, their attention, and the output layer."""

    config: RecurrentConfig

    def setup(self) -> None:
        """The layers, the attention's kernels, and those between encoder and decoder."""
        config = self.config
        width, memory = config.d_model, config.memory_width
        context = {"additive": memory}.get(config.attention, width if config.input_feeding else 0)
        self.layer = [
            RecurrentLayer(config, width, 0 if index else context)
            for index in range(config.num_layers)
        ]

        def kernel(name: str, inputs: int, outputs: int) -> Array:
            axes, shape = ("embed", "hidden"), (inputs, outputs)
            return declare(self, name, "kernel", axes, glorot_uniform(0, 1), shape)

        self.bridge: list[Array] = []
        if config.encoder_direction == "both":
            size = CELLS[config.cell].state_size
            names = [f"bridge_{i}_{j}" for i in range(config.num_layers) for j in range(size)]
            self.bridge = [kernel(name, width, width) for name in names]
        attention, kernels, vectors = config.attention, {}, {}
        if attention in ("additive", "concat"):
            kernels["query"] = kernel("query", width, width)
            vectors["score"] = kernel("score", width, 1)
        if attention in ("additive", "concat", "general"):
            self.key_kernel = kernel("key", memory, width)
        if config.local_window is not None:
            kernels["position"] = kernel("position", width, width)
            vectors["position"] = kernel("position_score", width, 1)
        if attention == "additive":
            self.maxout_kernel = kernel("maxout", 2 * width + memory, 2 * width)
        elif attention != "none":
            kernels["combine"] = kernel("combine", memory + width, width)
        self.attention_kernels, self.vectors = kernels, vectors

    def initial(self, memory: EncodedSource) -> DecoderState:
        """The first state, [B,1,D], from the last one of the encoder."""
        states = memory.states
        if self.bridge:
            # Bahdanau et al. 2015, A.2.2: s_0 = tanh(W s), here for each array of each layer.
            kernels = [cast(kernel, self.config.compute_dtype) for kernel in self.bridge]
            parts, structure = jax.tree.flatten(states)
            bridged = map(bridge, parts, kernels)
            states = jax.tree.unflatten(structure, bridged)
        layers = jax.tree.map(lambda part: part[:, None], states)
        input_feed = jnp.zeros_like(layers[0][0]) if self.config.input_feeding else None
        return DecoderState(layers, input_feed)

    def source_keys(
        self, memory: EncodedSource, mask: Bool[Array, "B S"], gate: Array | None = None
    ) -> SourceKeys | None:
        """The keys of a source: U m (additive), W m (general), or m itself (dot)."""
        if memory.annotations is None:
            return None
        keys = memory.annotations  # [B, S, A]
        if self.config.attention != "dot":
            keys = project("BSA,AD->BSD", keys, self.key_kernel)
        return SourceKeys(memory.annotations, keys, mask[:, None], gate)

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        state: DecoderState,
        source: SourceKeys | None,
        *,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
        capture: bool = False,
    ) -> tuple[Float[Array, "B T D"], Attended | None]:
        """Read all target positions; returns the input of the output map, and the attention."""
        config, mode = self.config, {"train": train, "example_ids": example_ids}
        if config.attention == "additive" or config.input_feeding:
            masks = []
            if train and config.dropout:
                ones = jnp.ones_like(embedded)
                masks = [apply_dropout(self, ones, config.dropout, **mode) for _ in self.layer[1:]]
            gates = self.layer[0].gates(embedded.swapaxes(0, 1))  # [T, B, P]
            xs = (gates[:, :, None], [mask.swapaxes(0, 1)[:, :, None] for mask in masks])
            step = functools.partial(_decoder_step, config, embedded.dtype, capture)
            loop = (self._constants(source), self._kernels())
            _, outputs = scan_time(step, False, state, xs, *loop)
            hidden, attended = jax.tree.map(lambda y: y[:, :, 0].swapaxes(0, 1), outputs)
        else:
            hidden, attended = embedded, None
            for index, (layer, first) in enumerate(zip(self.layer, state.layers, strict=True)):
                if index:
                    hidden = apply_dropout(self, hidden, config.dropout, **mode)
                hidden, _ = layer(hidden, jax.tree.map(lambda part: part[:, 0], first))
            if config.attention != "none":
                multiply = _matmul_by(self._kernels())
                constants = self._constants(source)
                attended = attend(config, multiply, constants, hidden)
                hidden = attentional_vector(multiply, hidden, attended.context)
        return self._output(hidden, embedded, attended), attended

    def step(
        self, embedded: Float[Array, "B K D"], state: DecoderState, source: SourceKeys | None
    ) -> tuple[Float[Array, "B K D"], DecoderState]:
        """Read one target position of every beam."""
        multiply = multiply_by(self._kernels())
        x = (self.layer[0].gates(embedded), [])
        constants = self._constants(source)
        state, (hidden, attended) = _decoder_step(
            self.config, embedded.dtype, False, multiply, constants, state, x
        )
        return self._output(hidden, embedded, attended), state

    def _output(
        self,
        hidden: Float[Array, "B T D"],
        embedded: Float[Array, "B T D"],
        attended: Attended | None,
    ) -> Float[Array, "B T D"]:
        """The maxout layer of Bahdanau et al.; in the other models, the loop's output."""
        if self.config.attention != "additive":
            return hidden
        x = jnp.concatenate([hidden, embedded, attended.context.astype(hidden.dtype)], axis=-1)
        return maxout(project("BTx,xy->BTy", x, self.maxout_kernel))

    def _kernels(self) -> dict[str, Array]:
        """All kernels of the loop; those of a layer have its number in their name."""
        dtype = self.config.compute_dtype
        kernels = {name: cast(kernel, dtype) for name, kernel in self.attention_kernels.items()}
        for index, layer in enumerate(self.layer):
            kernels |= {f"{name}_{index}": kernel for name, kernel in layer.kernels().items()}
            if index:
                kernels[f"input_{index}"] = cast(layer.input_kernel, dtype)
        return kernels

    def _constants(self, source: SourceKeys | None) -> dict[str, Any]:
        """What every step reads besides the kernels."""
        dtype = self.config.compute_dtype
        return {
            "bias": [layer.bias for layer in self.layer],
            "recurrent_bias": [layer.recurrent_bias for layer in self.layer],
            "vectors": {name: cast(v[:, 0], dtype) for name, v in self.vectors.items()},
            "source": source,
        }


def bridge(state: Float[Array, "B D"], kernel: Float[Array, "D D"]) -> Float[Array, "B D"]:
    """tanh(W s): a first state of the decoder from a last one of the encoder."""
    return jnp.tanh(project("BD,Dy->By", state.astype(kernel.dtype), kernel)).astype(state.dtype)


def _decoder_step(
    config: RecurrentConfig,
    dtype: Any,
    capture: bool,
    multiply: Multiply,
    constants: Mapping[str, Any],
    state: DecoderState,
    x: tuple[Array, list[Array]],
) -> tuple[DecoderState, tuple[Array, Attended | None]]:
    """One target position of the decoder, in training and in cached decoding.

    Args:
      config: of the model.
      dtype: of the outputs.
      capture: whether to return all of the attention, and not only what the output needs.
      multiply: by a kernel.
      constants: from `RecurrentDecoder._constants`.
      state: before the step.
      x: the gates of the embedded token [B,K,P], and the dropout of the input of each layer after
        the first; none without dropout.
    """
    gates, masks = x
    attended, second_input = None, state.input_feed
    if config.attention == "additive":
        attended = attend(config, multiply, constants, state.layers[-1][0])
        second_input = attended.context
    if second_input is not None:
        gates = gates + multiply("context_0", second_input)
    layers: list[State] = []
    for index, layer in enumerate(state.layers):
        if index:
            below = layers[-1][0].astype(dtype)
            below = below * masks[index - 1] if masks else below
            gates = multiply(f"input_{index}", below) + constants["bias"][index]

        def multiply_in_layer(name: str, h: Array, index: int = index) -> Array:
            return multiply(f"{name}_{index}", h)

        bias = constants["recurrent_bias"][index]
        layers.append(CELLS[config.cell].step(gates, layer, multiply_in_layer, bias))
    hidden, input_feed = layers[-1][0].astype(dtype), None
    if config.attention in ("dot", "general", "concat"):
        attended = attend(config, multiply, constants, hidden)
        hidden = attentional_vector(multiply, hidden, attended.context)
        input_feed = hidden.astype(layers[-1][0].dtype) if config.input_feeding else None
    if not capture:
        is_read = config.attention == "additive"
        attended = Attended(attended.context) if is_read else None
    return DecoderState(tuple(layers), input_feed), (hidden, attended)


def attend(
    config: RecurrentConfig,
    multiply: Multiply,
    constants: Mapping[str, Any],
    query: Float[Array, "B T D"],
) -> Attended:
    """The context of decoder states: the sum of the annotations, weighted by their scores."""
    source, vectors = constants["source"], constants["vectors"]
    if config.attention in ("additive", "concat"):
        scores = additive_scores(multiply("query", query), source.keys, vectors["score"])
    else:
        scores = dot_scores(query, source.keys)
    mask = source.mask  # [B, 1, S]
    if config.local_window is not None:
        hidden = multiply("position", query)
        bias, mask = local_window(hidden, vectors["position"], mask, config.local_window)
        scores = scores + bias
    weights = masked_softmax(scores[:, None], mask[:, None])[:, 0]  # [B, T, S]
    annotations = source.annotations
    context = jnp.einsum("BTS,BSA->BTA", weights.astype(annotations.dtype), annotations)
    if source.gate is not None:
        context = context * source.gate.astype(context.dtype)
    return Attended(context, weights, scores)


def attentional_vector(
    multiply: Multiply, hidden: Float[Array, "B T D"], context: Float[Array, "B T A"]
) -> Float[Array, "B T D"]:
    """tanh(W [c; s]) (Luong et al. 2015, equation 5)."""
    both = jnp.concatenate([context.astype(hidden.dtype), hidden], axis=-1)
    return jnp.tanh(multiply("combine", both)).astype(hidden.dtype)


def _matmul_by(kernels: Mapping[str, Array]) -> Multiply:
    """As `multiply_by`, outside of a loop: `matmul` has the form with fast gradients."""
    return lambda name, x: matmul("BTx,xy->BTy", x.astype(kernels[name].dtype), kernels[name])
