# SPDX-License-Identifier: Apache-2.0
"""Adam and the schedule that is known as Noam (paper 5.3), and other optimizers by name.

Every optimizer here is optax's; this file says how a config's fields reach it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer.arrays import Array, Float, Int, Params
from transformer.config import OptimizerConfig

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]
"""From the number of updates made so far (0 before the first) to the learning rate."""


def noam(d_model: int, warmup_steps: int = 4000, scale: float = 1.0) -> Schedule:
    """lrate = scale * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), the first update being
    step 1.

    With d_model 512 and 4000 steps of warm-up the peak, at step 4000, is 6.99e-4.
    """

    def rate(updates):
        step = _step(updates)
        return scale * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup_steps**-1.5)

    return rate


def constant(peak: float, warmup_steps: int) -> Schedule:
    """Rises linearly to `peak`, which it reaches at step `warmup_steps`, and stays there."""
    return lambda updates: peak * jnp.minimum(_step(updates) / warmup_steps, 1.0)


def cosine(peak: float, warmup_steps: int, steps: int) -> Schedule:
    """As `constant`, but from the peak on half a cosine leads down to 0 at step `steps`."""
    level = constant(peak, warmup_steps)

    def rate(updates):
        since = (_step(updates) - warmup_steps) / max(steps - warmup_steps, 1)
        return level(updates) * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(since, 0.0, 1.0)))

    return rate


def _step(updates: Int[Array, ""]) -> Float[Array, ""]:
    return jnp.asarray(updates, jnp.float32) + 1.0


def schedule(config: OptimizerConfig, d_model: int, steps: int) -> Schedule:
    """The learning rate that a config describes, for a training of so many steps."""
    if config.schedule == "constant":
        return constant(config.learning_rate, config.warmup_steps)
    if config.schedule == "cosine":
        return cosine(config.learning_rate, config.warmup_steps, steps)
    return noam(d_model, config.warmup_steps, config.learning_rate)


def build(config: OptimizerConfig, d_model: int, steps: int) -> optax.GradientTransformation:
    """The optimizer that `config.name` names, on its schedule; moments are float32."""
    optimizer = _BUILDERS[config.name](config, schedule(config, d_model, steps))
    if config.clip_norm is None:
        return optimizer
    clip = optax.clip_by_global_norm(config.clip_norm)
    return optax.chain(clip, optimizer)


def _adam(config: OptimizerConfig, rate: Schedule) -> optax.GradientTransformation:
    return optax.adam(rate, b1=config.beta1, b2=config.beta2, eps=config.epsilon)


def _adamw(config: OptimizerConfig, rate: Schedule) -> optax.GradientTransformation:
    return optax.adamw(
        rate,
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=matrices,
    )


def _adafactor(config: OptimizerConfig, rate: Schedule) -> optax.GradientTransformation:
    """Shazeer & Stern 2018: second moments as the product of a row and a column.

    Updates are not scaled by the parameters' size, so that the learning rate means here what it
    means for the others.
    """
    factored = optax.adafactor(
        learning_rate=None,
        multiply_by_parameter_scale=False,
        momentum=config.beta1 or None,
        weight_decay_rate=config.weight_decay or None,
        weight_decay_mask=matrices,
    )
    return optax.chain(factored, optax.scale_by_learning_rate(rate, flip_sign=False))


def _lion(config: OptimizerConfig, rate: Schedule) -> optax.GradientTransformation:
    return optax.lion(
        rate,
        b1=config.beta1,
        b2=config.beta2,
        weight_decay=config.weight_decay,
        mask=matrices,
    )


def _muon(config: OptimizerConfig, rate: Schedule) -> optax.GradientTransformation:
    """Jordan et al. 2024: orthogonalised momentum for the kernels, which alone decay, and Adam for
    the embedding table, biases and norm scales.

    A kernel's update is scaled to the root mean square that Adam's has (0.2, Liu et al. 2025), so
    that one learning rate serves both.
    """
    return optax.contrib.muon(
        rate,
        beta=config.beta1,
        weight_decay=config.weight_decay,
        adam_b1=config.beta1,
        adam_b2=config.beta2,
        muon_weight_dimension_numbers=_muon_axes,
        consistent_rms=0.2,
    )


def _schedule_free(config: OptimizerConfig, rate: Schedule) -> optax.GradientTransformation:
    """Defazio et al. 2024: AdamW whose evaluated weights are an average of all the steps'."""
    base = optax.adamw(
        rate,
        b1=0.0,  # beta1 interpolates between average and iterate instead
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=matrices,
    )
    return optax.contrib.schedule_free(base, rate, b1=config.beta1)


_BUILDERS: dict[str, Callable[[OptimizerConfig, Schedule], optax.GradientTransformation]] = {
    "adam": _adam,
    "adamw": _adamw,
    "adafactor": _adafactor,
    "lion": _lion,
    "muon": _muon,
    "schedule_free": _schedule_free,
}


def schedule_free_average(opt_state: optax.OptState, params: Params) -> Params | None:
    """The weights that a schedule-free optimizer evaluates; None for every other optimizer."""
    found = [
        leaf
        for leaf in jax.tree.leaves(opt_state, is_leaf=_is_schedule_free)
        if _is_schedule_free(leaf)
    ]
    return optax.contrib.schedule_free_eval_params(found[0], params) if found else None


def _is_schedule_free(node: Any) -> bool:
    return isinstance(node, optax.contrib.ScheduleFreeState)


def matrices(params: Params) -> Any:
    """Which parameters decay: kernels and tables, but neither biases nor norm scales."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _is_matrix(path), params)


def _is_matrix(path: tuple) -> bool:
    name = path[-1].key
    return "bias" not in name and name != "scale"


def _muon_axes(params: Params) -> Any:
    """A kernel's input and output axes; None for what is not a kernel between activations."""

    def axes(path, leaf):
        name = path[-1].key
        if not _is_matrix(path) or name in ("table", "positions"):
            return None
        inputs = leaf.ndim - 1 if name == "output" else 1
        every = tuple(range(leaf.ndim))
        return optax.contrib.MuonDimensionNumbers(every[:inputs], every[inputs:])

    return jax.tree_util.tree_map_with_path(axes, params)
