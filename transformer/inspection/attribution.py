# SPDX-License-Identifier: Apache-2.0
"""Attribution of a metric to the tokens of the source and of the target read so far.

Integrated gradients (Sundararajan et al. 2017) distribute the difference between a baseline, in
which every position has its positional encoding but no token, and the sentence pair over its
tokens. Input times gradient needs one backward pass, but its contributions do not add up to that
difference. Occlusion needs no gradient: it moves one token to the baseline and measures the cost.
"""

import functools
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Params, wide
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.interventions import no_interventions
from transformer.inspection.readout import Metric, check_finite, checked_metric
from transformer.inspection.trace import Tokens
from transformer.models.protocol import Model

POINTS_AT_ONCE = 64
"""Points of the path that are computed together; each needs the memory of a sentence pair."""


@flax.struct.dataclass
class Attribution:
    """Contribution of each token to a metric, in its units (nats)."""

    source: Float[Array, " S"]
    target: Float[Array, " T"]
    """Contributions of the tokens read; exactly 0 after the position of the metric."""
    value: Float[Array, ""]
    """The metric of the sentence pair."""
    baseline: Float[Array, ""]
    """The metric of the baseline."""

    @property
    def gap(self) -> Float[Array, ""]:
        """Completeness gap: ``|sum of all contributions - (value - baseline)|``."""
        total = self.source.sum() + self.target.sum()
        return jnp.abs(total - (self.value - self.baseline))

    @property
    def relative_gap(self) -> Float[Array, ""]:
        """The completeness gap as a share of ``|value - baseline|``."""
        return self.gap / jnp.abs(self.value - self.baseline)


def integrated_gradients(
    model: Model,
    params: Params,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
    *,
    steps: int = 256,
) -> Attribution:
    """Attribute a metric to tokens with integrated gradients.

    The mean gradient along the straight path from the baseline to the embeddings, times their
    difference.

    Args:
      metric: one number of the logits [T,V], such as a `readout.LogProbability`. A plain function
        is compiled anew.
      steps: number of points on the path, the midpoints of equal parts. Increase it if the
        completeness gap is not small, which happens where the answer changes over a short part.

    Raises:
      InputError: for fewer than one step, or a metric that is not one number.
    """
    trace.check_positive("steps", steps)
    midpoints = (jnp.arange(steps) + 0.5) / steps
    return _checked(model, params, source, target_in, metric, midpoints)


def input_x_gradient(
    model: Model,
    params: Params,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
) -> Attribution:
    """Attribute a metric to tokens with input times gradient, the end point of the path alone."""
    return _checked(model, params, source, target_in, metric, jnp.ones(1))


def occlusion(
    model: Model,
    params: Params,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
) -> Attribution:
    """Attribute to each token what the metric loses if that token alone has no embedding.

    The position of the token stays, as in the baseline of `integrated_gradients` (Zeiler and Fergus
    2014). The contributions of tokens that replace each other do not add up to anything.
    """
    return _checked(model, params, source, target_in, metric, None)


def _checked(
    model: Model,
    params: Params,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
    points: Float[Array, " points"] | None,
) -> Attribution:
    """Check the arguments, compute the attribution (occlusion without points), check the result."""
    if {"encoder", "decoder"} - trace.describe(model).residual_layers.keys():
        raise InputError(
            f"the model family {model.config.family!r} has no residual streams, whose inputs "
            "attribution needs"
        )
    source = trace.check_tokens("source", source, model.config)
    target_in = trace.check_tokens("target_in", target_in, model.config)
    metric = checked_metric(metric, len(target_in), model.config)
    attribution = _attribute(model, params, source, target_in, metric, points)
    if trace.is_concrete(attribution):
        check_finite(attribution.value, "sentence pair")
        check_finite(attribution.baseline, "baseline")
    return attribution


Vectors = tuple[Float[Array, "S D"], Float[Array, "T D"]]
"""The token embeddings of the source and of the target."""


@functools.partial(jax.jit, static_argnames="model")
def _attribute(
    model: Model,
    params: Params,
    source: Int[Array, " S"],
    target_in: Int[Array, " T"],
    metric: Metric,
    points: Float[Array, " points"] | None,
) -> Attribution:
    _, seen = trace.run(model, params, source, target_in, capture="full")
    stacks = (seen.encoder, seen.decoder)
    dtype = wide(seen.encoder.embedded.dtype)
    embedded = tuple(stack.embedded.astype(dtype) for stack in stacks)  # [S, D], [T, D]
    positions = tuple(stack.positions.astype(dtype) for stack in stacks)
    nothing = no_interventions(model, len(source), len(target_in))

    def value(vectors: Vectors) -> Float[Array, ""]:
        """The metric with these embeddings, which overwrite the inputs of both stacks."""
        changed = nothing
        for side, each, position in zip(("encoder", "decoder"), vectors, positions, strict=True):
            residual = getattr(nothing, side).residual.value.at[0].set(each + position)
            mask = jnp.zeros(residual.shape[:2], bool).at[0].set(True)
            changed = changed.patch_residual(side, mask, residual)
        return metric(trace.run(model, params, source, target_in, interventions=changed)[0])

    return _occlude(value, embedded) if points is None else _integrate(value, embedded, points)


def _occlude(value: Callable[[Vectors], Float[Array, ""]], embedded: Vectors) -> Attribution:
    length, number = len(embedded[0]), sum(map(len, embedded))
    # One row a token; then none is occluded, and all are.
    kept = jnp.concatenate([1.0 - jnp.eye(number), jnp.ones((1, number)), jnp.zeros((1, number))])

    def of_kept(tokens: Float[Array, " tokens"]) -> Float[Array, ""]:
        factors = tokens[:length, None], tokens[length:, None]
        return value(jax.tree.map(jnp.multiply, embedded, factors))

    values = trace.map_batches(of_kept, kept, POINTS_AT_ONCE)
    contributions = values[-2] - values[:-2]
    return Attribution(contributions[:length], contributions[length:], values[-2], values[-1])


def _integrate(
    value: Callable[[Vectors], Float[Array, ""]],
    embedded: Vectors,
    points: Float[Array, " points"],
) -> Attribution:
    """Mean gradient at points of the path from the baseline, at 0, to the embeddings, at 1."""
    # The two ends share the program of the points, so that the model is compiled once.
    all_points = jnp.concatenate([points, jnp.array([0.0, 1.0])]).astype(embedded[0].dtype)
    batches = -(-len(all_points) // POINTS_AT_ONCE)
    values, gradients = trace.map_batches(
        lambda point: jax.value_and_grad(value)(jax.tree.map(lambda each: point * each, embedded)),
        all_points,
        -(-len(all_points) // batches),
    )
    contributions = jax.tree.map(
        lambda gradient, x: (gradient[:-2].mean(0) * x).sum(-1), gradients, embedded
    )
    return Attribution(*contributions, value=values[-1], baseline=values[-2])
