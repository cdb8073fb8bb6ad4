# SPDX-License-Identifier: Apache-2.0
"""The decoder of recurrent models: its layers, its attention, and its output layer.

The time step, `RecurrentDecoder._step`, is one function for training and for cached decoding.
"""

import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int
from transformer.config import RecurrentConfig
from transformer.models.recurrent.attention import (
    CrossAttention,
    SourceKeys,
    Tap,
    attend,
    attentional_vector,
    maxout,
)
from transformer.models.recurrent.cells import CELLS, State, Weights, multiply
from transformer.models.recurrent.layers import (
    EncodedSource,
    RecurrentLayer,
    by_batch,
    by_time,
    input_gates,
)
from transformer.nn.dropout import apply_dropout
from transformer.nn.linear import project
from transformer.nn.parameters import declare, glorot_uniform
from transformer.nn.taps import tap


@flax.struct.dataclass
class DecoderState:
    """What the decoder keeps from one target position to the next, for each beam or target."""

    layers: tuple[State, ...]
    """Arrays [B,K,D]."""
    input_feed: Float[Array, "B K D"] | None
    """With input feeding, the last attentional vector."""


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
        attention, weights = config.attention, {}
        if attention in ("additive", "concat"):
            weights["query"] = kernel("query", width, width)
            weights["score"] = kernel("score", width, 1)
        if attention in ("additive", "concat", "general"):
            weights["key"] = kernel("key", memory, width)
        if config.local_window is not None:
            weights["position"] = kernel("position", width, width)
            weights["position_score"] = kernel("position_score", width, 1)
        if attention == "additive":
            weights["maxout"] = kernel("maxout", 2 * width + memory, 2 * width)
        elif attention != "none":
            weights["combine"] = kernel("combine", memory + width, width)
        self.weights = weights
        self.cross_attention = CrossAttention()

    def initial(self, memory: EncodedSource) -> DecoderState:
        """The first state, [B,1,D], from the last one of the encoder."""
        layers = memory.states
        if self.bridge:
            # Bahdanau et al. 2015, A.2.2: s_0 = tanh(W s), here for each array of each layer.
            parts, structure = jax.tree.flatten(layers)
            layers = jax.tree.unflatten(structure, map(self._bridge, parts, self.bridge))
        input_feed = jnp.zeros_like(layers[0][0]) if self.config.input_feeding else None
        return DecoderState(layers, input_feed)

    def _bridge(
        self, state: Float[Array, "B 1 D"], kernel: Float[Array, "D D"]
    ) -> Float[Array, "B 1 D"]:
        """tanh(W s): a first state of the decoder from a last one of the encoder."""
        is_bfloat16 = self.config.compute_dtype == "bfloat16"
        return jnp.tanh(multiply(state, kernel, jnp.bfloat16 if is_bfloat16 else kernel.dtype))

    def source_keys(self, memory: EncodedSource, mask: Bool[Array, "B S"]) -> SourceKeys | None:
        """The keys of a source: U m (additive), W m (general), or m itself (dot)."""
        if memory.annotations is None:
            return None
        keys = memory.annotations  # [B, S, A]
        if self.config.attention != "dot":
            keys = project("BSA,AD->BSD", keys, self.weights["key"])
        return SourceKeys(memory.annotations, keys, mask[:, None])

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        state: DecoderState,
        source: SourceKeys | None,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Read all target positions; returns the input of the output map."""
        config = self.config
        if config.attention == "additive" or config.input_feeding:
            hidden, context = self._loop(embedded, state, source, dropout)
        else:
            hidden, context = embedded, None
            for index, (layer, first) in enumerate(zip(self.layer, state.layers, strict=True)):
                if index:
                    hidden = apply_dropout(self, hidden, config.dropout, dropout)
                hidden, _ = layer(hidden, first)
            if config.attention != "none":
                cross_tap = functools.partial(tap, self.cross_attention)
                context = attend(config, self.weights, source, hidden, cross_tap)
                hidden = attentional_vector(self.weights, hidden, context)
        return self._output(hidden, embedded, context)

    def _loop(
        self,
        embedded: Float[Array, "B T D"],
        state: DecoderState,
        source: SourceKeys,
        dropout: Int[Array, " B"] | None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T A"]]:
        """The outputs and the contexts, where a step needs the attention of the one before it."""
        length, rate, masks = embedded.shape[1], self.config.dropout, []
        if dropout is not None and rate:
            ones = jnp.ones_like(embedded)
            masks = [apply_dropout(self, ones, rate, dropout) for _ in self.layer[1:]]
        layers = [layer.weights for layer in self.layer]
        taps_at = self.cross_attention.taps_of_loop(length)

        def step(state: DecoderState, x: tuple[Array, Array, list[Array]]) -> tuple[Any, Any]:
            (t, gates, masks), seen = x, {}
            state, *outputs = self._step(layers, source, state, gates, masks, taps_at(t, seen))
            return state, (outputs, seen)

        xs = (jnp.arange(length), *by_time((input_gates(embedded, layers[0]), masks)))
        _, (outputs, seen) = jax.lax.scan(step, state, xs)
        self.cross_attention.record(seen)
        hidden, context = by_batch(outputs)
        return hidden, context

    def step(
        self, embedded: Float[Array, "B K D"], state: DecoderState, source: SourceKeys | None
    ) -> tuple[Float[Array, "B K D"], DecoderState]:
        """Read one target position of every beam."""
        layers = [layer.weights for layer in self.layer]
        gates = input_gates(embedded, layers[0])
        state, hidden, context = self._step(layers, source, state, gates)
        return self._output(hidden, embedded, context), state

    @nn.nowrap
    def _step(
        self,
        layers: list[Weights],
        source: SourceKeys | None,
        state: DecoderState,
        gates: Float[Array, "B K P"],
        masks: list[Float[Array, "B K D"]] | None = None,
        tap: Tap = lambda name, x: x,
    ) -> tuple[DecoderState, Float[Array, "B K D"], Float[Array, "B K A"] | None]:
        """Read one target position, in training and in cached decoding.

        Args:
          layers: parameters of each layer.
          source: None without attention.
          state: decoder state before the step.
          gates: gates of the embedded token.
          masks: dropout of the input of each layer after the first, if any.
          tap: called with the activations of attention, which it may replace.

        Returns:
          the next state, the output, and the context if there is attention.
        """
        config, cell = self.config, CELLS[self.config.cell].step
        dtype, context = gates.dtype, None
        second_input = state.input_feed
        if config.attention == "additive":
            query = state.layers[-1][0].astype(dtype)
            second_input = context = attend(config, self.weights, source, query, tap)
        if second_input is not None:
            second_input = second_input.astype(dtype)
            gates = gates + project("BKx,xP->BKP", second_input, layers[0]["context"])
        states: list[State] = []
        for index, (weights, previous) in enumerate(zip(layers, state.layers, strict=True)):
            if index:
                below = states[-1][0].astype(dtype)
                gates = input_gates(below * masks[index - 1] if masks else below, weights)
            states.append(cell(gates, previous, weights))
        hidden, input_feed = states[-1][0].astype(dtype), None
        if config.attention in ("dot", "general", "concat"):
            context = attend(config, self.weights, source, hidden, tap)
            hidden = attentional_vector(self.weights, hidden, context)
            input_feed = hidden.astype(states[-1][0].dtype) if config.input_feeding else None
        return DecoderState(tuple(states), input_feed), hidden, context

    def _output(
        self,
        hidden: Float[Array, "B T D"],
        embedded: Float[Array, "B T D"],
        context: Float[Array, "B T A"] | None,
    ) -> Float[Array, "B T D"]:
        """The maxout layer of Bahdanau et al.; in the other models, the loop's output."""
        if self.config.attention != "additive":
            return hidden
        x = jnp.concatenate([hidden, embedded, context.astype(hidden.dtype)], axis=-1)
        return maxout(project("BTx,xy->BTy", x, self.weights["maxout"]))
