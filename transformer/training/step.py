# SPDX-License-Identifier: Apache-2.0
"""One training step and one evaluation step, as pure functions of state and batch (paper 5).

The loss is the sum over all target tokens of the batch divided by their number, whatever the
devices it is spread over.
"""

import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.arrays import PAD_ID, Array, Float, Int, Key, Params
from transformer.config import Config, TrainingConfig
from transformer.nn.positions import shift_right
from transformer.training.losses import (
    Sums,
    divergence_sum,
    smoothed_cross_entropy,
    token_log_probs,
)
from transformer.training.optimizers import schedule_free_average


@flax.struct.dataclass
class Batch:
    """Sentence pairs as token ids, padded with 0; a row of padding alone weighs nothing."""

    source: Int[Array | np.ndarray, "B S"]
    target: Int[Array | np.ndarray, "B T"]
    source_segments: Int[Array | np.ndarray, "B S"] | None = None
    """In packed rows, which sentence of its row each token belongs to, from 1; 0 where padded."""
    target_segments: Int[Array | np.ndarray, "B T"] | None = None


@flax.struct.dataclass
class TrainState:
    """All that changes from step to step."""

    step: Int[Array, ""]
    params: Params
    opt_state: optax.OptState
    rng: Key[Array, ""]
    """Never advanced: a step's randomness is `fold_in(rng, step)`."""
    average: Params | None = None
    """A running average of the parameters, where the config asks for one."""

    @property
    def weights(self) -> Params:
        """What is validated and used: the running average if there is one."""
        return self.params if self.average is None else self.average


def keeps_average(config: Config) -> bool:
    """Whether the weights to use are another array than the parameters that are trained."""
    return config.training.ema_decay is not None or config.optimizer.name == "schedule_free"


def init_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    *,
    with_average: bool = False,
) -> TrainState:
    """Fresh parameters, with their logical axes still attached (`flax.linen.unbox` takes them
    off); all else is without.
    """
    init_key, rng = jax.random.split(key)
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = model.init(init_key, tokens, tokens)["params"]
    plain = nn.unbox(params)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(plain),
        rng=rng,
        # A copy, because two donated arguments must not be one array.
        average=jax.tree.map(jnp.copy, plain) if with_average else None,
    )


def forward(
    params: Params,
    batch: Batch,
    model: nn.Module,
    rng: Key[Array, ""] | None = None,
    example_ids: Int[Array, " B"] | None = None,
) -> Float[Array, "B T V"]:
    """The logits that predict a batch's target; with dropout when an `rng` is given.

    Args:
      example_ids: global index of each example in the batch, for dropout; 0, 1, ... unless given.
    """
    options = {}
    if rng is not None:
        options = {"train": True, "example_ids": example_ids, "rngs": {"dropout": rng}}
    if batch.target_segments is not None:
        options |= {
            "source_segments": batch.source_segments,
            "target_segments": batch.target_segments,
        }
    logits, _ = model.apply(
        {"params": params},
        batch.source,
        shift_right(batch.target, batch.target_segments),
        **options,
    )
    return logits


def loss_sums(
    params: Params,
    batch: Batch,
    model: nn.Module,
    config: TrainingConfig,
    rng: Key[Array, ""] | None = None,
    example_ids: Int[Array, " B"] | None = None,
) -> Sums:
    """Forward pass and loss; with dropout when an `rng` is given (`example_ids` as in `forward`).

    With R-Drop (Liang et al. 2021) there are two passes, with different dropout; all sums are the
    mean of both, and to the loss r_drop / 2 times their divergence is added. That is half of the
    published loss, so that it can be compared with the loss of one pass.
    """

    def sums_of(logits: Float[Array, "B T V"]) -> Sums:
        mass = config.label_smoothing_mass
        return smoothed_cross_entropy(logits, batch.target, config.label_smoothing, mass)

    if rng is None or not config.r_drop:
        return sums_of(forward(params, batch, model, rng, example_ids))
    first, second = (
        forward(params, batch, model, key, example_ids) for key in jax.random.split(rng)
    )
    both = jax.tree.map(lambda a, b: (a + b) / 2, sums_of(first), sums_of(second))
    divergence = divergence_sum(first, second, batch.target)
    return both.replace(loss=both.loss + config.r_drop / 2 * divergence)


