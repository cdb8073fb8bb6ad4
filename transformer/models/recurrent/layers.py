# SPDX-License-Identifier: Apache-2.0
"""Layers of recurrent cells, and the encoder that they form."""

import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import orthogonal, zeros

from transformer.arrays import Array, Bool, Float, Int, Key, wide
from transformer.config import RecurrentConfig
from transformer.models.recurrent.cells import CELLS, State, Weights
from transformer.nn.dropout import apply_dropout
from transformer.nn.linear import project
from transformer.nn.parameters import declare, glorot_uniform


class RecurrentLayer(nn.Module):
    """One layer of cells, in one direction."""

    config: RecurrentConfig
    input_width: int
    context_width: int = 0
    """Width of a second input that is known only within the loop; 0 if there is none."""

    def setup(self) -> None:
        """Kernels of the inputs [_,P] and of the state, and the biases."""
        config, cell = self.config, CELLS[self.config.cell]
        width = config.d_model
        gates = cell.gates * width

        def kernel(name: str, inputs: int, outputs: int, initializer: Any) -> Array:
            axes, each_gate = ("embed", "hidden"), functools.partial(per_gate, initializer, width)
            return declare(self, name, "kernel", axes, each_gate, (inputs, outputs))

        glorot = glorot_uniform(0, 1)
        weights = {"input": kernel("input", self.input_width, gates, glorot)}
        for name, number in cell.recurrent_kernels.items():
            weights[name] = kernel(name, width, number * width, orthogonal())
        if self.context_width:
            weights["context"] = kernel("context", self.context_width, gates, glorot)
        initial = forget_bias if config.cell == "lstm" else zeros
        weights["bias"] = declare(self, "bias", "bias", ("hidden",), initial, (gates,))
        if cell.has_recurrent_bias:
            axes = ("hidden",)
            bias = declare(self, "recurrent_bias", "bias", axes, zeros, (width,))
            weights["recurrent_bias"] = bias
        self.weights = weights

    def __call__(
        self,
        x: Float[Array, "B T _"],
        state: State,
        mask: Bool[Array, "B T"] | None = None,
        *,
        reverse: bool = False,
    ) -> tuple[Float[Array, "B T D"], State]:
        """Run over all time steps.

        Args:
          x: the inputs.
          state: the first state.
          mask: false for padding, which leaves the state as it is; None if there is none.
          reverse: begin with the last position.

        Returns:
          the outputs of all positions, and the last state.
        """
        cell = CELLS[self.config.cell].step

        def step(state: State, now: tuple[Array, Array | None]) -> tuple[State, Array]:
            gates, is_token = now  # [B, 1, P], [B, 1, 1]
            new = cell(gates, state, self.weights)
            if is_token is not None:
                new = tuple(jnp.where(is_token, *parts) for parts in zip(new, state, strict=True))
            return new, new[0].astype(x.dtype)

        is_token = None if mask is None else mask[..., None]
        gates = input_gates(x, self.weights)
        state, outputs = jax.lax.scan(step, state, by_time((gates, is_token)), reverse=reverse)
        return by_batch(outputs), state


def input_gates(x: Float[Array, "B T _"], weights: Weights) -> Float[Array, "B T P"]:
    """W x + b of all time steps, in one matmul."""
    return project("BTx,xP->BTP", x, weights["input"], weights["bias"])


def by_time(arrays: Any) -> Any:
    """Arrays [B,T,_] as those of each time step, [T,B,1,_]."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1)[:, :, None], arrays)


def by_batch(arrays: Any) -> Any:
    """The inverse of `by_time`."""
    return jax.tree.map(lambda x: x[:, :, 0].swapaxes(0, 1), arrays)


@flax.struct.dataclass
class EncodedSource:
    """What the decoder gets from the encoder."""

    annotations: Float[Array, "B S A"] | None
    """The states of the last layer at every position, of both directions if there are two; None
    without attention.
    """
    states: tuple[State, ...]
    """The last state of each layer, [B,1,D], after the last token of the source, not of the
    padding. With two directions, that of the backward encoder, after the first token.
    """


class RecurrentEncoder(nn.Module):
    """The layers that read the source, each in one direction or in both."""

    config: RecurrentConfig

    def setup(self) -> None:
        """For each direction, layers ``forward_0``, ``forward_1``, ..., ``backward_0``, ..."""
        config = self.config
        both = config.encoder_direction == "both"
        self.directions = ("forward", "backward") if both else (config.encoder_direction,)
        widths = [config.d_model] + [config.memory_width] * (config.num_layers - 1)
        for name in self.directions:
            layers = [RecurrentLayer(config, width) for width in widths]
            setattr(self, name, layers)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "B S"],
        dropout: Int[Array, " B"] | None = None,
    ) -> EncodedSource:
        """Encode the embedded source."""
        config, states = self.config, []
        zero = jnp.zeros((len(x), 1, config.d_model), wide(x.dtype))
        initial = (zero,) * CELLS[config.cell].state_size
        for index in range(config.num_layers):
            if index:
                x = apply_dropout(self, x, config.dropout, dropout)
            outputs = []
            for name in self.directions:
                layer = getattr(self, name)[index]
                y, state = layer(x, initial, mask, reverse=name == "backward")
                outputs.append(y)
            states.append(state)
            x = jnp.concatenate(outputs, axis=-1)  # [B, S, D] or [B, S, 2D]
        return EncodedSource(None if config.attention == "none" else x, tuple(states))


def per_gate(
    initializer: Any, width: int, key: Key[Array, ""], shape: tuple[int, int]
) -> Float[Array, "width gates"]:
    """Initialize the matrix of each gate by itself; they are next to each other in the kernel."""
    keys = jax.random.split(key, shape[1] // width)
    gates = [initializer(key, (shape[0], width)) for key in keys]
    return jnp.concatenate(gates, axis=1)


def forget_bias(key: Key[Array, ""], shape: tuple[int]) -> Float[Array, " P"]:
    """1 for an LSTM's forget gate, so that it first remembers (Gers et al. 2000), 0 for others."""
    i, f, g, o = jnp.split(jnp.zeros(shape), 4)
    return jnp.concatenate([i, f + 1, g, o])
