# SPDX-License-Identifier: Apache-2.0
"""What is lost without a head: the loss, or any number of the logits, with each one removed; and
the gradient of its gate.

A head is removed by a gate of 0 on its output. Removal shows what the rest of the model cannot
make up for; heads that replace each other look useless one by one.
"""

import functools
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import PAD_ID, Array, Float, Int, Params
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection.readout import Metric, checked
from transformer.inspection.trace import Tokens, apply, check_at_least_one, check_pairs
from transformer.nn.capture import KINDS, Interventions, PerHead
from transformer.nn.positions import shift_right
from transformer.training.losses import smoothed_cross_entropy


@flax.struct.dataclass
class HeadAblation:
    """The loss of a model with each of its heads removed."""

    loss: Float[Array, ""]
    """With every head, in nats a target token."""
    increase: PerHead
    """By how much it grows without that head; negative where the model is better without."""


@flax.struct.dataclass
class MetricAblation:
    """A metric of B sentence pairs with each head of the model removed."""

    value: Float[Array, " B"]
    """With every head."""
    without: PerHead
    """``[B,L,N]``: without that head."""

    @property
    def damage(self) -> PerHead:
        """By how much the metric falls, on average over the sentences; negative where it rises."""
        return jax.tree.map(lambda each: (self.value[:, None, None] - each).mean(0), self.without)


@flax.struct.dataclass
class HeadImportance:
    """What the gradients of the gates say of each head, in nats a target token."""

    magnitude: PerHead
    """The sum over sentences of |d loss / d gate|, by Michel et al. (2019)."""
    removal: PerHead
    """A first-order estimate of `HeadAblation.increase`: minus the sum of d loss / d gate."""


def open_gates(config: TransformerConfig) -> PerHead:
    """A gate of 1 on every head: nothing is changed."""
    return Interventions.none(config, 1, 1).gates


def nll_with_gates(
    params: Params,
    config: TransformerConfig,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
    gates: PerHead,
) -> Float[Array, ""]:
    """The summed negative log-likelihood of the targets, in nats, with gates on the heads.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      source: ids of the source sentences, the end token last, 0 where padded.
      target: of their translations.
      gates: what each head's output is multiplied by.
    """
    interventions = Interventions.none(config, source.shape[1], target.shape[1])
    logits, _ = apply(
        params,
        config,
        source,
        shift_right(target),
        interventions=interventions.with_gates(gates),
    )
    return smoothed_cross_entropy(logits, target, smoothing=0.0).nll


def ablate_heads(
    params: Params,
    config: TransformerConfig,
    source: Tokens,
    target: Tokens,
    *,
    heads_at_once: int | None = None,
) -> HeadAblation:
    """The loss without each head in turn, all in one compiled call.

    For each kind of attention one `vmap` over gates that are 0 for one head. The encoder is not
    computed again for heads of the decoder.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      source: ids [B,S] of the source sentences, the end token last, 0 where padded.
      target: ids [B,T] of their translations.
      heads_at_once: how many heads of a kind are computed together; all unless given. The memory of
        that many batches is needed, above all their logits.

    Raises:
      InputError: for parameters of another model, tokens that are not sentence pairs of the
        vocabulary, or fewer than one head at once.
    """
    check_at_least_one("heads_at_once", heads_at_once)
    source, target = check_pairs(source, target, config)
    return _ablate_heads(params, config, source, target, heads_at_once)


def ablate_heads_for_metric(
    params: Params,
    config: TransformerConfig,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
    *,
    heads_at_once: int | None = None,
) -> MetricAblation:
    """One number of each sentence pair's logits without each head in turn, in one compiled call.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      source: ids [B,S] of the source sentences, the end token last, 0 where padded.
      target_in: ids [B,T] that the decoder reads for them, 0 where padded.
      metric: of a sentence pair's logits [T,V], with a leading axis B on each of its fields, such
        as a `readout.LogitDifference` of arrays [B]; or a function, the same of every pair.
      heads_at_once: as in `ablate_heads`.

    Raises:
      InputError: for parameters of another model, tokens that are not sentence pairs of the
        vocabulary, a metric of other than one number a sentence pair, or fewer than one head at
        once.
    """
    check_at_least_one("heads_at_once", heads_at_once)
    source, target_in = check_pairs(source, target_in, config)
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(metric)):
        metric = jax.tree_util.Partial(metric)
    shapes = [list(jnp.shape(leaf)) for leaf in jax.tree.leaves(metric)]
    if any(shape[:1] != [len(source)] for shape in shapes):
        raise InputError(
            f"there are {len(source)} sentence pairs, but the metric's fields have the shapes "
            f"{shapes}; give a value of each field for every sentence pair"
        )
    checked(jax.tree.map(lambda leaf: leaf[0], metric), target_in.shape[1], config)
    return _ablate_heads_for_metric(params, config, source, target_in, metric, heads_at_once)