def gradient_sums(
    params: Params,
    batch: Batch,
    model: nn.Module,
    config: TrainingConfig,
    rng: Key[Array, ""],
    example_ids: Int[Array, " B"],
) -> tuple[Params, Sums]:
    """The gradient of the batch's summed loss, and its sums.

    The batch is computed in `config.micro_batches` equal parts, one after the other. Their
    gradients are added, never averaged: a part with more tokens weighs more, as it would in one
    pass. `example_ids` are the global indices of the examples; dropout depends on them, not on the
    part.
    """

    def loss(params: Params, part: Batch, example_ids: Int[Array, " B"]) -> tuple[Array, Sums]:
        sums = loss_sums(params, part, model, config, rng, example_ids)
        return sums.loss, sums

    gradient = jax.grad(loss, has_aux=True)
    parts = config.micro_batches or 1
    if parts == 1:
        return gradient(params, batch, example_ids)

    def add(total: tuple[Params, Sums], numbered: tuple[Batch, Int[Array, " B"]]):
        return jax.tree.map(jnp.add, total, gradient(params, *numbered)), None

    nothing = (jax.tree.map(jnp.zeros_like, params), Sums.zero())
    divided = jax.tree.map(functools.partial(_divided, parts=parts), (batch, example_ids))
    total, _ = jax.lax.scan(add, nothing, divided)
    return total


def _divided(rows: Int[Array, "B *T"], parts: int) -> Int[Array, "M C *T"]:
    """Row i goes to part i mod `parts`, so that every device has its share of every part."""
    return rows.reshape(-1, parts, *rows.shape[1:]).swapaxes(0, 1)


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    config: Config,
    axis_name: str | None = None,
    gathered: Params | None = None,
) -> tuple[TrainState, Sums]:
    """One update; the sums are those of the batch before it.

    Where the loss or a gradient is not finite the step is skipped: nothing changes but the number
    of the step, and the sums are zero, those over no token.

    Args:
      state: before the step.
      batch: all of it under `jax.jit`; under `jax.shard_map` or `jax.pmap` a device's own rows.
      model: from `families.build`.
      optimizer: from `optimizers.build`.
      config: of the experiment.
      axis_name: under `jax.shard_map` or `jax.pmap`, the mesh axis that the rows are divided over.
        The devices' rows, one device's after the other's, are those of the whole batch, as which
        they drop out.
      gathered: under `jax.jit` with shardings, how parameters lie while they are used
        (`sharding.gathered`); left to XLA unless given.
    """
    rng = jax.random.fold_in(state.rng, state.step)
    example_ids = jnp.arange(batch.target.shape[0])
    if axis_name is not None:
        example_ids = example_ids + jax.lax.axis_index(axis_name) * example_ids.size
    used = state.params
    if gathered is not None:
        used = jax.lax.with_sharding_constraint(used, gathered)
    gradients, sums = gradient_sums(used, batch, model, config.training, rng, example_ids)
    if axis_name is not None:
        gradients, sums = jax.lax.psum((gradients, sums), axis_name)
    tokens = jnp.maximum(sums.tokens, 1.0)
    gradients = jax.tree.map(lambda gradient: gradient / tokens, gradients)
    finite = jnp.isfinite(sums.loss) & jnp.isfinite(optax.tree.norm(gradients))
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    updated = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
    updated = updated.replace(average=next_average(updated, config))
    skipped = state.replace(step=state.step + 1), Sums.zero()
    return jax.tree.map(functools.partial(jnp.where, finite), (updated, sums), skipped)


def next_average(state: TrainState, config: Config) -> Params | None:
    """The running average after an update.

    Exponential: decay x average + (1 - decay) x parameters, where the decay of step t is at most
    (1 + t) / (10 + t), so that the random start is soon forgotten. A schedule-free optimizer has an
    average of its own.
    """
    if state.average is None:
        return None
    if config.training.ema_decay is None:
        return schedule_free_average(state.opt_state, state.params)
    decay = jnp.minimum(config.training.ema_decay, (1.0 + state.step) / (10.0 + state.step))
    return jax.tree.map(
        lambda average, leaf: average + (1.0 - decay) * (leaf - average),
        *(state.average, state.params),
    )


def eval_step(params: Params, batch: Batch, *, model: nn.Module, config: Config) -> Sums:
    """The sums of one batch, without dropout."""
    return loss_sums(params, batch, model, config.training)


def score_step(params: Params, batch: Batch, *, model: nn.Module) -> Float[Array, "B T"]:
    """The natural-log probability of every target token; 0 where padded."""
    log_probs = token_log_probs(forward(params, batch, model), batch.target)
    return jnp.where(batch.target != PAD_ID, log_probs, 0.0)
