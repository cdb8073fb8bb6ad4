# SPDX-License-Identifier: Apache-2.0
"""The position-wise feed-forward network (paper 3.3)."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
from jax.nn.initializers import zeros

from transformer.arrays import Array, Float, Int
from transformer.config import TransformerConfig
from transformer.nn.dropout import apply_dropout
from transformer.nn.linear import project
from transformer.nn.parameters import declare, glorot_uniform
from transformer.nn.taps import tap

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),  # JAX's default is the tanh form
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "swish": jax.nn.swish,
}
GATES = {"reglu": "relu", "geglu": "gelu", "swiglu": "swish"}
"""The activation of each gated feed-forward network (Shazeer 2020)."""


def feed_forward(
    x: Float[Array, "B T D"],
    kernel_in: Float[Array, "D F"],
    bias_in: Float[Array, " F"],
    kernel_out: Float[Array, "F D"],
    bias_out: Float[Array, " D"],
    activation: Callable[[Array], Array] = jax.nn.relu,
    on_hidden: Callable[[Array], Array] = lambda hidden: hidden,
) -> Float[Array, "B T D"]:
    """FFN(x) = max(0, x W1 + b1) W2 + b2, the same at every position."""
    hidden = activation(project("BTD,DF->BTF", x, kernel_in, bias_in))
    return project("BTF,FD->BTD", on_hidden(hidden), kernel_out, bias_out)


def gated_feed_forward(
    x: Float[Array, "B T D"],
    kernel_gate: Float[Array, "D F"],
    kernel_in: Float[Array, "D F"],
    kernel_out: Float[Array, "F D"],
    activation: Callable[[Array], Array],
    on_hidden: Callable[[Array], Array] = lambda hidden: hidden,
) -> Float[Array, "B T D"]:
    """FFN(x) = (activation(x W) * (x V)) W2, without biases (Shazeer 2020, equation 6)."""
    hidden = activation(project("BTD,DF->BTF", x, kernel_gate))
    hidden = hidden * project("BTD,DF->BTF", x, kernel_in)
    return project("BTF,FD->BTD", on_hidden(hidden), kernel_out)


class FeedForward(nn.Module):
    """The feed-forward network of a layer, with the activation of `model.activation`."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], dropout: Int[Array, " B"] | None = None
    ) -> Float[Array, "B T D"]:
        """FFN(x), with `model.activation_dropout` between its two linear maps."""
        config = self.config
        d_model, d_ff = config.d_model, config.d_ff

        def kernel(name: str, axes: tuple[str, str], shape: tuple[int, int]) -> Array:
            return declare(self, name, "kernel", axes, glorot_uniform(0, 1), shape)

        def on_hidden(hidden: Float[Array, "B T F"]) -> Float[Array, "B T F"]:
            hidden = tap(self, "hidden", hidden)
            return apply_dropout(self, hidden, config.activation_dropout, dropout)

        into, out = (("embed", "mlp"), (d_model, d_ff)), (("mlp", "embed"), (d_ff, d_model))
        if config.activation in GATES:
            kernels = (
                kernel("kernel_gate", *into),
                kernel("kernel_in", *into),
                kernel("kernel_out", *out),
            )
            activation = ACTIVATIONS[GATES[config.activation]]
            output = gated_feed_forward(x, *kernels, activation, on_hidden)
        else:
            output = feed_forward(
                x,
                kernel("kernel_in", *into),
                declare(self, "bias_in", "bias", ("mlp",), zeros, (d_ff,)),
                kernel("kernel_out", *out),
                declare(self, "bias_out", "bias", ("embed",), zeros, (d_model,)),
                ACTIVATIONS[config.activation],
                on_hidden,
            )
        return tap(self, "output", output)
