# SPDX-License-Identifier: Apache-2.0
"""The training step and the evaluation step, as pure functions of state and batch (paper 5).

The loss is the sum over all target tokens of the batch divided by their number, independent of the
number of devices and micro-batches.
"""

import functools
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
import optax

from transformer.arrays import Array, Int, Key, Params, Shown
from transformer.batch import Batch
from transformer.config import ModelConfig
from transformer.models.protocol import Model
from transformer.training import adapters
from transformer.training.losses import Sums, smoothed_cross_entropy
from transformer.training.optimizers import schedule_free_average

ToModel = Callable[[Params, Params | None], Params]
"""From `TrainState.params` and `TrainState.base` to the parameters of the model."""


Loss = Callable[..., Sums]
"""A function with the signature of `loss`."""


def loss(
    model: Model,
    params: Params,
    batch: Batch,
    rng: Key[Array, ""] | None = None,
    example_ids: Int[Array, " B"] | None = None,
    *,
    smoothing: float = 0.1,
    mass: str = "uniform_others",
) -> Sums:
    """The label-smoothed loss of a batch; with dropout if an `rng` is given.

    What modules sow into the collection ``losses``, for example ``self.sow("losses", "balance",
    value)`` in a mixture of experts, is added to the loss of every token.

    Args:
      model: a model of any family.
      params: parameters of the model.
      batch: source and target.
      rng: for dropout.
      example_ids: global index of each example, for dropout; 0, 1, ... unless given.
      smoothing: see `smoothed_cross_entropy`.
      mass: see `smoothed_cross_entropy`.
    """
    inputs = batch.inputs(model.config.bos_id, rng, example_ids)
    logits, sown = model.apply({"params": params}, **inputs, mutable="losses")
    target = learned_target(batch.target, model.config)
    sums = smoothed_cross_entropy(logits, target, smoothing, mass, model.config.pad_id)
    return sums.with_auxiliary(sown)


def learned_target(target: Int[Array, "B T"], config: ModelConfig) -> Int[Array, "B T"]:
    """The target, with padding at EOS if the model family does not predict EOS."""
    if config.predicts_eos:
        return target
    return jnp.where(target == config.eos_id, config.pad_id, target)


@flax.struct.dataclass(repr=False)
class TrainState(Shown):
    """Everything that changes from step to step."""

    step: Int[Array, ""]
    params: Params
    opt_state: optax.OptState
    rng: Key[Array, ""]
    """Constant; the randomness of a step is `fold_in(rng, step)`."""
    average: Params | None = None
    """Running average of the parameters, if the training keeps one."""
    base: Params | None = None
    """With LoRA the constant parameters of the model, to which `params` are adapters."""

    @property
    def weights(self) -> Params:
        """What is saved and used: the running average of `params` if there is one, or `params`."""
        return self.params if self.average is None else self.average

    @classmethod
    def create(
        cls,
        model: Model,
        optimizer: optax.GradientTransformation,
        key: Key[Array, ""],
        *,
        with_average: bool = False,
        params: Params | None = None,
        adapter_metadata: Params | None = None,
    ) -> "TrainState":
        """The state before the first step.

        Args:
          model: from `models.protocol.build`.
          optimizer: from `optimizers.optimizer`.
          key: random key of the run.
          with_average: keep a running average.
          params: to start from; drawn at random unless given.
          adapter_metadata: from `adapters.declare`: these are trained, and `params` are their base.
        """
        init_key, rng = jax.random.split(key)
        if params is None:
            params = model.init(init_key, *model.example_inputs())["params"]
        base = None
        if adapter_metadata is not None:
            # Another key than that of the model, whose draws would be correlated.
            adapter_key = jax.random.fold_in(init_key, 1)
            base, params = params, adapters.init(adapter_key, adapter_metadata)
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            rng=rng,
            # A copy, because two donated arguments must not be the same array.
            average=jax.tree.map(jnp.copy, params) if with_average else None,
            base=base,
        )


def params_themselves(params: Params, base: None) -> Params:
    """The argument `to_model` if all parameters of the model are trained."""
    return params


