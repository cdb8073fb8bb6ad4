# SPDX-License-Identifier: Apache-2.0
"""The training step and the evaluation step, as pure functions of state and batch (paper 5).

The loss is the sum over all target tokens of the batch divided by their number, independent of the
number of devices and micro-batches.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.arrays import Array, Float, Int, Key, Params, SpecialIds
from transformer.config import Config, TrainingConfig
from transformer.models.base import Model
from transformer.nn.dropout import chosen, threefry_bits
from transformer.nn.embedding import ZEROED
from transformer.nn.positions import shift_right
from transformer.training import freezing, lora
from transformer.training.losses import (
    Sums,
    kl_sum,
    smoothed_cross_entropy,
    symmetric_kl_sum,
    token_log_probs,
)
from transformer.training.optimizers import schedule_free_average


@flax.struct.dataclass
class Batch:
    """Sentence pairs as padded token ids; a row of padding alone has weight 0."""

    source: Int[Array | np.ndarray, "B S"]
    target: Int[Array | np.ndarray, "B T"]
    source_segments: Int[Array | np.ndarray, "B S"] | None = None
    """In packed rows, the sentence of its row that each token belongs to, from 1; 0 for padding."""
    target_segments: Int[Array | np.ndarray, "B T"] | None = None


@flax.struct.dataclass
class TrainState:
    """Everything that changes from step to step."""

    step: Int[Array, ""]
    params: Params
    opt_state: optax.OptState
    rng: Key[Array, ""]
    """Constant; the randomness of a step is `fold_in(rng, step)`."""
    average: Params | None = None
    """Running average of the parameters, if the config asks for one."""
    base: Params | None = None
    """With LoRA the constant parameters of the model, to which `params` are adapters."""

    @property
    def weights(self) -> Params:
        """What is saved and used: the running average of `params` if there is one, or `params`."""
        return self.params if self.average is None else self.average


def keeps_average(config: Config) -> bool:
    """Whether the training state has a running average of the parameters."""
    return config.training.ema_decay is not None or config.optimizer.name == "schedule_free"


def init_state(
    model: Model,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    *,
    with_average: bool = False,
    params: Params | None = None,
    adapters: Params | None = None,
) -> TrainState:
    """The training state before the first step.

    Args:
      model: from `models.base.build`.
      optimizer: from `optimizers.build`.
      key: random key of the run.
      with_average: keep a running average.
      params: to start from; drawn at random unless given.
      adapters: from `lora.adapter_metadata`: these are trained, and `params` are their base.
    """
    init_key, rng = jax.random.split(key)
    if params is None:
        tokens = jnp.zeros((1, 1), jnp.int32)
        params = nn.unbox(model.init(init_key, tokens, tokens)["params"])
    base = None
    if adapters is not None:
        base, params = params, lora.init(init_key, adapters)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        rng=rng,
        # A copy, because two donated arguments must not be the same array.
        average=jax.tree.map(jnp.copy, params) if with_average else None,
        base=base,
    )


def forward(
    params: Params,
    batch: Batch,
    model: Model,
    rng: Key[Array, ""] | None = None,
    example_ids: Int[Array, " B"] | None = None,
    cutoff: float = 0.0,
) -> Float[Array, "B T V"]:
    """The logits that predict the target of a batch; with dropout if an `rng` is given.

    Args:
      params: of the model.
      batch: source and target.
      model: from `models.base.build`.
      rng: for dropout.
      example_ids: global index of each example in the batch, for dropout; 0, 1, ... unless given.
      cutoff: probability with which the vector of a token is zeroed; needs an `rng`.
    """
    special_ids = model.config.special_ids
    source = batch.source
    target_in = shift_right(batch.target, batch.target_segments, special_ids.bos)  # [B, T]
    if cutoff:
        rng, *keys = jax.random.split(rng, 3)
        source, target_in = (
            cut_off(tokens, key, example_ids, cutoff, special_ids)
            for tokens, key in zip((source, target_in), keys, strict=True)
        )
    options = {}
    if rng is not None:
        options = {"train": True, "example_ids": example_ids, "rngs": {"dropout": rng}}
    if batch.target_segments is not None:
        options |= {
            "source_segments": batch.source_segments,
            "target_segments": batch.target_segments,
        }
    return model.apply({"params": params}, source, target_in, **options)  # [B, T, V]


def cut_off(
    tokens: Int[Array, "B T"],
    key: Key[Array, ""],
    example_ids: Int[Array, " B"] | None,
    rate: float,
    special_ids: SpecialIds = SpecialIds(),
) -> Int[Array, "B T"]:
    """Make each token `ZEROED` with probability `rate`, except padding, BOS and EOS (SimCut).

    Args:
      tokens: padded token ids.
      key: of this side of the batch at this step.
      example_ids: global index of each example in the batch; None: 0, 1, ...
      rate: probability for each token, independently.
      special_ids: ids of padding, BOS and EOS.
    """
    if example_ids is None:
        example_ids = jnp.arange(len(tokens))
    cut = chosen(threefry_bits(key, example_ids, tokens.shape[1:]), rate)
    is_special = jnp.isin(tokens, jnp.array([special_ids.pad, special_ids.bos, special_ids.eos]))
    return jnp.where(cut & ~is_special, ZEROED, tokens)


def loss_sums(
    params: Params,
    batch: Batch,
    model: Model,
    config: TrainingConfig,
    rng: Key[Array, ""] | None = None,
    example_ids: Int[Array, " B"] | None = None,
) -> Sums:
    """Forward pass and loss; with dropout if an `rng` is given (`example_ids` as in `forward`).

    R-Drop (Liang et al. 2021) makes two passes with different dropout. All sums are the mean of
    both, and r_drop / 2 times their divergence is added to the loss. This is half of the published
    loss, so it can be compared with the loss of one pass.

    SimCut (Gao et al. 2022) makes a second pass in which the vectors of some tokens are zero, and
    adds cutoff_weight times KL(whole||cut). All other sums are those of the first pass.
    """
    pad_id = model.config.special_ids.pad

    def sums_of(logits: Float[Array, "B T V"]) -> Sums:
        smoothing, mass = config.label_smoothing, config.label_smoothing_mass
        return smoothed_cross_entropy(logits, batch.target, smoothing, mass, pad_id)

    if rng is None or config.forward_passes == 1:
        return sums_of(forward(params, batch, model, rng, example_ids))
    first_key, second_key = jax.random.split(rng)
    first = forward(params, batch, model, first_key, example_ids)  # [B, T, V]
    second = forward(params, batch, model, second_key, example_ids, config.cutoff)
    if config.cutoff:
        sums = sums_of(first)
        divergence = kl_sum(first, second, batch.target, pad_id)
        return sums.replace(loss=sums.loss + config.cutoff_weight * divergence)
    mean = jax.tree.map(lambda a, b: (a + b) / 2, sums_of(first), sums_of(second))
    divergence = symmetric_kl_sum(first, second, batch.target, pad_id)
    return mean.replace(loss=mean.loss + config.r_drop / 2 * divergence)


def gradient_sums(
    params: Params,
    batch: Batch,
    model: Model,
    config: TrainingConfig,
    rng: Key[Array, ""],
    example_ids: Int[Array, " B"],
    to_model: Callable[[Params], Params] = lambda params: params,
) -> tuple[Params, Sums]:
    """The gradient of the summed loss of a batch, and its sums.

    `to_model` maps `params`, for which the gradient is taken, to those of the model.

    With gradient accumulation the batch is computed in `config.micro_batches` equal parts, one
    after the other. Their gradients are added, never averaged: as in one pass, a part with more
    tokens weighs more. Dropout depends on `example_ids`, the global index of each example, and not
    on the part that an example is in.
    """

    def loss(
        params: Params, batch: Batch, example_ids: Int[Array, " B"]
    ) -> tuple[Float[Array, ""], Sums]:
        sums = loss_sums(to_model(params), batch, model, config, rng, example_ids)
        return sums.loss, sums

    gradient = jax.grad(loss, has_aux=True)
    parts = config.micro_batches or 1
    if parts == 1:
        return gradient(params, batch, example_ids)

    def add(
        total: tuple[Params, Sums], part: tuple[Batch, Int[Array, " rows"]]
    ) -> tuple[tuple[Params, Sums], None]:
        return jax.tree.map(jnp.add, total, gradient(params, *part)), None

    def divide(rows: Int[Array, "B *T"]) -> Int[Array, "parts rows *T"]:
        # Row i goes to part i mod parts, so that every device has rows of every part.
        return rows.reshape(-1, parts, *rows.shape[1:]).swapaxes(0, 1)

    zero = (jax.tree.map(jnp.zeros_like, params), Sums.zero())
    total, _ = jax.lax.scan(add, zero, jax.tree.map(divide, (batch, example_ids)))
    return total


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    model: Model,
    optimizer: optax.GradientTransformation,
    config: Config,
    axis_name: str | None = None,
    all_gathered: Params | None = None,
    frozen: Params | None = None,
) -> tuple[TrainState, Sums]:
    """Update the parameters once; the returned sums are those before the update.

    If the loss or a gradient is not finite the update is skipped: only `step` changes, and the
    sums are zero.

    Args:
      state: before the step.
      batch: under `jax.jit` the complete batch; under `jax.shard_map` or `jax.pmap` the local rows
        of a device.
      model: from `models.base.build`.
      optimizer: from `optimizers.build`.
      config: of the experiment.
      axis_name: under `jax.shard_map` or `jax.pmap`, the mesh axis that the rows are divided along.
        The rows of the devices, in order, are the complete batch, as dropout counts it.
      all_gathered: under `jax.jit`, the shardings of the parameters in the forward pass
        (`sharding.all_gathered`); chosen by XLA unless given.
      frozen: from `freezing.frozen_mask`, for an optimizer from `freezing.freeze`.
    """
    rng = jax.random.fold_in(state.rng, state.step)
    example_ids = jnp.arange(batch.target.shape[0])  # [B]
    if axis_name is not None:
        example_ids = example_ids + jax.lax.axis_index(axis_name) * example_ids.size
    params, to_model = _differentiated(state, config.training, all_gathered, frozen)
    gradients, sums = gradient_sums(
        params, batch, model, config.training, rng, example_ids, to_model
    )
    if axis_name is not None:
        gradients, sums = jax.lax.psum((gradients, sums), axis_name)
    num_tokens = jnp.maximum(sums.tokens, 1.0)
    gradients = jax.tree.map(lambda gradient: gradient / num_tokens, gradients)
    sums = sums.replace(gradient_norm=optax.tree.norm(gradients))
    finite = jnp.isfinite(sums.loss) & jnp.isfinite(sums.gradient_norm)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    updated = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
    updated = updated.replace(average=next_average(updated, config))
    skipped = state.replace(step=state.step + 1), Sums.zero()
    return jax.tree.map(functools.partial(jnp.where, finite), (updated, sums), skipped)


def _differentiated(
    state: TrainState, config: TrainingConfig, all_gathered: Params | None, frozen: Params | None
) -> tuple[Params, Callable[[Params], Params]]:
    """The arguments `params` and `to_model` of `gradient_sums`; see `train_step`."""
    if state.base is not None:

        def merge(adapters: Params) -> Params:
            merged = lora.merge(state.base, adapters, config.lora_scale)
            return _with_shardings(merged, all_gathered)

        return state.params, merge
    params = _with_shardings(state.params, all_gathered)
    if frozen is None:
        return params, lambda params: params
    return params, functools.partial(freezing.stop_gradients, frozen=frozen)


def next_average(state: TrainState, config: Config) -> Params | None:
    """The running average after an update; None if the state has none.

    The exponential moving average is decay x average + (1 - decay) x parameters. The decay at step
    t is at most (1 + t) / (10 + t), so that the initial parameters are soon forgotten. A
    schedule-free optimizer keeps an average itself.
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


def eval_step(
    params: Params,
    batch: Batch,
    *,
    model: Model,
    config: Config,
    all_gathered: Params | None = None,
) -> Sums:
    """The sums of one batch, without dropout; `all_gathered` as in `train_step`."""
    return loss_sums(_with_shardings(params, all_gathered), batch, model, config.training)


def score_step(params: Params, batch: Batch, *, model: Model) -> Float[Array, "B T"]:
    """Natural-log probability of every target token; 0 for padding."""
    log_probs = token_log_probs(forward(params, batch, model), batch.target)
    return jnp.where(batch.target != model.config.special_ids.pad, log_probs, 0.0)


def _with_shardings(params: Params, shardings: Params | None) -> Params:
    if shardings is None:
        return params
    return jax.lax.with_sharding_constraint(params, shardings)
