# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules and optimizers by name; the defaults are those of paper 5.3.

Every optimizer is optax's. This file maps the fields of `OptimizerConfig` to its arguments. Weight
decay and Muon's matrix shapes follow the metadata of the parameters' declarations.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from transformer.arrays import Params
from transformer.config import OptimizerConfig
from transformer.nn.parameters import Parameter, is_parameter


def noam(d_model: int, warmup_steps: int = 4000, scale: float = 1.0) -> optax.Schedule:
    """scale * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), where the first update is step 1.

    With d_model 512 and 4000 warm-up steps the peak, at step 4000, is 6.99e-4.
    """

    def rate(count):
        step = jnp.asarray(count, jnp.float32) + 1.0
        return scale * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup_steps**-1.5)

    return rate


def schedule(config: OptimizerConfig, d_model: int, steps: int) -> optax.Schedule:
    """The learning rate as a function of the number of updates so far.

    ``constant`` and ``cosine`` rise linearly from peak / warmup, at the first update, to the peak
    at update number `config.warmup_steps`. ``cosine`` then falls to 0 at update number `steps`.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if config.schedule == "noam":
        return noam(d_model, warmup, scale=peak)
    warm_up = optax.schedules.linear_schedule(peak / warmup, peak, warmup - 1)
    if config.schedule == "constant":
        return warm_up
    decay = optax.schedules.cosine_decay_schedule(peak, max(steps - warmup, 1))
    return optax.schedules.join_schedules([warm_up, decay], [warmup - 1])


def build(
    config: OptimizerConfig, metadata: Params, d_model: int, steps: int
) -> optax.GradientTransformation:
    """The optimizer `config.name` with its schedule; moments are float32.

    Args:
      config: validated.
      metadata: from `models.base.parameter_metadata`.
      d_model: width of the model, for the ``noam`` schedule.
      steps: length of the training, for the ``cosine`` schedule.
    """
    optimizer = _OPTIMIZERS[config.name](config, schedule(config, d_model, steps), metadata)
    if config.clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)


def schedule_free_average(opt_state: optax.OptState, params: Params) -> Params | None:
    """The weights that a schedule-free optimizer evaluates; None for every other optimizer."""

    def is_schedule_free(node: object) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    for node in jax.tree.leaves(opt_state, is_leaf=is_schedule_free):
        if is_schedule_free(node):
            return optax.contrib.schedule_free_eval_params(node, params)
    return None


def _adam(
    config: OptimizerConfig, rate: optax.Schedule, metadata: Params
) -> optax.GradientTransformation:
    del metadata
    return optax.adam(rate, b1=config.beta1, b2=config.beta2, eps=config.epsilon)


def _adamw(
    config: OptimizerConfig, rate: optax.Schedule, metadata: Params
) -> optax.GradientTransformation:
    return optax.adamw(
        rate,
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=_decayed(metadata),
    )


def _adafactor(
    config: OptimizerConfig, rate: optax.Schedule, metadata: Params
) -> optax.GradientTransformation:
    """Shazeer & Stern 2018: second moments factored into rows and columns.

    Updates are not multiplied by the size of the parameters, so that the learning rate means the
    same as for the other optimizers.
    """
    factored = optax.adafactor(
        learning_rate=None,
        multiply_by_parameter_scale=False,
        momentum=config.beta1 or None,
        weight_decay_rate=config.weight_decay or None,
        weight_decay_mask=_decayed(metadata),
    )
    return optax.chain(factored, optax.scale_by_learning_rate(rate, flip_sign=False))


def _lion(
    config: OptimizerConfig, rate: optax.Schedule, metadata: Params
) -> optax.GradientTransformation:
    return optax.lion(
        rate,
        b1=config.beta1,
        b2=config.beta2,
        weight_decay=config.weight_decay,
        mask=_decayed(metadata),
    )


def _muon(
    config: OptimizerConfig, rate: optax.Schedule, metadata: Params
) -> optax.GradientTransformation:
    """Jordan et al. 2024: orthogonalized momentum for kernels, Adam for everything else.

    Only kernels decay. Their updates are scaled to the root mean square of Adam's updates (0.2, Liu
    et al. 2025), so that one learning rate suits both.
    """

    def matrix_axes(parameter: Parameter) -> optax.contrib.MuonDimensionNumbers | None:
        if parameter.kind != "kernel":
            return None
        axes = tuple(range(len(parameter.names)))
        inputs = parameter.num_input_axes
        return optax.contrib.MuonDimensionNumbers(axes[:inputs], axes[inputs:])

    return optax.contrib.muon(
        rate,
        beta=config.beta1,
        weight_decay=config.weight_decay,
        adam_b1=config.beta1,
        adam_b2=config.beta2,
        muon_weight_dimension_numbers=jax.tree.map(matrix_axes, metadata, is_leaf=is_parameter),
        consistent_rms=0.2,
    )


def _schedule_free(
    config: OptimizerConfig, rate: optax.Schedule, metadata: Params
) -> optax.GradientTransformation:
    """Defazio et al. 2024: AdamW that evaluates an average of the weights of all steps."""
    base = optax.adamw(
        rate,
        b1=0.0,  # beta1 interpolates between the average and the iterate instead
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=_decayed(metadata),
    )
    return optax.contrib.schedule_free(base, rate, b1=config.beta1)


_OPTIMIZERS: dict[
    str, Callable[[OptimizerConfig, optax.Schedule, Params], optax.GradientTransformation]
] = {
    "adam": _adam,
    "adamw": _adamw,
    "adafactor": _adafactor,
    "lion": _lion,
    "muon": _muon,
    "schedule_free": _schedule_free,
}


def _decayed(metadata: Params) -> Params:
    """True for the parameters that weight decay applies to: kernels and embeddings."""
    return jax.tree.map(lambda parameter: parameter.is_weight, metadata, is_leaf=is_parameter)