def train_step(
    model: Model,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    batch: Batch,
    *,
    loss: Loss = loss,
    to_model: ToModel = params_themselves,
    micro_batches: int = 1,
    ema_decay: float | None = None,
    axis_name: str | None = None,
) -> tuple[TrainState, Sums]:
    """Update the parameters once; the returned sums are those before the update.

    If the loss or a gradient is not finite the update is skipped: only `step` changes, and the
    sums are zero.

    Args:
      model: a model of any family.
      optimizer: from `optimizers.optimizer`, or any other of optax.
      state: training state before the step.
      batch: under `jax.jit` the complete batch; under `jax.shard_map` or `jax.pmap` the local rows
        of a device.
      loss: loss function of a batch, from `consistency.loss_of` or with the same signature.
      to_model: from what is trained to the parameters of the model, for example
        `adapters.merge`; the gradient is taken through it.
      micro_batches: see `accumulated`.
      ema_decay: see `next_average`.
      axis_name: under `jax.shard_map` or `jax.pmap`, the mesh axis that the rows are divided along.
        The rows of the devices, in order, are the complete batch, as dropout counts it.
    """
    rng = jax.random.fold_in(state.rng, state.step)
    example_ids = jnp.arange(batch.target.shape[0])  # [B]
    if axis_name is not None:
        example_ids = example_ids + jax.lax.axis_index(axis_name) * example_ids.size

    def summed_loss(trained: Params, batch: Batch, example_ids: Int[Array, " B"]):
        sums = loss(model, to_model(trained, state.base), batch, rng, example_ids)
        return sums.loss, sums

    gradient = jax.grad(summed_loss, has_aux=True)
    if micro_batches > 1:
        gradient = accumulated(gradient, micro_batches)
    gradients, sums = gradient(state.params, batch, example_ids)
    if axis_name is not None:
        gradients, sums = jax.lax.psum((gradients, sums), axis_name)
    num_tokens = jnp.maximum(sums.tokens, 1.0)
    gradients = jax.tree.map(lambda gradient: gradient / num_tokens, gradients)
    sums = sums.replace(gradient_norm=optax.tree.norm(gradients))
    finite = jnp.isfinite(sums.loss) & jnp.isfinite(sums.gradient_norm)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    updated = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
    updated = updated.replace(average=next_average(updated, ema_decay))
    skipped = state.replace(step=state.step + 1), Sums.zero()
    return jax.tree.map(functools.partial(jnp.where, finite), (updated, sums), skipped)


Gradient = Callable[[Params, Batch, Int[Array, " B"]], tuple[Params, Sums]]
"""From parameters, a batch and its `example_ids` to the gradient of the summed loss, and sums."""


def accumulated(gradient: Gradient, micro_batches: int) -> Gradient:
    """The same function, computed in equal parts of the batch, one after the other.

    The gradients of the parts are added, never averaged: as in one pass, a part with more tokens
    weighs more. Dropout depends on the `example_ids`, and not on the part that an example is in.
    """

    def divide(rows: Int[Array, "B *T"]) -> Int[Array, "parts rows *T"]:
        # Row i goes to part i mod parts, so that every device has rows of every part.
        return rows.reshape(-1, micro_batches, *rows.shape[1:]).swapaxes(0, 1)

    def total(params: Params, batch: Batch, example_ids: Int[Array, " B"]) -> tuple[Params, Sums]:
        def add(total: tuple[Params, Sums], part: tuple) -> tuple[tuple[Params, Sums], None]:
            return jax.tree.map(jnp.add, total, gradient(params, *part)), None

        zero = (jax.tree.map(jnp.zeros_like, params), Sums.zero())
        return jax.lax.scan(add, zero, jax.tree.map(divide, (batch, example_ids)))[0]

    return total


def next_average(state: TrainState, ema_decay: float | None) -> Params | None:
    """The running average after an update; None if the state has none.

    The exponential moving average is decay x average + (1 - decay) x parameters. The decay at step
    t is at most (1 + t) / (10 + t), so that the initial parameters are soon forgotten. Without a
    decay, the average is that which a schedule-free optimizer keeps itself.
    """
    if state.average is None:
        return None
    if ema_decay is None:
        return schedule_free_average(state.opt_state, state.params)
    decay = jnp.minimum(ema_decay, (1.0 + state.step) / (10.0 + state.step))
    return jax.tree.map(
        lambda average, leaf: average + (1.0 - decay) * (leaf - average),
        *(state.average, state.params),
    )


def eval_step(
    model: Model,
    params: Params,
    batch: Batch,
    *,
    loss: Loss = loss,
    to_model: ToModel = params_themselves,
) -> Sums:
    """The sums of one batch, without dropout; the arguments are those of `train_step`."""
    return loss(model, to_model(params, None), batch)
