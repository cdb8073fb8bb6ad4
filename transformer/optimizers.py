# SPDX-License-Identifier: Apache-2.0
"""Adam and the schedule that is known as Noam (paper 5.3)."""

from collections.abc import Callable

import jax.numpy as jnp
import optax

from transformer.arrays import Array, Float, Int
from transformer.config import OptimizerConfig

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]
"""From the number of updates made so far (0 before the first) to the learning rate."""


def noam(d_model: int, warmup_steps: int = 4000, scale: float = 1.0) -> Schedule:
    """lrate = scale * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), the first update being
    step 1.

    With d_model 512 and 4000 steps of warm-up the peak, at step 4000, is 6.99e-4.
    """

    def rate(updates):
        step = jnp.asarray(updates, jnp.float32) + 1.0
        return scale * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup_steps**-1.5)

    return rate


def schedule(config: OptimizerConfig, d_model: int) -> Schedule:
    """The learning rate that a config describes."""
    return noam(d_model, config.warmup_steps, config.learning_rate)


def build(config: OptimizerConfig, d_model: int) -> optax.GradientTransformation:
    """Adam on that schedule; its moments are float32 and shaped as the parameters."""
    return optax.adam(
        schedule(config, d_model), b1=config.beta1, b2=config.beta2, eps=config.epsilon
    )
