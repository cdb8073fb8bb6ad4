# SPDX-License-Identifier: Apache-2.0
"""One training step and one evaluation step, as pure functions of state and batch (paper 5).

The loss is the sum over all target tokens of the batch divided by their number, whatever the
devices it is spread over.
"""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.arrays import Array, Int, Key, Params
from transformer.config import Config
from transformer.losses import Sums, smoothed_cross_entropy, token_log_probs
from transformer.positions import shift_right


@flax.struct.dataclass
class Batch:
    """Sentence pairs as token ids, padded with 0; a row of padding alone weighs nothing."""

    source: Int[Array | np.ndarray, "B S"]
    target: Int[Array | np.ndarray, "B T"]


@flax.struct.dataclass
class TrainState:
    """All that changes from step to step."""

    step: Int[Array, ""]
    params: Params
    opt_state: optax.OptState
    rng: Key[Array, ""]
    """Never advanced: a step's randomness is `fold_in(rng, step)`."""


def init_state(
    model: nn.Module, optimizer: optax.GradientTransformation, key: Key[Array, ""]
) -> TrainState:
    """Fresh parameters, with their logical axes still attached (`flax.linen.unbox` takes them
    off).
    """
    init_key, rng = jax.random.split(key)
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = model.init(init_key, tokens, tokens)["params"]
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), rng)


def loss_sums(
    params: Params,
    batch: Batch,
    model: nn.Module,
    *,
    smoothing: float,
    mass: str,
    rng: Key[Array, ""] | None = None,
) -> Sums:
    """Forward pass and loss; with dropout when an `rng` is given."""
    logits, _ = model.apply(
        {"params": params},
        batch.source,
        shift_right(batch.target),
        train=rng is not None,
        rngs=None if rng is None else {"dropout": rng},
    )
    return smoothed_cross_entropy(logits, batch.target, smoothing, mass)


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    config: Config,
) -> tuple[TrainState, Sums]:
    """One update; the sums are those of the batch before it."""
    training = config.training

    def loss(params):
        sums = loss_sums(
            params,
            batch,
            model,
            smoothing=training.label_smoothing,
            mass=training.label_smoothing_mass,
            rng=jax.random.fold_in(state.rng, state.step),
        )
        return sums.loss, sums

    (_, sums), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
    tokens = jnp.maximum(sums.tokens, 1.0)
    gradients = jax.tree.map(lambda gradient: gradient / tokens, gradients)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state), sums


def eval_step(params: Params, batch: Batch, *, model: nn.Module, config: Config) -> Sums:
    """The sums of one batch, without dropout."""
    training = config.training
    return loss_sums(
        params,
        batch,
        model,
        smoothing=training.label_smoothing,
        mass=training.label_smoothing_mass,
    )


def score_step(params: Params, batch: Batch, *, model: nn.Module) -> Array:
    """The natural-log probability of every target token, [B,T]; 0 where padded."""
    logits, _ = model.apply({"params": params}, batch.source, shift_right(batch.target))
    return jnp.where(batch.target != 0, token_log_probs(logits, batch.target), 0.0)
