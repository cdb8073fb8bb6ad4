# SPDX-License-Identifier: Apache-2.0
"""Layer normalization (paper 3.1; Ba et al. 2016) and its variant without mean and bias."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import ones, zeros

from transformer.arrays import Array, Float, wide
from transformer.nn.parameters import declare
from transformer.platforms import operation


def layer_norm(
    x: Float[Array, "*B D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    epsilon: float,
) -> Float[Array, "*B D"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over D, in float32 or wider."""
    centered = x.astype(wide(x.dtype))
    centered = centered - centered.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)  # [*B, 1]
    return (centered * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*B D"], scale: Float[Array, " D"], epsilon: float
) -> Float[Array, "*B D"]:
    """x / sqrt(mean(x^2) + epsilon) * scale over D (Zhang and Sennrich 2019, equation 4)."""
    exact = x.astype(wide(x.dtype))
    mean_square = jnp.square(exact).mean(-1, keepdims=True)  # [*B, 1]
    return (exact * jax.lax.rsqrt(mean_square + epsilon) * scale).astype(x.dtype)


class LayerNorm(nn.Module):
    """Layer normalization with learned scale and bias."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalize x over its last axis."""
        scale = declare(self, "scale", "scale", ("norm",), ones, x.shape[-1:])
        bias = declare(self, "bias", "bias", ("norm",), zeros, x.shape[-1:])
        return operation("norm", _call)(layer_norm, x, scale, bias, self.epsilon)


class RMSNorm(nn.Module):
    """Root mean square normalization with a learned scale."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalize x over its last axis."""
        scale = declare(self, "scale", "scale", ("norm",), ones, x.shape[-1:])
        return operation("norm", _call)(rms_norm, x, scale, self.epsilon)


def _call(norm: Callable[..., Array], *arguments: Any) -> Array:
    return norm(*arguments)


NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
"""The norm of each `model.norm_kind`."""
