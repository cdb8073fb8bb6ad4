# SPDX-License-Identifier: Apache-2.0
"""Gated convolutions over positions, and attention in every layer (Gehring et al. 2017).

Weights are normalized (Salimans and Kingma 2016) in every layer but lookup tables. Every formula is
a plain function; the modules declare parameters and call it.
"""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import constant, normal, zeros

from transformer.arrays import Array, Bool, Float, wide
from transformer.nn.attention import masked_softmax
from transformer.nn.linear import einsum, project, wide_einsum
from transformer.nn.parameters import declare

HALF = math.sqrt(0.5)
"""Factor of the sum of two values of equal variance, which keeps that variance (section 3.4)."""


def gated_linear_unit(x: Float[Array, "*B O"]) -> Float[Array, "*B D"]:
    """GLU([A B]) = A * sigmoid(B), with O = 2 D (Dauphin et al. 2016; section 3.2)."""
    linear, gates = jnp.split(x, 2, axis=-1)
    return linear * jax.nn.sigmoid(gates)


def convolve(
    x: Float[Array, "B S D"],
    kernel: Float[Array, "E D O"],
    bias: Float[Array, " O"] | None = None,
    *,
    dilation: int = 1,
) -> Float[Array, "B T O"]:
    """y[t] = sum over e of x[t + e * dilation] kernel[e] + bias, at every complete window.

    One matmul for each position of the window, so that nothing is copied: T is S minus what
    `causal_padding` or `centered_padding` adds.

    Args:
      x: the inputs, padded by one of these.
      kernel: E matrices; of an output, the last reads the latest input.
      bias: bias of the outputs.
      dilation: distance between the inputs of a window (Yu and Koltun 2016).
    """
    width = len(kernel)
    length = x.shape[1] - (width - 1) * dilation
    y = sum(
        project("BTD,DO->BTO", x[:, e * dilation : e * dilation + length], kernel[e])
        for e in range(width)
    )  # [B, T, O]
    return y if bias is None else (y.astype(wide(y.dtype)) + bias).astype(y.dtype)


def causal_padding(
    x: Float[Array, "B T D"], width: int, dilation: int = 1
) -> Float[Array, "B _ D"]:
    """Zeros before the first position, so that no output reads a later input."""
    return jnp.pad(x, ((0, 0), ((width - 1) * dilation, 0), (0, 0)))


def centered_padding(
    x: Float[Array, "B S D"], width: int, dilation: int = 1
) -> Float[Array, "B _ D"]:
    """Zeros on both sides, so that the window of each output is centered on its position."""
    after = (width - 1) // 2 * dilation
    return jnp.pad(x, ((0, 0), ((width - 1) * dilation - after, after), (0, 0)))


def normalized_kernel(
    direction: Float[Array, "*E D O"], scale: Float[Array, " O"], dtype: jnp.dtype
) -> Float[Array, "*E D O"]:
    """scale * direction / norm(direction) for each output (Salimans and Kingma 2016), in float32.

    The direction is rounded to the compute dtype first, so that casting parameters once
    (`protocol.TextModel.cast_params`) changes nothing.
    """
    direction = direction.astype(dtype).astype(wide(dtype))
    norm = jnp.sqrt(jnp.square(direction).sum(tuple(range(direction.ndim - 1))))  # [O]
    return (direction * (scale / norm)).astype(dtype)


def dot_product_attention(
    query: Float[Array, "B T D"],
    key: Float[Array, "B S D"],
    value: Float[Array, "B S D"],
    mask: Bool[Array, "B S"],
    tap: Callable[[str, Array], Array] = lambda name, x: x,
) -> Float[Array, "B T D"]:
    """sqrt(m) softmax(Q K^T) V over the m source positions that the mask selects.

    Scores are not divided by sqrt(D) (equation 1). The factor m sqrt(1/m) undoes the loss of
    variance of a mean over m values (section 3.4). The taps are those of multi-head attention with
    one head; there are none of query and key, whose product is not scaled as there.
    """
    value = tap("value", value[:, :, None])[:, :, 0]  # [B, S, 1, D], one head
    scores = tap("scores", wide_einsum("BTD,BSD->BTS", query, key)[:, None])  # [B, 1, T, S]
    weights = tap("weights", masked_softmax(scores, mask[:, None, None]))
    z = einsum("BTS,BSD->BTD", weights[:, 0].astype(value.dtype), value)
    factor = jnp.sqrt(mask.sum(-1).astype(wide(value.dtype)))[:, None, None]  # [B, 1, 1]
    z = tap("z", (z * factor).astype(value.dtype)[:, :, None])  # [B, T, 1, D]
    return tap("output", z[:, :, 0])


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def scale_gradient(x: Array, factor: float) -> Array:
    """x itself, whose gradient is multiplied by `factor`."""
    return x


@scale_gradient.defjvp
def _scale_gradient_jvp(
    factor: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    return primals[0], tangents[0] * factor


class NormalizedLinear(nn.Module):
    """A linear map with weight normalization, at every position.

    The initial outputs have the variance of the inputs (section 3.5): the norm of the kernel of
    every output begins as the square root of the retained share of its inputs.
    """

    features: int
    input_dropout: float = 0.0
    """Rate of the dropout that is applied to the inputs."""
    axes: tuple[str, str] = ("embed", "mlp")
    is_wide: bool = False
    """Whether the outputs are float32 or wider in every compute dtype, as logits are."""

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T O"]:
        """X W + b."""
        shape = (x.shape[-1], self.features)
        initial = normal(shape[0] ** -0.5), constant(math.sqrt(1 - self.input_dropout))
        direction = declare(self, "direction", "kernel", self.axes, initial[0], shape)
        scale = declare(self, "scale", "scale", self.axes[1:], initial[1], shape[1:])
        bias = declare(self, "bias", "bias", self.axes[1:], zeros, shape[1:])
        kernel = normalized_kernel(direction, scale, x.dtype)
        if self.is_wide:
            return wide_einsum("BTD,DO->BTO", x, kernel) + bias
        return project("BTD,DO->BTO", x, kernel, bias)


class GatedConvolution(nn.Module):
    """A convolution from D to 2 D channels with weight normalization, and the gated linear unit.

    The gates halve the activations, so that the initial weights are twice those of other layers
    (section 3.5).
    """

    width: int
    input_dropout: float = 0.0

    @nn.compact
    def __call__(self, padded: Float[Array, "B S D"]) -> Float[Array, "B T D"]:
        """GLU(X * W + b) at every complete window of the padded inputs."""
        width, channels = padded.shape[-1], 2 * padded.shape[-1]
        shape, axes = (self.width, width, channels), ("position", "embed", "mlp")
        initial = normal((self.width * width) ** -0.5)
        direction = declare(self, "direction", "kernel", axes, initial, shape, num_input_axes=2)
        initial = constant(2 * math.sqrt(1 - self.input_dropout))
        scale = declare(self, "scale", "scale", ("mlp",), initial, (channels,))
        bias = declare(self, "bias", "bias", ("mlp",), zeros, (channels,))
        kernel = normalized_kernel(direction, scale, padded.dtype)
        return gated_linear_unit(convolve(padded, kernel, bias))
