# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells, as pure functions of one time step, and the loop over time.

A cell maps the input of a step and the previous state to the next state. The input is already
multiplied by its kernel, for all steps at once, so only the matmuls of the state are in the loop.

The loop is one `jax.lax.scan`. The gradient of a kernel that every step uses is a sum over the
steps. `scan_time` computes it as one matmul over all steps after the loop, as cuDNN does, where
differentiating the scan itself would add a matrix of the kernel's size at every step.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, wide

State = tuple[Array, ...]
"""The arrays ``[..., D]`` of a cell's state; the first is its output h. At least float32."""
Multiply = Callable[[str, Array], Array]
"""From the name of a kernel and an array to their product, in float32 or wider."""


def lstm(
    inputs: Float[Array, "*rows P"], state: State, multiply: Multiply, bias: Array | None = None
) -> State:
    """Long short-term memory (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    ``i, f, o = sigmoid(W x + U h + b)`` and ``g = tanh(W x + U h + b)`` with matrices for each,
    ``c' = f c + i g``, ``h' = o tanh(c')``.

    Args:
      inputs: W x + b of the gates i, f, g, o, in the order of PyTorch and cuDNN.
      state: (h, c).
      multiply: by the kernel ``recurrent`` [D,P].
      bias: not used; PyTorch's second bias adds nothing to the first.
    """
    hidden, cell = state
    gates = multiply("recurrent", hidden) + inputs.astype(hidden.dtype)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def gru(
    inputs: Float[Array, "*rows P"], state: State, multiply: Multiply, bias: Array | None = None
) -> State:
    """Gated recurrent unit in the form of PyTorch and cuDNN, with the reset after the matmul.

    ``r, z = sigmoid(W x + U h + b)``, ``n = tanh(W_n x + b_n + r (U_n h + u))``,
    ``h' = (1 - z) n + z h``. One matmul of h serves all gates.

    Args:
      inputs: W x + b of the gates r, z, n.
      state: (h,).
      multiply: by the kernel ``recurrent`` [D,P].
      bias: u [D], the bias inside the reset.
    """
    (hidden,) = state
    inputs = inputs.astype(hidden.dtype)
    x_r, x_z, x_n = jnp.split(inputs, 3, axis=-1)
    h_r, h_z, h_n = jnp.split(multiply("recurrent", hidden), 3, axis=-1)
    r, z = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
    n = jnp.tanh(x_n + r * (h_n + bias))
    return ((1 - z) * n + z * hidden,)


def gru_reset_before(
    inputs: Float[Array, "*rows P"], state: State, multiply: Multiply, bias: Array | None = None
) -> State:
    """Gated recurrent unit as published (Cho et al. 2014, equations 5 to 8; Bahdanau et al. 2015).

    The reset is before the matmul: ``n = tanh(W_n x + b_n + U_n (r h))``. The rest is that of
    `gru`. Bahdanau et al. write z for 1 - z. A step has two matmuls, one after the other.

    Args:
      inputs: W x + b of the gates r, z, n.
      state: (h,).
      multiply: by the kernels ``recurrent`` [D,2D], of r and z, and ``candidate`` [D,D].
      bias: not used.
    """
    (hidden,) = state
    x_r, x_z, x_n = jnp.split(inputs.astype(hidden.dtype), 3, axis=-1)
    h_r, h_z = jnp.split(multiply("recurrent", hidden), 2, axis=-1)
    r, z = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
    n = jnp.tanh(x_n + multiply("candidate", r * hidden))
    return ((1 - z) * n + z * hidden,)


class Cell(NamedTuple):
    """A cell and the sizes of its parameters, in units of D."""

    step: Callable[..., State]
    gates: int
    """P / D."""
    state_size: int
    """Number of arrays of the state."""
    recurrent_kernels: Mapping[str, int]
    """The width of each kernel that multiplies the state."""
    has_recurrent_bias: bool
    """Whether the second bias is used."""


CELLS: dict[str, Cell] = {
    "lstm": Cell(lstm, 4, 2, {"recurrent": 4}, False),
    "gru": Cell(gru, 3, 1, {"recurrent": 3}, True),
    "gru_reset_before": Cell(gru_reset_before, 3, 1, {"recurrent": 2, "candidate": 1}, False),
}
"""From `model.cell` to the cell."""


