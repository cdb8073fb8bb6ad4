# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules and optimizers by name; the defaults are those of paper 5.3.

Every optimizer is optax's. This file maps the fields of `OptimizerConfig` to its arguments. Weight
decay and Muon's matrix shapes follow the metadata of the parameters' declarations.
"""

import jax
import jax.numpy as jnp
import optax

from transformer.arrays import Params
from transformer.config import OptimizerConfig
from transformer.errors import InputError
from transformer.models.protocol import Model, parameter_metadata
from transformer.nn.parameters import Parameter, is_parameter
from transformer.user_functions import is_function, load_function


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


def optimizer(
    model: Model,
    config: OptimizerConfig = OptimizerConfig(),
    steps: int = 100_000,
    *,
    trained: Params | None = None,
) -> optax.GradientTransformation:
    """The optimizer `config.name` with its schedule, by default the paper's; moments are float32.

    Args:
      model: its width is that of the ``noam`` schedule.
      config: validated.
      steps: length of the training, for the ``cosine`` schedule.
      trained: metadata of what is trained, if it is not the model: from `adapters.declare`.
    """
    metadata = parameter_metadata(model) if trained is None else trained
    rate = schedule(config, model.describe().d_model, steps)
    adam = {"b1": config.beta1, "b2": config.beta2, "eps": config.epsilon}
    # Kernels and embeddings decay; biases and scales do not.
    decayed = jax.tree.map(lambda leaf: leaf.is_weight, metadata, is_leaf=is_parameter)
    decay = {"weight_decay": config.weight_decay, "mask": decayed}
    optimizers = {
        "adam": lambda: optax.adam(rate, **adam),
        "adamw": lambda: optax.adamw(rate, **adam, **decay),
        # Shazeer & Stern 2018: second moments factored into rows and columns. Without scaling by
        # the size of the parameters, the learning rate means the same as for the others.
        "adafactor": lambda: optax.chain(
            optax.adafactor(
                learning_rate=None,
                multiply_by_parameter_scale=False,
                momentum=config.beta1 or None,
                weight_decay_rate=config.weight_decay or None,
                weight_decay_mask=decayed,
            ),
            optax.scale_by_learning_rate(rate, flip_sign=False),
        ),
        "lion": lambda: optax.lion(rate, b1=config.beta1, b2=config.beta2, **decay),
        # Jordan et al. 2024: orthogonalized momentum for kernels, Adam with Nesterov's momentum for
        # the rest. Only kernels decay. Their updates have the root mean square of Adam's (0.2, Liu
        # et al. 2025), so that one learning rate suits both.
        "muon": lambda: optax.contrib.muon(
            rate,
            beta=config.beta1,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            adam_b1=config.beta1,
            adam_b2=config.beta2,
            muon_weight_dimension_numbers=jax.tree.map(
                _matrix_axes, metadata, is_leaf=is_parameter
            ),
            consistent_rms=0.2,
        ),
        # Defazio et al. 2024: beta1 interpolates between the average, which is evaluated, and the
        # iterate; the inner AdamW has no momentum. An iterate weighs as the square of its rate;
        # optax's count of these weights starts at 1, that of a schedule at 0.
        "schedule_free": lambda: optax.contrib.schedule_free(
            optax.adamw(rate, **adam | {"b1": 0.0}, **decay),
            lambda count: rate(count - 1),
            b1=config.beta1,
        ),
    }
    if is_function(config.name):
        chosen = load_function(config.name)(rate)
        if not isinstance(chosen, optax.GradientTransformation):
            raise InputError(
                f"optimizer.name is {config.name!r}, which returned {chosen!r}; it must return "
                "an optax.GradientTransformation"
            )
    else:
        chosen = optimizers[config.name]()
    if config.clip_norm is not None:
        return optax.chain(optax.clip_by_global_norm(config.clip_norm), chosen)
    return chosen


def _matrix_axes(parameter: Parameter) -> optax.contrib.MuonDimensionNumbers | None:
    """Input and output axes of a kernel; None for the other kinds of parameters."""
    if parameter.kind != "kernel":
        return None
    axes, inputs = tuple(range(len(parameter.names))), parameter.num_input_axes
    return optax.contrib.MuonDimensionNumbers(axes[:inputs], axes[inputs:])


def schedule_free_average(opt_state: optax.OptState, params: Params) -> Params | None:
    """The weights that a schedule-free optimizer evaluates; None for every other optimizer."""

    def is_schedule_free(node: object) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    for node in jax.tree.leaves(opt_state, is_leaf=is_schedule_free):
        if is_schedule_free(node):
            return optax.contrib.schedule_free_eval_params(node, params)
    return None
