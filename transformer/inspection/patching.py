# SPDX-License-Identifier: Apache-2.0
"""Activation patching: copy activations of a clean run into a corrupt run and measure the answer.

Two source sentences differ where the answer does; the target read so far is the same. At each site,
a layer and a position of the residual stream, the clean run's vector replaces the corrupt run's,
and the metric shows how much of the clean answer is restored (Vig et al. 2020; Zhang and Nanda
2023). The result depends on the pair of sentences and on the metric. `patch_path` restores one path
alone: from a sender to a receiver.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.activations import Trace
from transformer.inspection.interventions import Interventions, Site, no_interventions
from transformer.inspection.readout import Metric, check_finite, checked_metric
from transformer.inspection.trace import Tokens
from transformer.models.protocol import Kind, Model

Side = Literal["encoder", "decoder"]
"""The stack whose residual stream is patched."""


@flax.struct.dataclass
class Patching:
    """A metric of the corrupt run after patching: at every site of a stack, or along one path."""

    patched: Float[Array, "*sites"]
    """``[L+1,S]`` for the sites of a stack: (0, s) is its input at position s, (l, s) the output of
    layer l. One number for a path.
    """
    clean: Float[Array, ""]
    corrupt: Float[Array, ""]

    @property
    def effect(self) -> Float[Array, "*sites"]:
        """Restored share of the difference: 0 for the corrupt answer, 1 for the clean one."""
        return (self.patched - self.corrupt) / (self.clean - self.corrupt)


@flax.struct.dataclass
class ResidualSite:
    """Positions of a residual stream, as a sender or receiver of `patch_path`."""

    mask: Bool[Array, "levels T"]
    """By level (0 is the stack's input, l the output of layer l) and position."""
    side: Side = flax.struct.field(pytree_node=False, default="encoder")

    def take(self, nothing: Interventions, seen: Trace) -> Interventions:
        """Interventions that put the values of a trace here."""
        return nothing.patch_residual(self.side, self.mask, getattr(seen, self.side).residual)


@flax.struct.dataclass
class HeadSite:
    """An activation of heads, as a sender or receiver of `patch_path`."""

    mask: Bool[Array, "L N T"]
    """By layer, head and position: of queries, or of keys for ``key`` and ``value``."""
    kind: Kind = flax.struct.field(pytree_node=False, default="encoder")
    site: Site = flax.struct.field(pytree_node=False, default="z")

    def take(self, nothing: Interventions, seen: Trace) -> Interventions:
        """Interventions that put the values of a trace here."""
        value = getattr(seen.attention(self.kind), self.site)
        return nothing.patch_heads(self.kind, self.site, self.mask[..., None], value)


class _Runs(NamedTuple):
    """Arguments of both runs."""

    clean_source: Int[Array, " S"]
    corrupt_source: Int[Array, " S"]
    target_in: Int[Array, " T"]
    metric: Metric


def patch_sites(
    model: Model,
    params: Params,
    clean_source: Tokens,
    corrupt_source: Tokens,
    target_in: Tokens,
    metric: Metric,
    *,
    side: str = "encoder",
    sites_at_once: int | None = None,
) -> Patching:
    """Patch the residual stream at each site in turn, all in one compiled call.

    Args:
      clean_source: ids [S] of the sentence with the answer of interest.
      corrupt_source: ids [S] of the other sentence, position by position comparable.
      target_in: ids [T], the same in both runs.
      metric: one number of the logits [T,V], usually a `readout.LogitDifference` of both answers. A
        plain function is compiled anew.
      side: the patched stack, a `Side`; with ``decoder`` the sites are [L+1,T].
      sites_at_once: number of sites computed together; all by default.

    Raises:
      InputError: for sentences of different lengths, an unknown side, a metric that is not one
        number, or (if concrete) a metric that is equal in both runs.
    """
    trace.check_positive("sites_at_once", sites_at_once)
    runs = _checked_runs(model, clean_source, corrupt_source, target_in, metric, side)
    return _checked_result(
        _patch_sites(model, params, runs, side=side, sites_at_once=sites_at_once)
    )


def attribution_patching(
    model: Model,
    params: Params,
    clean_source: Tokens,
    corrupt_source: Tokens,
    target_in: Tokens,
    metric: Metric,
    *,
    side: str = "encoder",
) -> Patching:
    """Estimate `patch_sites` to first order from gradients of the corrupt run (Nanda 2023).

    At each site the estimate is the corrupt metric plus gradient . (clean - corrupt). One backward
    pass per layer serves all positions, so it is faster than `patch_sites` for long sentences. It
    misses nonlinear effects of large changes; compare a few sites with the exact ones.

    Args and errors are those of `patch_sites`.
    """
    runs = _checked_runs(model, clean_source, corrupt_source, target_in, metric, side)
    return _checked_result(_attribution_patching(model, params, runs, side=side))


def patch_path(
    model: Model,
    params: Params,
    clean_source: Tokens,
    corrupt_source: Tokens,
    target_in: Tokens,
    metric: Metric,
    sender: ResidualSite | HeadSite,
    receiver: ResidualSite | HeadSite,
) -> Patching:
    """Patch the paths from a sender to a receiver, and nothing else (Goldowsky-Dill et al. 2023).

    In a first corrupt run the sender gets its clean values, and the receiver's values are recorded.
    In a second corrupt run the receiver gets those values. All paths from the sender to the
    receiver count, and from there on all that follow; those around the receiver do not.

    Args:
      sender: the site that gets values of the clean run.
      receiver: a later site.

    Other args and errors are those of `patch_sites`.
    """
    runs = _checked_runs(model, clean_source, corrupt_source, target_in, metric, "encoder")
    return _checked_result(_patch_path(model, params, runs, sender, receiver))


def _checked_runs(
    model: Model,
    clean_source: Tokens,
    corrupt_source: Tokens,
    target_in: Tokens,
    metric: Metric,
    side: str,
) -> _Runs:
    if side not in get_args(Side):
        raise InputError(f"side {side!r} is unknown; choose one of {list(get_args(Side))}")
    if side not in trace.describe(model).residual_layers:
        raise InputError(
            f"the model family {model.config.family!r} has no residual stream in its {side}, so "
            "there are no sites to patch"
        )
    clean = trace.check_tokens("clean_source", clean_source, model.config)
    corrupt = trace.check_tokens("corrupt_source", corrupt_source, model.config)
    target_in = trace.check_tokens("target_in", target_in, model.config)
    if clean.shape != corrupt.shape:
        raise InputError(
            f"clean_source has {len(clean)} tokens and corrupt_source {len(corrupt)}, but sites "
            "are compared position by position; choose two sentences of one length"
        )
    return _Runs(clean, corrupt, target_in, checked_metric(metric, len(target_in), model.config))


def _checked_result(patching: Patching) -> Patching:
    if trace.is_concrete(patching):
        check_finite(patching.clean, "clean run")
        check_finite(patching.corrupt, "corrupt run")
        if patching.clean == patching.corrupt:
            raise InputError(
                f"the metric is {float(patching.clean)} in both runs, so no site can restore it; "
                "choose sentences or a metric that distinguishes the two"
            )
    return patching


@functools.partial(jax.jit, static_argnames=("model", "side", "sites_at_once"))
def _patch_sites(
    model: Model, params: Params, runs: _Runs, *, side: str, sites_at_once: int | None
) -> Patching:
    (clean, corrupt), (residual, _) = _both_runs(model, params, runs, side)
    metric = _metric_of_residual(model, params, runs, side)
    shape = residual.shape[:2]
    sites = shape[0] * shape[1]
    one_site = jnp.eye(sites, dtype=bool).reshape(sites, *shape)  # [sites, P, S]
    values = trace.map_batches(lambda mask: metric(mask, residual), one_site, sites_at_once)
    return Patching(values.reshape(shape), clean, corrupt)


@functools.partial(jax.jit, static_argnames=("model", "side"))
def _attribution_patching(model: Model, params: Params, runs: _Runs, *, side: str) -> Patching:
    (clean, corrupt), (clean_residual, residual) = _both_runs(model, params, runs, side)
    gradient = jax.grad(_metric_of_residual(model, params, runs, side), argnums=1)
    levels = jnp.eye(len(residual), dtype=bool)[:, :, None]  # one level a mask, at all positions
    masks = jnp.broadcast_to(levels, (len(residual), *residual.shape[:2]))
    # The gradient for each level with respect to all levels' values is 0 except for that level.
    gradients = jax.vmap(gradient, (0, None))(masks, residual).sum(0)
    estimate = corrupt + (gradients * (clean_residual - residual)).sum(-1, dtype=corrupt.dtype)
    return Patching(estimate, clean, corrupt)


def _metric_of_residual(
    model: Model, params: Params, runs: _Runs, side: str
) -> Callable[[Bool[Array, "levels _"], Float[Array, "levels _ D"]], Float[Array, ""]]:
    """The metric of the corrupt run with a residual stream that is overwritten under a mask."""
    nothing = no_interventions(model, len(runs.corrupt_source), len(runs.target_in))

    def metric(
        mask: Bool[Array, "levels _"], values: Float[Array, "levels _ D"]
    ) -> Float[Array, ""]:
        changed = nothing.patch_residual(side, mask, values)
        arguments = (model, params, runs.corrupt_source, runs.target_in)
        return runs.metric(trace.run(*arguments, interventions=changed)[0])

    return metric


@functools.partial(jax.jit, static_argnames="model")
def _patch_path(
    model: Model,
    params: Params,
    runs: _Runs,
    sender: ResidualSite | HeadSite,
    receiver: ResidualSite | HeadSite,
) -> Patching:
    nothing = no_interventions(model, len(runs.corrupt_source), len(runs.target_in))

    def run(source: Int[Array, " S"], changed: Interventions) -> tuple[Float[Array, ""], Trace]:
        tokens = (source, runs.target_in)
        logits, seen = trace.run(model, params, *tokens, capture="full", interventions=changed)
        return runs.metric(logits), seen

    clean, clean_trace = run(runs.clean_source, nothing)
    corrupt, _ = run(runs.corrupt_source, nothing)
    _, sent = run(runs.corrupt_source, sender.take(nothing, clean_trace))
    patched, _ = run(runs.corrupt_source, receiver.take(nothing, sent))
    return Patching(patched, clean, corrupt)


def _both_runs(
    model: Model, params: Params, runs: _Runs, side: str
) -> tuple[Float[Array, " 2"], Float[Array, "2 levels _ D"]]:
    """Metric and residual stream of the clean and of the corrupt run, by the same program."""

    def of_source(source: Int[Array, " S"]) -> tuple[Float[Array, ""], Float[Array, "levels _ D"]]:
        logits, seen = trace.run(model, params, source, runs.target_in, capture="full")
        return runs.metric(logits), getattr(seen, side).residual

    return jax.lax.map(of_source, jnp.stack([runs.clean_source, runs.corrupt_source]))
