# SPDX-License-Identifier: Apache-2.0
"""Layers of one kind each, and measurements of what they cost and how far they read.

`layer_costs` makes the table and the figure of these measurements.
"""

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer import paths
from transformer.arrays import Array, Bool, Float
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
BATCH = 8
"""Rows of a timed batch."""
REPEATS = 7
"""Timed calls, of which the fastest counts."""

Quantity = Literal["flops", "sequential", "path", "seconds"]
Function = Callable[..., Array]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A kind of layer, and what theory says about it."""

    name: str
    forward: Callable[[int], Function]
    """From the weights' width d to the function (x [B,n,d], *weights) -> [B,n,d]."""
    weights: Callable[[int], tuple[Array, ...]]
    """From d to random weights."""
    exponents: tuple[float | None, float | None]
    """Of n and d in the number of floating-point operations; None if they are a sum of terms."""
    complexity: str
    """The same as a formula."""
    sequential: int
    """Exponent of n in the number of sequential operations."""
    path: Callable[[int], int]
    """Maximum path length for n positions."""
    path_formula: str
    apply_once: Callable[[int], Function] | None = None
    """From the number of earlier applications to the function (x, state, *weights) -> state that
    applies the layer's operation once to all positions; `forward` by default.
    """
    loop_body: Callable[[int, int], tuple[Function, tuple[Array, ...]]] | None = None
    """The body of the loop over n steps and its arguments, for (B, d)."""


def random(*shape: int) -> Array:
    """Normal with variance 1 / (all axes but the last)."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal(shape) / math.sqrt(math.prod(shape[:-1])))


# The layers.


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


def recurrent_body(batch: int, width: int) -> tuple[Function, tuple[Array, ...]]:
    """The body of the loop of `recur`, and its arguments."""

    def body(x: Array, h: Array, c: Array, recurrent: Array) -> Any:
        return lstm(x, (h, c), {"recurrent": recurrent})

    h = jnp.zeros((batch, 1, width))
    return body, (jnp.zeros((batch, 1, 4 * width)), h, h, random(width, 4 * width))


def kernel_of_convolution(d: int) -> tuple[Array]:
    """[k,D,2D]."""
    return (random(KERNEL_WIDTH, d, 2 * d),)


LAYERS = (
    Layer(
        name="self-attention",
        forward=lambda d: attend,
        weights=lambda d: (),
        exponents=(2, 1),
        complexity="n² d",
        sequential=0,
        path=lambda n: 1,
        path_formula="1",
    ),
    Layer(
        name="self-attention with projections",
        forward=lambda d: attend,
        weights=lambda d: tuple(random(d, d) for _ in range(4)),
        exponents=(None, None),
        complexity="n² d + n d²",
        sequential=0,
        path=lambda n: 1,
        path_formula="1",
    ),
    Layer(
        name=f"restricted self-attention, r = {WINDOW}, by a mask",
        forward=lambda d: attend_within_window,
        weights=lambda d: (),
        exponents=(2, 1),
        complexity="n² d (r n d without the masked scores)",
        sequential=0,
        path=lambda n: max(math.ceil((n - 1) / (WINDOW // 2)), 1),
        path_formula="n / (r/2)",
    ),
    Layer(
        name="recurrent (LSTM)",
        forward=lambda d: recur,
        weights=lambda d: (random(d, 4 * d), random(d, 4 * d)),
        exponents=(1, 2),
        complexity="n d²",
        sequential=1,
        path=lambda n: n,
        path_formula="n",
        apply_once=lambda count: recur_once,
        loop_body=recurrent_body,
    ),
    Layer(
        name=f"convolutional, k = {KERNEL_WIDTH}",
        forward=lambda d: convolve_gated,
        weights=kernel_of_convolution,
        exponents=(1, 2),
        complexity="k n d²",
        sequential=0,
        path=lambda n: math.ceil((n - 1) / (KERNEL_WIDTH - 1)),
        path_formula="n / (k - 1)",
    ),
    Layer(
        name=f"convolutional, k = {KERNEL_WIDTH}, dilated",
        forward=lambda d: convolve_gated,
        weights=kernel_of_convolution,
        exponents=(1, 2),
        complexity="k n d²",
        sequential=0,
        path=lambda n: next(count for count in range(1, 64) if KERNEL_WIDTH**count >= n),
        path_formula="log_k n",
        apply_once=lambda count: (
            lambda x, state, kernel: convolve_gated(state, kernel, dilation=KERNEL_WIDTH**count)
        ),
    ),
)


# The measurements.


def measured_flops(layer: Layer, n: int, d: int) -> int:
    """Floating-point operations of one sequence, from XLA's analysis of the compiled layer."""
    total = _xla_flops(layer.forward(d), (jnp.zeros((1, n, d)), *layer.weights(d)))
    if layer.loop_body is None:
        return total
    body, arguments = layer.loop_body(1, d)
    return total + (n - 1) * _xla_flops(body, arguments)


