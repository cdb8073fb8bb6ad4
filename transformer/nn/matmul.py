# SPDX-License-Identifier: Apache-2.0
"""Activations times a kernel, in the forms that XLA's CPU backend computes fast.

The gradient of y = x W with respect to W is x^T y', a sum over all rows: the positions of all
sentences. XLA's CPU backend makes the transposition of x a part of the matrix product, which then
reads its operand across the rows and takes up to twice the time of the forward product of the same
size. Transposing x first, on its own, costs far less than that, and where y' is the narrower of the
two, transposing y' for (y'^T x)^T. Optimization barriers keep XLA from joining what is apart.

Of bfloat16, the processor's own instructions, twice as fast as those for float32, are used only
where the result is float32. To round that result is to compute the same product with exacter sums.

Libraries of other devices read either order equally fast, and sum in float32 of themselves; there
`product` is the einsum and nothing else.
"""

import functools
import math

import jax
import jax.numpy as jnp

from transformer.arrays import Array


def product(spec: str, x: Array, kernel: Array) -> Array:
    """``jnp.einsum(spec, x, kernel)``: the same values and, but for rounding, derivatives.

    Args:
      spec: of an einsum of two arrays such as ``BTD,DNH->BTNH``. It is made faster where it is a
        linear map of rows, which means that an axis of both inputs is always summed over.
    """
    if jax.default_backend() == "cpu" and _is_map_of_rows(spec):
        rounds = x.dtype == kernel.dtype == jnp.bfloat16
        return (rounding_product if rounds else transposing_product)(spec, x, kernel)
    return jnp.einsum(spec, x, kernel)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def transposing_product(spec: str, x: Array, kernel: Array) -> Array:
    """`product` on the CPU: the einsum, whose weight gradient transposes x first."""
    return jnp.einsum(spec, x, kernel)


@transposing_product.defjvp
def _derivative(
    spec: str, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """dy = dx W + x dW, with the second term as (x^T)^T dW, or as (dW^T x^T)^T, over matrices.

    JAX makes the weight gradient by transposing that term, and a barrier's transpose is a barrier:
    it becomes the product of two matrices, x^T as it lies in memory and y', or y'^T and x. Being
    written as a derivative and not as a gradient, it serves forward mode and higher derivatives
    too.
    """
    (x, kernel), (dx, dkernel) = primals, tangents
    x = jax.lax.optimization_barrier(x)
    rows, summed, made = axes_of(spec)
    of_x, of_kernel, of_y = _axes_of_arrays(spec)
    size = dict(zip(of_x + of_kernel, x.shape + kernel.shape, strict=True))
    width = math.prod(size[axis] for axis in summed)

    x_matrix = jnp.einsum(f"{of_x}->{rows}{summed}", x).reshape(-1, width)
    dkernel_matrix = jnp.einsum(f"{of_kernel}->{summed}{made}", dkernel).reshape(width, -1)
    barrier = jax.lax.optimization_barrier
    if width <= dkernel_matrix.shape[1]:
        by_kernel = jnp.einsum("xr,xy->ry", barrier(x_matrix.T), barrier(dkernel_matrix))
    else:
        by_kernel = barrier(jnp.einsum("yx,rx->yr", barrier(dkernel_matrix.T), x_matrix)).T
    by_kernel = by_kernel.reshape([size[axis] for axis in rows + made])
    by_kernel = jnp.einsum(f"{rows}{made}->{of_y}", by_kernel)
    return transposing_product(spec, x, kernel), jnp.einsum(spec, dx, kernel) + by_kernel


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def rounding_product(spec: str, x: Array, kernel: Array) -> Array:
    """`product` of bfloat16 on the CPU: sums in float32, rounded once.

    It is written as a gradient, and not as a derivative, because the gradients of x and of the
    kernel must be products of bfloat16, too; so it has no forward mode.
    """
    return _rounded_einsum(spec, x, kernel)


def _rounding_forward(spec: str, x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return rounding_product(spec, x, kernel), (x, kernel)


def _rounding_backward(spec: str, inputs: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    """dx = y' W^T and dW = x^T y', for which x is transposed first."""
    x, kernel = inputs
    rows, summed, made = axes_of(spec)
    of_x, of_kernel, of_y = _axes_of_arrays(spec)
    size = dict(zip(of_x + of_kernel, x.shape + kernel.shape, strict=True))
    width = math.prod(size[axis] for axis in summed)

    dx = _rounded_einsum(f"{of_y},{of_kernel}->{of_x}", dy, kernel)
    x_matrix = jnp.einsum(f"{of_x}->{rows}{summed}", x).reshape(-1, width)
    dy_matrix = jnp.einsum(f"{of_y}->{rows}{made}", dy).reshape(len(x_matrix), -1)
    x_transposed = jax.lax.optimization_barrier(x_matrix.T)
    dkernel = _rounded_einsum("xr,ry->xy", x_transposed, dy_matrix)
    dkernel = dkernel.reshape([size[axis] for axis in summed + made])
    return dx, jnp.einsum(f"{summed}{made}->{of_kernel}", dkernel)


rounding_product.defvjp(_rounding_forward, _rounding_backward)


def _rounded_einsum(spec: str, x: Array, y: Array) -> Array:
    return jnp.einsum(spec, x, y, preferred_element_type=jnp.float32).astype(x.dtype)


def axes_of(spec: str) -> tuple[str, str, str]:
    """The axes that only x has (of the rows), that both have, and that only the kernel has."""
    of_x, of_kernel, _ = _axes_of_arrays(spec)
    rows = "".join(axis for axis in of_x if axis not in of_kernel)
    both = "".join(axis for axis in of_x if axis in of_kernel)
    made = "".join(axis for axis in of_kernel if axis not in of_x)
    return rows, both, made


def _axes_of_arrays(spec: str) -> tuple[str, str, str]:
    """``BTD,DF->BTF`` as BTD, DF and BTF."""
    inputs, of_y = spec.split("->")
    of_x, of_kernel = inputs.split(",")
    return of_x, of_kernel, of_y


def _is_map_of_rows(spec: str) -> bool:
    """Whether the output has every axis that one input has alone, and none that both have."""
    rows, _, made = axes_of(spec)
    return sorted(rows + made) == sorted(_axes_of_arrays(spec)[2])
