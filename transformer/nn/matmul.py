# SPDX-License-Identifier: Apache-2.0
"""Multiplication of activations by a kernel, with the forms that only XLA's CPU backend needs.

On accelerators `matmul` is the einsum. XLA's CPU backend has two weaknesses that other forms avoid:

- The gradient of y = x W with respect to W is x^T dy. The backend fuses the transposition of x into
  the matmul, which then reads x across its rows and takes up to twice the time of the forward pass.
  `transposing_matmul` transposes x first, or dy if that is narrower, and computes (dy^T x)^T.
  Optimization barriers keep XLA from fusing the transposition again.
- bfloat16 instructions, two to five times as fast as those for float32, are used only where the
  result is float32 and both matrices lie row by row in memory. `rounding_matmul` asks for that and
  rounds once: the same matmul with more exact sums. `batched_einsum` does it for attention, whose
  matrices are both activations.

`cpu_forms` is the switch for these and for all other CPU-only forms of the library.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

from transformer.arrays import Array, wide

_override: contextvars.ContextVar[bool | None] = contextvars.ContextVar("cpu_forms", default=None)


def cpu_forms() -> bool:
    """Whether to trace the forms for XLA's CPU backend: by default, where that is the backend."""
    override = _override.get()
    return jax.default_backend() == "cpu" if override is None else override


@contextlib.contextmanager
def use_cpu_forms(value: bool) -> Iterator[None]:
    """Override `cpu_forms` for what is traced inside; compiled functions are not traced again."""
    token = _override.set(value)
    try:
        yield
    finally:
        _override.reset(token)


def project(spec: str, x: Array, kernel: Array, bias: Array | None = None) -> Array:
    """Apply a linear map: an einsum of activations and a kernel, plus a bias.

    The kernel is cast to the compute dtype, which is that of the activations. The bias is added in
    float32 or wider, because its gradient is a sum over all positions of the batch.
    """
    output = matmul(spec, x, kernel.astype(x.dtype))
    if bias is None:
        return output
    return (output.astype(wide(x.dtype)) + bias).astype(x.dtype)


def matmul(spec: str, x: Array, kernel: Array) -> Array:
    """``jnp.einsum(spec, x, kernel)``: the same values and, but for rounding, derivatives.

    Args:
      spec: an einsum of two arrays, for example ``BTD,DNH->BTNH``. CPU forms exist where every axis
        of both inputs is contracted.
      x: the activations.
      kernel: in the dtype of the activations.
    """
    if cpu_forms() and _contracts_shared_axes(spec):
        rounds = x.dtype == kernel.dtype == jnp.bfloat16
        return (rounding_matmul if rounds else transposing_matmul)(spec, x, kernel)
    return jnp.einsum(spec, x, kernel)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def transposing_matmul(spec: str, x: Array, kernel: Array) -> Array:
    """The einsum, with a weight gradient that transposes x first (CPU form)."""
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
    batch, contracting, output = axes_of(spec)
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
    """The einsum of bfloat16 arrays, summed in float32 and rounded once (CPU form).

    A VJP rather than a JVP, because the gradients of x and of the kernel must be matmuls of
    bfloat16 arrays too; there is no forward mode.
    """
    return rounded_einsum(spec, x, kernel)