def gate_gradients(
    params: Params, config: TransformerConfig, source: Tokens, target: Tokens
) -> PerHead:
    """For each sentence B and head, d loss / d gate where all gates are 1, in nats.

    The loss is the summed negative log-likelihood of the sentence.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      source: ids [B,S] of the source sentences, the end token last, 0 where padded.
      target: ids [B,T] of their translations.

    Raises:
      InputError: for parameters of another model or tokens that are not sentence pairs of the
        vocabulary.
    """
    return _gate_gradients(params, config, *check_pairs(source, target, config))


def head_importance(
    params: Params, config: TransformerConfig, source: Tokens, target: Tokens
) -> HeadImportance:
    """The importance of every head from one backward pass.

    Args and errors are those of `gate_gradients`.
    """
    source, target = check_pairs(source, target, config)
    gradients = _gate_gradients(params, config, source, target)
    tokens = _number_of_tokens(target)
    return HeadImportance(
        magnitude=jax.tree.map(lambda each: jnp.abs(each).sum(0) / tokens, gradients),
        removal=jax.tree.map(lambda each: -each.sum(0) / tokens, gradients),
    )


@functools.partial(jax.jit, static_argnames=("config", "heads_at_once"))
def _ablate_heads(
    params: Params,
    config: TransformerConfig,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
    heads_at_once: int | None,
) -> HeadAblation:
    ones, tokens = open_gates(config), _number_of_tokens(target)

    def loss(gates: PerHead) -> Float[Array, ""]:
        return nll_with_gates(params, config, source, target, gates) / tokens

    baseline = loss(ones)

    return HeadAblation(
        baseline,
        jax.tree.map(lambda each: each - baseline, _without_each(loss, ones, heads_at_once)),
    )


@functools.partial(jax.jit, static_argnames=("config", "heads_at_once"))
def _ablate_heads_for_metric(
    params: Params,
    config: TransformerConfig,
    source: Int[Array, "B S"],
    target_in: Int[Array, "B T"],
    metric: Metric,
    heads_at_once: int | None,
) -> MetricAblation:
    ones = open_gates(config)
    nothing = Interventions.none(config, source.shape[1], target_in.shape[1])

    def values(gates: PerHead) -> Float[Array, " B"]:
        interventions = nothing.with_gates(gates)
        logits, _ = apply(params, config, source, target_in, interventions=interventions)
        return jax.vmap(lambda metric, logits: metric(logits))(metric, logits)

    without = _without_each(values, ones, heads_at_once)
    return MetricAblation(values(ones), jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), without))


def _without_each(
    value: Callable[[PerHead], Float[Array, "..."]], ones: PerHead, heads_at_once: int | None
) -> PerHead:
    """What `value` gives of gates that are 0 for one head, for every head: ``[L,N,...]``."""

    def of_kind(kind: str) -> Float[Array, "L N ..."]:
        shape = getattr(ones, kind).shape
        heads = shape[0] * shape[1]
        without_one = (1.0 - jnp.eye(heads)).reshape(heads, *shape)
        values = jax.lax.map(
            lambda gates: value(ones.replace(**{kind: gates})),
            without_one,
            batch_size=heads_at_once or heads,
        )
        return values.reshape(*shape, *values.shape[1:])

    return PerHead(**{kind: of_kind(kind) for kind in KINDS})


@functools.partial(jax.jit, static_argnames="config")
def _gate_gradients(
    params: Params,
    config: TransformerConfig,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
) -> PerHead:
    def loss(
        gates: PerHead, source: Int[Array, " S"], target: Int[Array, " T"]
    ) -> Float[Array, ""]:
        return nll_with_gates(params, config, source[None], target[None], gates)

    return jax.vmap(jax.grad(loss), (None, 0, 0))(open_gates(config), source, target)


def _number_of_tokens(target: Int[Array, "B T"]) -> Int[Array, ""]:
    """At least 1, so that no sentence makes a loss of 0."""
    return jnp.maximum((target != PAD_ID).sum(), 1)
