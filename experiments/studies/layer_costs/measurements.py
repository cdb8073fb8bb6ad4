# SPDX-License-Identifier: Apache-2.0
"""Measurements of what a layer costs, and of how far it reads."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from experiments.studies.layer_costs.layers import Function, Layer
from transformer.arrays import Array, Bool, Float

BATCH = 8
"""Rows of a timed batch."""
REPEATS = 7
"""Timed calls, of which the fastest counts."""

Quantity = Literal["flops", "sequential", "path", "seconds"]


def measured_flops(layer: Layer, n: int, d: int) -> int:
    """Floating-point operations of one sequence, from XLA's analysis of the compiled layer."""
    total = _xla_flops(layer.forward, (jnp.zeros((1, n, d)), *layer.weights(d)))
    if layer.loop_body is None:
        return total
    body, arguments = layer.loop_body(d)
    return total + (n - 1) * _xla_flops(body, arguments)


def _xla_flops(function: Function, arguments: Sequence[Array]) -> int:
    return int(jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"])


def measured_sequential(layer: Layer, n: int, d: int) -> int:
    """The longest chain of dependent matmuls."""
    arguments = (jnp.zeros((1, n, d)), *layer.weights(d))
    return sequential_matmuls(jax.make_jaxpr(layer.forward)(*arguments).jaxpr)


def sequential_matmuls(jaxpr: Any) -> int:
    """The longest chain of matmuls of a traced function of which each needs the one before it.

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

    def stacked(x: Array, state: Array, *weights: Array) -> Array:
        return layer.forward(state, *weights)

    once = layer.apply_once or (lambda count: stacked)
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
    weights, call = layer.weights(d), jax.jit(layer.forward)
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


def exponent(xs: Iterable[float], ys: Iterable[float]) -> float:
    """The slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(list(xs)), np.log(list(ys)), 1)[0])
