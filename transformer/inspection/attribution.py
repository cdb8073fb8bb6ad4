# SPDX-License-Identifier: Apache-2.0
"""Attribution of a metric to the tokens of the source and of the target read so far.

Integrated gradients (Sundararajan et al. 2017) distribute the difference between a baseline, in
which every position has its positional encoding but no token, and the sentence pair over its
tokens. Input times gradient needs one backward pass, but its contributions do not add up to that
difference.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Params, wide
from transformer.config import ModelConfig
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.readout import Metric, check_finite, checked_metric
from transformer.inspection.trace import Tokens

POINTS_AT_ONCE = 64
"""Points of the path that are computed together; each needs the memory of a sentence pair."""


@flax.struct.dataclass
class Attribution:
    """Contribution of each token to a metric, in its units (nats)."""

    source: Float[Array, " S"]
    target: Float[Array, " T"]
    """Of the tokens that the decoder read; exactly 0 after the position of the metric."""
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
    params: Params,
    config: ModelConfig,
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
    return _checked(params, config, source, target_in, metric, midpoints)


def input_x_gradient(
    params: Params,
    config: ModelConfig,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
) -> Attribution:
    """Attribute a metric to tokens with input times gradient, the end point of the path alone."""
    return _checked(params, config, source, target_in, metric, jnp.ones(1))


def _checked(
    params: Params,
    config: ModelConfig,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
    points: Float[Array, " points"],
) -> Attribution:
    """Check the arguments, compute the attribution, and check the result."""
    if {"encoder", "decoder"} - trace.describe(config).residual_layers.keys():
        raise InputError(
            f"the model family {config.family!r} has no residual streams, whose inputs attribution "
            "needs"
        )
    source = trace.check_tokens("source", source, config)
    target_in = trace.check_tokens("target_in", target_in, config)
    metric = checked_metric(metric, len(target_in), config)
    attribution = _attribute(params, config, source, target_in, metric, points)
    if trace.is_concrete(attribution):
        check_finite(attribution.value, "sentence pair")
        check_finite(attribution.baseline, "baseline")
    return attribution


@functools.partial(jax.jit, static_argnames="config")
def _attribute(
    params: Params,
    config: ModelConfig,
    source: Int[Array, " S"],
    target_in: Int[Array, " T"],
    metric: Metric,
    points: Float[Array, " points"],
) -> Attribution:
    _, seen = trace.run(params, config, source, target_in, capture="full")
    stacks = (seen.encoder, seen.decoder)
    dtype = wide(seen.encoder.embedded.dtype)
    embedded = tuple(stack.embedded.astype(dtype) for stack in stacks)  # [S, D], [T, D]
    positions = tuple(stack.positions.astype(dtype) for stack in stacks)
    nothing = trace.no_interventions(config, len(source), len(target_in))

    def value(vectors: tuple[Float[Array, "S D"], Float[Array, "T D"]]) -> Float[Array, ""]:
        """The metric with these embeddings, which overwrite the inputs of both stacks."""
        changed = nothing
        for side, each, position in zip(("encoder", "decoder"), vectors, positions, strict=True):
            residual = getattr(nothing, side).patch_value.at[0].set(each + position)
            mask = jnp.zeros(residual.shape[:2], bool).at[0].set(True)
            changed = changed.patched(side, mask, residual)
        return metric(trace.run(params, config, source, target_in, interventions=changed)[0])

    def on_path(point: Float[Array, ""]) -> tuple[Float[Array, "S D"], Float[Array, "T D"]]:
        """Embeddings between the baseline, at 0, and the sentence pair, at 1."""
        return jax.tree.map(lambda each: point * each, embedded)

    gradients = jax.lax.map(
        lambda point: jax.grad(value)(on_path(point)), points, batch_size=POINTS_AT_ONCE
    )
    contributions = jax.tree.map(lambda g, x: (g.mean(0) * x).sum(-1), gradients, embedded)
    ends = jax.lax.map(lambda point: value(on_path(point)), jnp.array([0.0, 1.0], dtype))
    return Attribution(*contributions, value=ends[1], baseline=ends[0])
