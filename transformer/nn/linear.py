# SPDX-License-Identifier: Apache-2.0
"""Linear maps, and the two einsums that all matmuls of the models are.

They are `jnp.einsum`, except on a platform that has another form (`transformer.platforms`).
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from transformer.arrays import Array, wide
from transformer.platforms import operation


def project(spec: str, x: Array, kernel: Array, bias: Array | None = None) -> Array:
    """x W + b in the dtype of x; for example ``BTD,DNH->BTNH``.

    The bias is added in float32 or wider, because its gradient is a sum over the whole batch.
    """
    y = operation("einsum", jnp.einsum)(spec, x, kernel.astype(x.dtype))
    y = checkpoint_name(y, "matmul")  # which `model.remat` may save
    return y if bias is None else (y.astype(wide(y.dtype)) + bias).astype(y.dtype)


def einsum(spec: str, x: Array, y: Array) -> Array:
    """``jnp.einsum(spec, x, y)`` of two activations of one dtype, which the result has too."""
    return operation("einsum", jnp.einsum)(spec, x, y)


def wide_einsum(spec: str, x: Array, y: Array) -> Array:
    """The einsum of two arrays of one dtype, summed and returned in float32 or wider.

    Of scores and logits. The gradients are matmuls in the dtype of the inputs.
    """
    if x.dtype == wide(x.dtype):
        return einsum(spec, x, y)
    return operation("wide_einsum", _wide_einsum)(spec, x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _wide_einsum(spec: str, x: Array, y: Array) -> Array:
    return jnp.einsum(spec, x, y, preferred_element_type=wide(x.dtype))


def _forward(spec: str, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return _wide_einsum(spec, x, y), (x, y)


def _backward(spec: str, inputs: tuple[Array, Array], dz: Array) -> tuple[Array, Array]:
    """dx = dz y^T and dy = x^T dz, with dz in the dtype of x, or XLA would multiply in float32."""
    x, y = inputs
    x_axes, y_axes, z_axes = spec.replace("->", ",").split(",")
    dz = dz.astype(x.dtype)
    dx = jnp.einsum(f"{z_axes},{y_axes}->{x_axes}", dz, y)
    return dx, jnp.einsum(f"{x_axes},{z_axes}->{y_axes}", x, dz)


_wide_einsum.defvjp(_forward, _backward)
