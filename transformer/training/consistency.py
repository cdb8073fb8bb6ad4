# SPDX-License-Identifier: Apache-2.0
"""Losses that compare two predictions of one batch: R-Drop and SimCut.

Both have the signature of `step.loss`, and are it where no `rng` is given, as in evaluation.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Key, Params, SpecialIds, wide
from transformer.batch import Batch
from transformer.config import TrainingConfig
from transformer.models.protocol import Model
from transformer.nn.embedding import ZEROED
from transformer.random_bits import chosen, threefry_bits
from transformer.training.losses import Sums, smoothed_cross_entropy
from transformer.training.step import Loss, learned_target, loss


def loss_of(config: TrainingConfig) -> Loss:
    """The loss that a config describes."""
    smoothing = {"smoothing": config.label_smoothing, "mass": config.label_smoothing_mass}
    if config.r_drop:
        return functools.partial(r_drop, weight=config.r_drop, **smoothing)
    if config.cutoff:
        cut = {"rate": config.cutoff, "weight": config.cutoff_weight}
        return functools.partial(simcut, **cut, **smoothing)
    return functools.partial(loss, **smoothing)


def r_drop(
    model: Model,
    params: Params,
    batch: Batch,
    rng: Key[Array, ""] | None = None,
    example_ids: Int[Array, " B"] | None = None,
    *,
    weight: float,
    **smoothing: float | str,
) -> Sums:
    """Two passes with different dropout, and their divergence (R-Drop, Liang et al. 2021).

    All sums are the mean of both, and weight / 2 times the divergence is added to the loss. This is
    half of the published loss, so it can be compared with the loss of one pass.
    """
    if rng is None:
        return loss(model, params, batch, **smoothing)
    first, second = (
        _predict(
            model, params, batch, batch.inputs(model.config.bos_id, key, example_ids), smoothing
        )
        for key in jax.random.split(rng)
    )
    mean = jax.tree.map(lambda a, b: (a + b) / 2, first.sums, second.sums)
    divergence = symmetric_kl_sum(first.logits, second.logits, batch.target, model.config.pad_id)
    return mean.replace(loss=mean.loss + weight / 2 * divergence)


def simcut(
    model: Model,
    params: Params,
    batch: Batch,
    rng: Key[Array, ""] | None = None,
    example_ids: Int[Array, " B"] | None = None,
    *,
    rate: float,
    weight: float,
    **smoothing: float | str,
) -> Sums:
    """A second pass in which the vectors of some tokens are zero (SimCut, Gao et al. 2022).

    Weight times KL(whole||cut) is added to the loss. All sums are those of the first pass.
    """
    if rng is None:
        return loss(model, params, batch, **smoothing)
    special_ids = model.config.special_ids
    whole_key, cut_key = jax.random.split(rng)
    cut_key, *keys = jax.random.split(cut_key, 3)
    inputs = batch.inputs(special_ids.bos, whole_key, example_ids)
    whole = _predict(model, params, batch, inputs, smoothing)
    inputs = batch.inputs(special_ids.bos, cut_key, example_ids)
    for side, key in zip(("source", "target_in"), keys, strict=True):
        inputs[side] = cut_off(inputs[side], key, example_ids, rate, special_ids)
    cut = _predict(model, params, batch, inputs, smoothing)
    divergence = kl_sum(whole.logits, cut.logits, batch.target, special_ids.pad)
    return whole.sums.replace(loss=whole.sums.loss + weight * divergence)


class _Prediction(NamedTuple):
    logits: Float[Array, "B T V"]
    sums: Sums


def _predict(
    model: Model, params: Params, batch: Batch, inputs: dict[str, Any], smoothing: dict[str, Any]
) -> _Prediction:
    """One of the two passes."""
    logits, sown = model.apply({"params": params}, **inputs, mutable="losses")
    target = learned_target(batch.target, model.config)
    sums = smoothed_cross_entropy(logits, target, pad_id=model.config.pad_id, **smoothing)
    return _Prediction(logits, sums.with_auxiliary(sown))


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
      key: random key of this side of the batch at this step.
      example_ids: global index of each example in the batch; None: 0, 1, ...
      rate: probability for each token, independently.
      special_ids: ids of padding, BOS and EOS.
    """
    if example_ids is None:
        example_ids = jnp.arange(len(tokens))
    cut = chosen(threefry_bits(key, example_ids, tokens.shape[1:]), rate)
    is_special = jnp.isin(tokens, jnp.array([special_ids.pad, special_ids.bos, special_ids.eos]))
    return jnp.where(cut & ~is_special, ZEROED, tokens)


def kl_sum(
    logits: Float[Array, "B T V"],
    other_logits: Float[Array, "B T V"],
    target: Int[Array, "B T"],
    pad_id: int = 0,
) -> Float[Array, ""]:
    """KL(p||q) of a prediction p and another one, summed over the tokens that are not padding.

    In nats: sum_v p[v] (log p[v] - log q[v]).
    """
    log_p = jax.nn.log_softmax(logits.astype(wide(logits.dtype)))
    log_q = jax.nn.log_softmax(other_logits.astype(wide(other_logits.dtype)))
    per_token = (jnp.exp(log_p) * (log_p - log_q)).sum(-1)  # [B, T]
    return jnp.where(target != pad_id, per_token, 0.0).sum()


def symmetric_kl_sum(
    logits: Float[Array, "B T V"],
    other_logits: Float[Array, "B T V"],
    target: Int[Array, "B T"],
    pad_id: int = 0,
) -> Float[Array, ""]:
    """(KL(p||q) + KL(q||p)) / 2 of two predictions; see `kl_sum`."""
    there = kl_sum(logits, other_logits, target, pad_id)
    return (there + kl_sum(other_logits, logits, target, pad_id)) / 2
