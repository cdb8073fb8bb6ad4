# SPDX-License-Identifier: Apache-2.0
"""Layers of one kind each, made of the project's attention, convolution and LSTM."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float
from transformer.models.convolutional.convolution import (
    HALF,
    causal_padding,
    convolve,
    gated_linear_unit,
)
from transformer.models.recurrent.cells import lstm
from transformer.nn.attention import attention
from transformer.nn.linear import project
from transformer.nn.masks import neighborhood_mask

KERNEL_WIDTH = 3
"""k of the convolutions."""
WINDOW = 33
"""r of restricted self-attention, the positions that a query may attend to."""

Function = Callable[..., Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """A kind of layer, and its costs in theory."""

    name: str
    forward: Function
    """(x [B,n,d], *weights) -> [B,n,d]"""
    weights: Callable[[int], tuple[Array, ...]] = lambda d: ()
    """From the width d to random weights."""
    exponents: tuple[float | None, float | None] = (1, 2)
    """Exponents of n and d in the floating-point operations; None for a sum of terms."""
    complexity: str
    """Formula of the floating-point operations."""
    sequential: int = 0
    """Exponent of n in the number of sequential operations."""
    path: Callable[[int], int] = lambda n: 1
    """Maximum path length for n positions."""
    path_formula: str = "1"
    apply_once: Callable[[int], Function] | None = None
    """From the number of earlier applications to the function (x, state, *weights) -> state that
    applies the layer's operation once to all positions; `forward` of the state by default.
    """
    loop_body: Callable[[int], tuple[Function, tuple[Array, ...]]] | None = None
    """From the width d to the body of the loop over n steps, and its arguments for one sequence."""


def random(*shape: int) -> Array:
    """Normal with variance 1 / (all axes but the last)."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal(shape) / math.sqrt(math.prod(shape[:-1])))


def attend(x: Float[Array, "B S D"], *kernels: Array, mask: Array | None = None) -> Array:
    """Self-attention with one head; without kernels, queries, keys and values are the inputs."""
    if kernels:
        query, key, value = (project("BSD,DH->BSH", x, kernel) for kernel in kernels[:3])
    else:
        query = key = value = x
    z = attention(*(each[:, :, None] for each in (query, key, value)), mask)[:, :, 0]
    return project("BSH,HD->BSD", z, kernels[3]) if kernels else z


def attend_within_window(x: Float[Array, "B S D"]) -> Array:
    """Restricted self-attention, by a mask (paper 4)."""
    position = jnp.arange(x.shape[1])
    return attend(x, mask=neighborhood_mask(position, position, WINDOW))


def convolve_gated(x: Float[Array, "B S D"], kernel: Array, *, dilation: int = 1) -> Array:
    """A causal convolution from D to 2 D and the gated linear unit, with a residual connection."""
    padded = causal_padding(x, len(kernel), dilation)
    return (x + gated_linear_unit(convolve(padded, kernel, dilation=dilation))) * HALF


def recur(x: Float[Array, "B S D"], kernel: Array, recurrent: Array) -> Array:
    """An LSTM: a matmul for the inputs of all steps, then one for the state in every step."""
    inputs = project("BSD,DP->BSP", x, kernel).swapaxes(0, 1)[:, :, None]  # [S, B, 1, P]
    state = (jnp.zeros_like(x[:, :1]),) * 2

    def step(state: Any, inputs: Array) -> tuple[Any, Array]:
        state = lstm(inputs, state, {"recurrent": recurrent})
        return state, state[0]

    _, outputs = jax.lax.scan(step, state, inputs)
    return outputs[:, :, 0].swapaxes(0, 1)


def recur_once(x: Float[Array, "B S D"], state: Array, kernel: Array, recurrent: Array) -> Array:
    """One step of every position at once, from the last states of their predecessors.

    The state [B,S,2D] holds h and c. Applied n times, this gives the states of `recur`.
    """
    before = jnp.pad(state[:, :-1], ((0, 0), (1, 0), (0, 0)))
    inputs = project("BSD,DP->BSP", x, kernel)
    state = tuple(jnp.split(before, 2, -1))
    return jnp.concatenate(lstm(inputs, state, {"recurrent": recurrent}), axis=-1)


def recurrent_body(d: int) -> tuple[Function, tuple[Array, ...]]:
    """The body of the loop of `recur`, and its arguments."""

    def body(x: Array, h: Array, c: Array, recurrent: Array) -> Any:
        return lstm(x, (h, c), {"recurrent": recurrent})

    h = jnp.zeros((1, 1, d))
    return body, (jnp.zeros((1, 1, 4 * d)), h, h, random(d, 4 * d))


def kernel_of_convolution(d: int) -> tuple[Array]:
    """[k,D,2D]."""
    return (random(KERNEL_WIDTH, d, 2 * d),)


LAYERS = (
    Layer(name="self-attention", forward=attend, exponents=(2, 1), complexity="n² d"),
    Layer(
        name="self-attention with projections",
        forward=attend,
        weights=lambda d: tuple(random(d, d) for _ in range(4)),
        exponents=(None, None),
        complexity="n² d + n d²",
    ),
    Layer(
        name=f"restricted self-attention, r = {WINDOW}, by a mask",
        forward=attend_within_window,
        exponents=(2, 1),
        complexity="n² d (r n d without the masked scores)",
        path=lambda n: max(math.ceil((n - 1) / (WINDOW // 2)), 1),
        path_formula="n / (r/2)",
    ),
    Layer(
        name="recurrent (LSTM)",
        forward=recur,
        weights=lambda d: (random(d, 4 * d), random(d, 4 * d)),
        complexity="n d²",
        sequential=1,
        path=lambda n: n,
        path_formula="n",
        apply_once=lambda count: recur_once,
        loop_body=recurrent_body,
    ),
    Layer(
        name=f"convolutional, k = {KERNEL_WIDTH}",
        forward=convolve_gated,
        weights=kernel_of_convolution,
        complexity="k n d²",
        path=lambda n: math.ceil((n - 1) / (KERNEL_WIDTH - 1)),
        path_formula="n / (k - 1)",
    ),
    Layer(
        name=f"convolutional, k = {KERNEL_WIDTH}, dilated",
        forward=convolve_gated,
        weights=kernel_of_convolution,
        complexity="k n d²",
        path=lambda n: next(count for count in range(1, 64) if KERNEL_WIDTH**count >= n),
        path_formula="log_k n",
        apply_once=lambda count: (
            lambda x, state, kernel: convolve_gated(state, kernel, dilation=KERNEL_WIDTH**count)
        ),
    ),
)