# The loop over time.

Step = Callable[[Multiply, Any, Any, Any], tuple[Any, Any]]
"""``(multiply, constants, carry, x) -> (carry, y)``, the body of `scan_time`."""


def multiply_by(kernels: Mapping[str, Array]) -> Multiply:
    """The function that multiplies by these kernels ``[in, out]``, in their dtype.

    The sums are float32 or wider.
    """

    def multiply(name: str, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width_out"]:
        kernel = kernels[name]
        return jnp.einsum(
            "...x,xy->...y",
            x.astype(kernel.dtype),
            kernel,
            preferred_element_type=wide(kernel.dtype),
        )

    return multiply


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def scan_time(
    step: Step, reverse: bool, carry: Any, xs: Any, constants: Any, kernels: dict[str, Array]
) -> tuple[Any, Any]:
    """`jax.lax.scan` of a step that multiplies by kernels, with their gradients after the loop.

    Args:
      step: a function that closes over no arrays.
      reverse: begin with the last time step; the outputs stay in the order of the inputs.
      carry: the initial state.
      xs: inputs of the steps, with a leading time axis.
      constants: arrays that every step reads.
      kernels: ``[in, out]`` by name. A step multiplies by each at most once, through its first
        argument.

    Returns:
      the last carry, and the outputs of all steps with a leading time axis.
    """
    multiply = multiply_by(kernels)

    def body(carry: Any, x: Any) -> tuple[Any, Any]:
        return step(multiply, constants, carry, x)

    return jax.lax.scan(body, carry, xs, reverse=reverse)


def _scan_forward(
    step: Step, reverse: bool, carry: Any, xs: Any, constants: Any, kernels: dict[str, Array]
) -> tuple[Any, Any]:
    """The result, with the pullback to everything but the kernels and what they multiplied.

    Adding an offset of 0 to every product gives the gradient of the product as the offset's.
    """
    plain = multiply_by(kernels)

    def recorded(offsets: Mapping[str, Array], constants: Any, carry: Any, x: Any) -> Any:
        inputs, outputs = {}, {}

        def multiply(name: str, x: Array) -> Array:
            inputs[name], outputs[name] = x.astype(kernels[name].dtype), plain(name, x)
            return outputs[name] + offsets[name] if offsets else outputs[name]

        carry, y = step(multiply, constants, carry, x)
        return carry, y, inputs, outputs

    first = jax.tree.map(lambda leaf: leaf[0], xs)
    *_, products = jax.eval_shape(functools.partial(recorded, {}), constants, carry, first)
    length = jax.tree.leaves(xs)[0].shape[0]
    offsets = jax.tree.map(lambda one: jnp.zeros((length, *one.shape), one.dtype), products)

    def run(carry: Any, xs: Any, constants: Any, offsets: Any) -> tuple[Any, Any]:
        def body(carry: Any, x_and_offsets: Any) -> tuple[Any, Any]:
            x, offsets = x_and_offsets
            carry, y, inputs, _ = recorded(offsets, constants, carry, x)
            return carry, (y, inputs)

        carry, (ys, inputs) = jax.lax.scan(body, carry, (xs, offsets), reverse=reverse)
        return (carry, ys), inputs

    result, pull, inputs = jax.vjp(run, carry, xs, constants, offsets, has_aux=True)
    return result, (pull, inputs)


def _scan_backward(
    step: Step, reverse: bool, residuals: tuple[Any, Any], cotangents: Any
) -> tuple[Any, ...]:
    pull, inputs = residuals
    *gradients, of_products = pull(cotangents)

    def of_kernel(x: Array, dy: Array) -> Array:
        x, dy = (each.reshape(-1, each.shape[-1]) for each in (x, dy))
        x = jax.lax.optimization_barrier(x.T)  # A matmul of a materialized transpose is faster.
        return jnp.einsum("xr,ry->xy", x, dy.astype(x.dtype))

    return *gradients, {name: of_kernel(inputs[name], of_products[name]) for name in inputs}


scan_time.defvjp(_scan_forward, _scan_backward)