def _rounding_forward(spec: str, x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return rounding_matmul(spec, x, kernel), (x, kernel)


def _rounding_backward(spec: str, inputs: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    """dx = dy W^T and dW = x^T dy, with x transposed first."""
    x, kernel = inputs
    batch, contracting, output = axes_of(spec)
    x_axes, kernel_axes, y_axes = _axes_of_arrays(spec)
    size = dict(zip(x_axes + kernel_axes, x.shape + kernel.shape, strict=True))
    width = math.prod(size[axis] for axis in contracting)

    dx = rounded_einsum(f"{y_axes},{kernel_axes}->{x_axes}", dy, kernel)
    # As matrices: x [batch, contracting], dy [batch, output], dW [contracting, output].
    x_matrix = jnp.einsum(f"{x_axes}->{batch}{contracting}", x).reshape(-1, width)
    dy_matrix = jnp.einsum(f"{y_axes}->{batch}{output}", dy).reshape(len(x_matrix), -1)
    dkernel = rounded_einsum("xr,ry->xy", transposed(x_matrix), dy_matrix)
    dkernel = dkernel.reshape([size[axis] for axis in contracting + output])
    return dx, jnp.einsum(f"{contracting}{output}->{kernel_axes}", dkernel)


rounding_matmul.defvjp(_rounding_forward, _rounding_backward)


def rounded_einsum(spec: str, x: Array, y: Array) -> Array:
    """The einsum, summed in float32 or wider and rounded once to the dtype of x."""
    return jnp.einsum(spec, x, y, preferred_element_type=wide(x.dtype)).astype(x.dtype)


def batched_einsum(spec: str, x: Array, y: Array, dtype: DTypeLike) -> Array:
    """``jnp.einsum(spec, x, y)`` of two activations that share their batch axes.

    Args:
      spec: for example ``BTNH,BSNH->BNTS``: both inputs have the batch axes B and N, one other axis
        of the result each, and the axis to sum over.
      x: the left matrices.
      y: the right ones.
      dtype: of the result; a CPU sums bfloat16 in float32 and rounds once.
    """
    if cpu_forms() and x.dtype == y.dtype == jnp.bfloat16:
        return rounding_batched_einsum(spec, x, y).astype(dtype)
    return jnp.einsum(spec, x, y, preferred_element_type=dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def rounding_batched_einsum(spec: str, x: Array, y: Array) -> Array:
    """The einsum of bfloat16 arrays, in float32; its gradients are such matmuls too (CPU form).

    Where no gradient is asked for, no layout is either, because a layout cannot be exported.
    """
    return jnp.einsum(spec, x, y, preferred_element_type=wide(x.dtype))


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


rounding_batched_einsum.defvjp(_batched_forward, _batched_backward)


def _multiply_by_rows(spec: str, x: Array, y: Array) -> Array:
    """The einsum of `batched_einsum` in float32, of matrices that are in memory row by row."""
    x_axes, y_axes, z_axes = _axes_of_arrays(spec)
    [contracting] = [axis for axis in x_axes if axis not in z_axes]
    [row] = [axis for axis in x_axes if axis not in y_axes]
    [column] = [axis for axis in y_axes if axis not in x_axes]
    batch = "".join(axis for axis in z_axes if axis not in (row, column))
    left = _by_rows(jnp.einsum(f"{x_axes}->{batch}{row}{contracting}", x))
    right = _by_rows(jnp.einsum(f"{y_axes}->{batch}{contracting}{column}", y))
    product = jnp.matmul(left, right, preferred_element_type=wide(x.dtype))
    return jnp.einsum(f"{batch}{row}{column}->{z_axes}", product)


def transposed(x: Array) -> Array:
    """[..., X, Y] to [..., Y, X], for a matmul; bfloat16 is transposed in memory on a CPU.

    XLA would transpose while it multiplies, in float32. Matmuls of float32 gain nothing from it.
    """
    x = jnp.matrix_transpose(x)
    return _by_rows(x) if cpu_forms() and x.dtype == jnp.bfloat16 else x


def _by_rows(x: Array) -> Array:
    """The same array, whose matrices [..., X, Y] are in memory row by row."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def axes_of(spec: str) -> tuple[str, str, str]:
    """The batch axes (in x only), contracting axes (in both) and output axes (in the kernel)."""
    x_axes, kernel_axes, _ = _axes_of_arrays(spec)
    batch = "".join(axis for axis in x_axes if axis not in kernel_axes)
    contracting = "".join(axis for axis in x_axes if axis in kernel_axes)
    output = "".join(axis for axis in kernel_axes if axis not in x_axes)
    return batch, contracting, output


def _axes_of_arrays(spec: str) -> tuple[str, str, str]:
    """``BTD,DF->BTF`` as BTD, DF and BTF."""
    inputs, y_axes = spec.split("->")
    x_axes, kernel_axes = inputs.split(",")
    return x_axes, kernel_axes, y_axes


def _contracts_shared_axes(spec: str) -> bool:
    """Whether the output has all axes of one input alone, and none that both inputs have."""
    batch, _, output = axes_of(spec)
    return sorted(batch + output) == sorted(_axes_of_arrays(spec)[2])
