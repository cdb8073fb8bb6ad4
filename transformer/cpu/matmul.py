# SPDX-License-Identifier: Apache-2.0
"""Einsums in the forms that XLA's CPU backend computes fastest, with those of their gradients.

The backend has two weaknesses:

- The gradient of y = x W with respect to W is x^T dy. XLA fuses the transposition of x into the
  matmul, which then reads x across its rows and takes up to twice the time of the forward pass.
  `transposing_matmul` transposes x first, or dy if that is narrower, and computes (dy^T x)^T.
  Optimization barriers keep XLA from fusing the transposition again.
- bfloat16 instructions, two to five times as fast as those for float32, are used only where the
  result is float32 and both matrices lie row by row in memory. `rounding_matmul` and
  `batched_matmul` ask for that.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from transformer.arrays import Array, wide


def einsum(spec: str, x: Array, y: Array) -> Array:
    """The form of ``jnp.einsum(spec, x, y)``: the same but for rounding."""
    if x.dtype == y.dtype == jnp.bfloat16:
        return wide_einsum(spec, x, y).astype(x.dtype)
    return transposing_matmul(spec, x, y) if _is_linear_map(spec) else jnp.einsum(spec, x, y)


def wide_einsum(spec: str, x: Array, y: Array) -> Array:
    """The form of `linear.wide_einsum` of bfloat16 arrays, in float32."""
    return (rounding_matmul if _is_linear_map(spec) else batched_matmul)(spec, x, y)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def transposing_matmul(spec: str, x: Array, kernel: Array) -> Array:
    """The einsum of a linear map, with a weight gradient that transposes x first."""
    return jnp.einsum(spec, x, kernel)


@transposing_matmul.defjvp
def _transposing_jvp(
    spec: str, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """dy = dx W + x dW, with the second term as (x^T)^T dW, or as (dW^T x^T)^T, over matrices.

    JAX derives the weight gradient by transposing that term, and the transpose of a barrier is a
    barrier: the gradient is the matmul of x^T, materialized, and dy, or of dy^T and x. A JVP rather
    than a VJP, so that forward mode and higher derivatives work too.
    """
    (x, kernel), (dx, dkernel) = primals, tangents
    barrier = jax.lax.optimization_barrier
    x = barrier(x)
    batch, contracting, output = _axes_of(spec)
    x_axes, kernel_axes, y_axes = _axes_of_arrays(spec)
    size = dict(zip(x_axes + kernel_axes, x.shape + kernel.shape, strict=True))
    width = math.prod(size[axis] for axis in contracting)

    # As matrices: x [batch, contracting], dW [contracting, output], x dW [batch, output].
    x_matrix = jnp.einsum(f"{x_axes}->{batch}{contracting}", x).reshape(-1, width)
    dkernel_matrix = jnp.einsum(f"{kernel_axes}->{contracting}{output}", dkernel)
    dkernel_matrix = dkernel_matrix.reshape(width, -1)
    if width <= dkernel_matrix.shape[1]:
        x_dkernel = jnp.einsum("xr,xy->ry", barrier(x_matrix.T), barrier(dkernel_matrix))
    else:
        x_dkernel = barrier(jnp.einsum("yx,rx->yr", barrier(dkernel_matrix.T), x_matrix)).T
    x_dkernel = x_dkernel.reshape([size[axis] for axis in batch + output])
    x_dkernel = jnp.einsum(f"{batch}{output}->{y_axes}", x_dkernel)
    return transposing_matmul(spec, x, kernel), jnp.einsum(spec, dx, kernel) + x_dkernel


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def rounding_matmul(spec: str, x: Array, kernel: Array) -> Array:
    """The einsum of a linear map of bfloat16 arrays, in float32.

    A VJP rather than a JVP, because the gradients of x and of the kernel must be matmuls of
    bfloat16 arrays too; there is no forward mode.
    """
    return _wide(spec, x, kernel)


def _rounding_forward(spec: str, x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return rounding_matmul(spec, x, kernel), (x, kernel)


def _rounding_backward(spec: str, inputs: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    """dx = dy W^T and dW = x^T dy, with x transposed first."""
    x, kernel = inputs
    dy = dy.astype(x.dtype)
    batch, contracting, output = _axes_of(spec)
    x_axes, kernel_axes, y_axes = _axes_of_arrays(spec)
    size = dict(zip(x_axes + kernel_axes, x.shape + kernel.shape, strict=True))
    width = math.prod(size[axis] for axis in contracting)

    dx = _wide(f"{y_axes},{kernel_axes}->{x_axes}", dy, kernel)
    # As matrices: x [batch, contracting], dy [batch, output], dW [contracting, output].
    x_matrix = jnp.einsum(f"{x_axes}->{batch}{contracting}", x).reshape(-1, width)
    dy_matrix = jnp.einsum(f"{y_axes}->{batch}{output}", dy).reshape(len(x_matrix), -1)
    # Rounded before it is transposed, or XLA would transpose the factors of a float32 product.
    dkernel = _wide("xr,ry->xy", transpose(x_matrix), dy_matrix).astype(x.dtype)
    dkernel = dkernel.reshape([size[axis] for axis in contracting + output])
    return dx.astype(x.dtype), jnp.einsum(f"{contracting}{output}->{kernel_axes}", dkernel)


rounding_matmul.defvjp(_rounding_forward, _rounding_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def batched_matmul(spec: str, x: Array, y: Array) -> Array:
    """The einsum of bfloat16 activations, in float32; its gradients are such matmuls too.

    Both inputs have the batch axes (B and N in ``BTNH,BSNH->BNTS``), one other axis of the result
    each, and the axis to sum over. Where no gradient is asked for, no layout is either, because a
    layout cannot be exported.
    """
    return _wide(spec, x, y)


def _batched_forward(spec: str, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return _multiply_by_rows(spec, x, y), (x, y)


def _batched_backward(spec: str, inputs: tuple[Array, Array], dz: Array) -> tuple[Array, Array]:
    """dx = dz y^T and dy = x^T dz."""
    x, y = inputs
    x_axes, y_axes, z_axes = _axes_of_arrays(spec)
    dz = dz.astype(x.dtype)
    dx = _multiply_by_rows(f"{z_axes},{y_axes}->{x_axes}", dz, y)
    dy = _multiply_by_rows(f"{x_axes},{z_axes}->{y_axes}", x, dz)
    return dx.astype(x.dtype), dy.astype(y.dtype)


batched_matmul.defvjp(_batched_forward, _batched_backward)


def _multiply_by_rows(spec: str, x: Array, y: Array) -> Array:
    """The einsum of `batched_matmul`, of matrices that are in memory row by row."""
    x_axes, y_axes, z_axes = _axes_of_arrays(spec)
    [contracting] = [axis for axis in x_axes if axis not in z_axes]
    [row] = [axis for axis in x_axes if axis not in y_axes]
    [column] = [axis for axis in y_axes if axis not in x_axes]
    batch = "".join(axis for axis in z_axes if axis not in (row, column))
    left = _by_rows(jnp.einsum(f"{x_axes}->{batch}{row}{contracting}", x))
    right = _by_rows(jnp.einsum(f"{y_axes}->{batch}{contracting}{column}", y))
    product = jnp.matmul(left, right, preferred_element_type=wide(x.dtype))
    return jnp.einsum(f"{batch}{row}{column}->{z_axes}", product)


def transpose(x: Array) -> Array:
    """[..., X, Y] to [..., Y, X], for a matmul; bfloat16 is transposed in memory.

    XLA would transpose while it multiplies, in float32. Matmuls of float32 gain nothing from it.
    """
    x = jnp.matrix_transpose(x)
    return _by_rows(x) if x.dtype == jnp.bfloat16 else x


def _by_rows(x: Array) -> Array:
    """The same array, whose matrices [..., X, Y] are in memory row by row."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _wide(spec: str, x: Array, y: Array) -> Array:
    return jnp.einsum(spec, x, y, preferred_element_type=wide(x.dtype))


def _axes_of(spec: str) -> tuple[str, str, str]:
    """The batch axes (in x only), contracting axes (in both) and output axes (in the kernel)."""
    x_axes, kernel_axes, _ = _axes_of_arrays(spec)
    batch = "".join(axis for axis in x_axes if axis not in kernel_axes)
    contracting = "".join(axis for axis in x_axes if axis in kernel_axes)
    output = "".join(axis for axis in kernel_axes if axis not in x_axes)
    return batch, contracting, output


def _axes_of_arrays(spec: str) -> tuple[str, str, str]:
    """``BTD,DF->BTF`` as BTD, DF and BTF."""
    x_axes, kernel_axes, y_axes = spec.replace("->", ",").split(",")
    return x_axes, kernel_axes, y_axes


def _is_linear_map(spec: str) -> bool:
    """Whether the output has all axes of one input alone, and none that both inputs have."""
    batch, _, output = _axes_of(spec)
    return sorted(batch + output) == sorted(_axes_of_arrays(spec)[2])
