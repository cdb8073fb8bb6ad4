# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells, as pure functions of one time step.

A cell maps the input of a step and the previous state to the next state. The input is already
multiplied by its kernel, for all steps at once where they are known, so that only the matmuls of
the state are in the loop over time, which is `jax.lax.scan`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer.arrays import Array, Float
from transformer.nn.linear import wide_einsum

State = tuple[Float[Array, "B K D"], ...]
"""The arrays of a cell's state, at least float32; the first is its output h. In the encoder and in
training K is 1, in decoding it counts beams.
"""
Weights = Mapping[str, Array]
"""The parameters of a layer by name."""


def multiply(x: Float[Array, "B K D"], kernel: Float[Array, "D P"], dtype: DTypeLike) -> Array:
    """The matmul of a state and a kernel in the compute dtype, summed in the dtype of the state.

    The kernel is cast here, within the loop, so that its gradient is summed in its own dtype.
    """
    return wide_einsum("BKD,DP->BKP", x.astype(dtype), kernel.astype(dtype))


def lstm(inputs: Float[Array, "B K P"], state: State, weights: Weights) -> State:
    """Long short-term memory (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    ``i, f, o = sigmoid(W x + U h + b)`` and ``g = tanh(W x + U h + b)`` with matrices for each,
    ``c' = f c + i g``, ``h' = o tanh(c')``.

    Args:
      inputs: W x + b of the gates i, f, g, o, in the order of PyTorch and cuDNN.
      state: (h, c).
      weights: ``recurrent`` [D,P]. PyTorch's second bias would add nothing to the first.
    """
    hidden, cell = state
    gates = multiply(hidden, weights["recurrent"], inputs.dtype) + inputs.astype(hidden.dtype)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def gru(inputs: Float[Array, "B K P"], state: State, weights: Weights) -> State:
    """Gated recurrent unit in the form of PyTorch and cuDNN, with the reset after the matmul.

    ``r, z = sigmoid(W x + U h + b)``, ``n = tanh(W_n x + b_n + r (U_n h + u))``,
    ``h' = (1 - z) n + z h``. One matmul of h serves all gates.

    Args:
      inputs: W x + b of the gates r, z, n.
      state: (h,).
      weights: ``recurrent`` [D,P], and ``recurrent_bias`` u [D], the bias inside the reset.
    """
    (hidden,) = state
    x_r, x_z, x_n = jnp.split(inputs.astype(hidden.dtype), 3, axis=-1)
    recurrent = multiply(hidden, weights["recurrent"], inputs.dtype)
    h_r, h_z, h_n = jnp.split(recurrent, 3, axis=-1)
    r, z = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
    n = jnp.tanh(x_n + r * (h_n + weights["recurrent_bias"]))
    return ((1 - z) * n + z * hidden,)


def gru_reset_before(inputs: Float[Array, "B K P"], state: State, weights: Weights) -> State:
    """Gated recurrent unit as published (Cho et al. 2014, equations 5 to 8; Bahdanau et al. 2015).

    The reset is before the matmul: ``n = tanh(W_n x + b_n + U_n (r h))``. The rest is that of
    `gru`. Bahdanau et al. write z for 1 - z. A step has two matmuls, one after the other.

    Args:
      inputs: W x + b of the gates r, z, n.
      state: (h,).
      weights: ``recurrent`` [D,2D], of r and z, and ``candidate`` [D,D].
    """
    (hidden,) = state
    x_r, x_z, x_n = jnp.split(inputs.astype(hidden.dtype), 3, axis=-1)
    recurrent = multiply(hidden, weights["recurrent"], inputs.dtype)
    h_r, h_z = jnp.split(recurrent, 2, axis=-1)
    r, z = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
    n = jnp.tanh(x_n + multiply(r * hidden, weights["candidate"], inputs.dtype))
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