def _xla_flops(function: Function, arguments: Sequence[Array]) -> int:
    return int(jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"])


def _stacked(forward: Function) -> Callable[[int], Function]:
    """Every application reads the outputs of the one before."""

    def apply(x: Array, state: Array, *weights: Array) -> Array:
        return forward(state, *weights)

    return lambda count: apply


def measured_sequential(layer: Layer, n: int, d: int) -> int:
    """The longest chain of dependent matmuls."""
    arguments = (jnp.zeros((1, n, d)), *layer.weights(d))
    return sequential_matmuls(jax.make_jaxpr(layer.forward(d))(*arguments).jaxpr)


def sequential_matmuls(jaxpr: Any) -> int:
    """The longest chain of matmuls of a traced function of which each needs the one before.

    A loop is counted as often as its body runs, as if all of the body were needed.
    """
    depth: dict[Any, int] = {}
    for equation in jaxpr.eqns:
        inputs = [v for v in equation.invars if not isinstance(v, jax.extend.core.Literal)]
        inner = jax.extend.core.jaxprs_in_params(equation.params)
        steps = equation.params.get("length", 1)
        chain = steps * max((sequential_matmuls(each) for each in inner), default=0)
        chain += equation.primitive.name == "dot_general"
        reached = max((depth.get(variable, 0) for variable in inputs), default=0) + chain
        depth |= dict.fromkeys(equation.outvars, reached)
    return max(depth.values(), default=0)


def measured_path(layer: Layer, n: int, d: int) -> int:
    """Applications of the layer until the last output depends on the first input."""
    return next(count for count, inputs in enumerate(reached_inputs(layer, n, d), 1) if inputs[0])


def reached_inputs(layer: Layer, n: int, d: int) -> Iterator[Bool[np.ndarray, " n"]]:
    """After each application of the layer, whether the last output depends on each input.

    From Jacobians in float64, by the size of each input along a random direction.
    """
    rng = np.random.default_rng(1)
    once = layer.apply_once or _stacked(layer.forward(d))
    with jax.enable_x64(True):
        values, direction = (jnp.asarray(rng.standard_normal((1, n, d))) for _ in range(2))
        weights = tuple(jnp.asarray(each, jnp.float64) for each in layer.weights(d))

        def inputs(sizes: Float[Array, " n"]) -> Float[Array, "1 n D"]:
            return values + sizes[:, None] * direction

        @functools.partial(jax.jit, static_argnums=0)
        def advance(apply: Function, state: Array, jacobian: Array) -> tuple[Array, Array]:
            """The next state and its Jacobian, with a leading axis for the n sizes."""

            def column(unit: Array, tangent: Array) -> tuple[Array, Array]:
                function = lambda sizes, state: apply(inputs(sizes), state, *weights)  # noqa: E731
                return jax.jvp(function, (jnp.zeros(n), state), (unit, tangent))

            return jax.vmap(column, out_axes=(None, 0))(jnp.eye(n), jacobian)

        if layer.loop_body is None:
            state, jacobian = values, jnp.eye(n)[:, None, :, None] * direction
        else:
            state, jacobian = jnp.zeros((1, n, 2 * d)), jnp.zeros((n, 1, n, 2 * d))
        for count in range(n):
            state, jacobian = advance(once(count), state, jacobian)
            yield np.asarray(jnp.abs(jacobian[:, 0, -1]).max(-1) > 0)


def measured_seconds(layer: Layer, n: int, d: int) -> float:
    """The fastest of several forward passes over a batch."""
    x = jnp.asarray(np.random.default_rng(2).standard_normal((BATCH, n, d)), jnp.float32)
    weights, call = layer.weights(d), jax.jit(layer.forward(d))
    seconds = []
    for _ in range(REPEATS + 1):  # the first compiles
        begin = time.perf_counter()
        jax.block_until_ready(call(x, *weights))
        seconds.append(time.perf_counter() - begin)
    return min(seconds[1:])


MEASURES: dict[Quantity, Callable[[Layer, int, int], float]] = {
    "flops": measured_flops,
    "sequential": measured_sequential,
    "path": measured_path,
    "seconds": measured_seconds,
}


@dataclasses.dataclass(frozen=True)
class Point:
    """What is measured: a quantity of a layer for n positions of width d."""

    layer: str
    quantity: Quantity
    n: int
    d: int


class Measurements:
    """Measured values in a file of JSON lines, each measured once."""

    def __init__(self, path: epath.Path) -> None:
        self.path = path
        self.values: dict[Point, float] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            value = row.pop("value")
            self.values[Point(**row)] = value

    def measure(self, point: Point) -> float:
        """The value of a point, from the file or measured now."""
        if point not in self.values:
            layer = next(layer for layer in LAYERS if layer.name == point.layer)
            self.values[point] = MEASURES[point.quantity](layer, point.n, point.d)
            rows = (dataclasses.asdict(each) | {"value": v} for each, v in self.values.items())
            text = "".join(json.dumps(row) + "\n" for row in rows)
            paths.write_atomic(self.path, text.encode())
        return self.values[point]


def exponent(xs: Iterable[float], ys: Iterable[float]) -> float:
    """The slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(list(xs)), np.log(list(ys)), 1)[0])
