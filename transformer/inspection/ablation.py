# SPDX-License-Identifier: Apache-2.0
"""Head ablation: the effect of removing heads.

A gate of 0 on its output removes a head. The model has never seen such zeros; the head's mean
output, or its output for another sentence, removes only what it says about this one. Ablation shows
only what the other heads cannot compensate: heads that replace each other look useless one by one.
"""

import functools
from collections.abc import Callable
from typing import Literal, get_args

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Params
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.activations import PerHead
from transformer.inspection.interventions import no_interventions
from transformer.inspection.readout import Metric, as_pytree, checked_metric
from transformer.inspection.trace import Tokens
from transformer.models.protocol import Model
from transformer.nn.positions import shift_right
from transformer.training.losses import smoothed_cross_entropy

Replacement = Literal["zero", "mean", "resample"]
"""What a removed head puts out: zeros, its mean over all tokens of the sentences, or what it puts
out at the same position of the next sentence of the batch.
"""


@flax.struct.dataclass
class HeadAblation:
    """The loss with each head removed."""

    loss: Float[Array, ""]
    """Loss with all heads, in nats per target token."""
    increase: PerHead
    """Increase of the loss without the head; negative if the model is better without it."""


@flax.struct.dataclass
class MetricAblation:
    """A metric of B sentence pairs with each head removed."""

    value: Float[Array, " B"]
    """The metric with all heads."""
    without: PerHead
    """``[B,L,N]``: without the head."""

    @property
    def damage(self) -> PerHead:
        """Mean decrease of the metric over the sentences; negative if it increases."""
        return jax.tree.map(lambda each: (self.value[:, None, None] - each).mean(0), self.without)


def open_gates(model: Model) -> PerHead:
    """Gates of 1 on every head, which change nothing."""
    return no_interventions(model, 1, 1).gates


def nll_with_gates(
    model: Model,
    params: Params,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
    gates: PerHead,
) -> Float[Array, ""]:
    """Sum of the negative log-likelihood of padded targets, in nats, with gates on the heads."""
    nothing = no_interventions(model, source.shape[1], target.shape[1])
    logits, _ = trace.apply(
        model,
        params,
        source,
        shift_right(target, bos_id=model.config.bos_id),
        interventions=nothing.with_gates(gates),
    )
    return smoothed_cross_entropy(logits, target, smoothing=0.0, pad_id=model.config.pad_id).nll


def ablate_heads(
    model: Model,
    params: Params,
    source: Tokens,
    target: Tokens,
    *,
    heads_at_once: int | None = None,
) -> HeadAblation:
    """Compute the loss without each head in turn, all in one compiled call.

    The encoder is not recomputed for heads of the decoder.

    Args:
      source: ids [B,S], padded.
      target: ids [B,T] of the translations, padded.
      heads_at_once: number of heads of one kind computed together; all by default. Each needs the
        memory of a batch, mostly for its logits.
    """
    trace.check_positive("heads_at_once", heads_at_once)
    source, target = trace.check_pairs(source, target, model.config)
    return _ablate_heads(model, params, source, target, heads_at_once)


def ablate_heads_for_metric(
    model: Model,
    params: Params,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
    *,
    replacement: str = "zero",
    heads_at_once: int | None = None,
) -> MetricAblation:
    """Compute a metric of each sentence pair without each head in turn, in one compiled call.

    Args:
      source: ids [B,S], padded.
      target_in: ids [B,T], padded.
      metric: function of a pair's logits [T,V], with a leading axis B on each field, such as a
        `readout.LogitDifference` of arrays [B]; or a function, the same for every pair.
      replacement: a `Replacement`, what the head puts out instead. In TransformerLens, hooks of
        ``hook_z`` do this.
      heads_at_once: as in `ablate_heads`.

    Raises:
      InputError: for a metric that is not one number per sentence pair, or an unknown replacement.
    """
    if replacement not in get_args(Replacement):
        raise InputError(
            f"replacement {replacement!r} is unknown; choose one of {list(get_args(Replacement))}"
        )
    trace.check_positive("heads_at_once", heads_at_once)
    source, target_in = trace.check_pairs(source, target_in, model.config)
    metric = as_pytree(metric)
    shapes = [list(jnp.shape(leaf)) for leaf in jax.tree.leaves(metric)]
    if any(shape[:1] != [len(source)] for shape in shapes):
        raise InputError(
            f"there are {len(source)} sentence pairs, but the metric's fields have the shapes "
            f"{shapes}; give a value of each field for every sentence pair"
        )
    checked_metric(jax.tree.map(lambda leaf: leaf[0], metric), target_in.shape[1], model.config)
    arguments = (model, params, source, target_in, metric)
    return _ablate_heads_for_metric(*arguments, replacement, heads_at_once)


@functools.partial(jax.jit, static_argnames=("model", "heads_at_once"))
def _ablate_heads(
    model: Model,
    params: Params,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
    heads_at_once: int | None,
) -> HeadAblation:
    tokens = jnp.maximum((target != model.config.pad_id).sum(), 1)  # the loss of no token is 0

    def loss(gates: PerHead) -> Float[Array, ""]:
        return nll_with_gates(model, params, source, target, gates) / tokens

    baseline, losses = _without_each(loss, open_gates(model), heads_at_once)
    return HeadAblation(baseline, jax.tree.map(lambda each: each - baseline, losses))


@functools.partial(jax.jit, static_argnames=("model", "replacement", "heads_at_once"))
def _ablate_heads_for_metric(
    model: Model,
    params: Params,
    source: Int[Array, "B S"],
    target_in: Int[Array, "B T"],
    metric: Metric,
    replacement: str,
    heads_at_once: int | None,
) -> MetricAblation:
    nothing = no_interventions(model, source.shape[1], target_in.shape[1])
    outputs = {}  # [B, L, N, T, Hv] by kind, instead of those of all heads; zeros need only gates
    if replacement != "zero":
        _, seen = trace.apply(model, params, source, target_in, capture="full")
        outputs = {
            kind: jnp.moveaxis(seen.attention(kind).z, 1, 0)
            for kind in trace.describe(model).attention
        }
    if replacement == "resample":
        outputs = {kind: jnp.roll(z, -1, axis=0) for kind, z in outputs.items()}
    if replacement == "mean":
        for kind, z in outputs.items():
            counted = (source if kind == "encoder" else target_in) != model.config.pad_id  # [B, T]
            total = jnp.einsum("BLNTH,BT->LNH", z, counted.astype(z.dtype))
            mean = total / jnp.maximum(counted.sum(), 1).astype(z.dtype)
            outputs[kind] = jnp.broadcast_to(mean[None, :, :, None], z.shape)

    def of_pair(gates, source, target_in, metric, outputs):
        changed = nothing if outputs else nothing.with_gates(gates)
        for kind, z in outputs.items():
            removed = getattr(gates, kind) == 0
            changed = changed.patch_heads(kind, "z", removed[..., None, None], z)
        return metric(trace.run(model, params, source, target_in, interventions=changed)[0])

    def values(gates: PerHead) -> Float[Array, " B"]:
        pairs = (source, target_in, metric, outputs)
        return jax.vmap(of_pair, (None, 0, 0, 0, 0))(gates, *pairs)

    value, without = _without_each(values, open_gates(model), heads_at_once)  # [B], [L, N, B]
    return MetricAblation(value, jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), without))


def _without_each(
    value: Callable[[PerHead], Float[Array, "..."]], ones: PerHead, heads_at_once: int | None
) -> tuple[Float[Array, "..."], PerHead]:
    """`value` of all heads, and ``[L,N,...]`` of gates that are 0 for one head, for every head."""
    all_heads, without = None, {}
    for kind, gates in vars(ones).items():
        if gates is None:
            without[kind] = None
            continue
        # The last row removes no head.
        rows = (1.0 - jnp.eye(gates.size + 1, gates.size)).reshape(-1, *gates.shape)
        values = trace.map_batches(
            lambda changed, kind=kind: value(ones.replace(**{kind: changed})), rows, heads_at_once
        )
        all_heads = values[-1]
        without[kind] = values[:-1].reshape(*gates.shape, *all_heads.shape)
    return all_heads, PerHead(**without)
