# SPDX-License-Identifier: Apache-2.0
"""Which place of the residual stream carries an answer: activations of one run put into another.

Two source sentences that differ where the answer does, and one target read so far: the clean run
has the answer that is asked about, the corrupt run has not. At each site, a layer and a position,
the clean run's vector is put into the corrupt run, and what of the answer comes back is measured
(Vig et al. 2020; Zhang and Nanda 2023). The result depends on the pair and on the metric.
"""

import functools
from collections.abc import Callable
from typing import Literal, get_args

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection.readout import Metric, checked, require_finite
from transformer.inspection.trace import Tokens, check_at_least_one, check_tokens, is_concrete, run
from transformer.nn.capture import Interventions

Side = Literal["encoder", "decoder"]
"""The stack whose residual stream is patched."""


@flax.struct.dataclass
class Patching:
    """A metric of the corrupt run with one site patched, for every site of a stack."""

    patched: Float[Array, "L+1 S"]
    """Site (0, s) is the stack's input at position s, site (l, s) the output of layer l there."""
    clean: Float[Array, ""]
    corrupt: Float[Array, ""]

    @property
    def effect(self) -> Float[Array, "P S"]:
        """What is restored: 0 where the corrupt answer stays, 1 where the clean one is back."""
        return (self.patched - self.corrupt) / (self.clean - self.corrupt)


def patch_sites(
    params: Params,
    config: TransformerConfig,
    clean_source: Tokens,
    corrupt_source: Tokens,
    target_in: Tokens,
    metric: Metric,
    *,
    side: str = "encoder",
    sites_at_once: int | None = None,
) -> Patching:
    """Puts the clean run's residual stream into the corrupt run, one site at a time, all sites in
    one compiled call.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      clean_source: ids [S] of the sentence whose answer is asked about.
      corrupt_source: ids [S] of the other, as long as the first, word for word comparable.
      target_in: ids [T] that the decoder reads in both runs.
      metric: one number of the logits [T,V]; a `readout.LogitDifference` of the two answers is the
        usual one. A function of one's own is compiled for.
      side: the stack that is patched, a `Side`: with ``decoder`` the sites are [L+1,T].
      sites_at_once: how many sites are computed together; all unless given.

    Raises:
      InputError: for parameters of another model, tokens that are not of the vocabulary, sentences
        of different lengths, an unknown side, or a metric that is not one number; and where values
        are known for a metric that does not tell the runs apart.
    """
    check_at_least_one("sites_at_once", sites_at_once)
    return _compared(
        _patch_sites,
        params,
        config,
        clean_source,
        corrupt_source,
        target_in,
        metric,
        side=side,
        sites_at_once=sites_at_once,
    )


def attribution_patching(
    params: Params,
    config: TransformerConfig,
    clean_source: Tokens,
    corrupt_source: Tokens,
    target_in: Tokens,
    metric: Metric,
    *,
    side: str = "encoder",
) -> Patching:
    """A first-order estimate of `patch_sites` from gradients of the corrupt run (Nanda 2023).

    At each site the corrupt metric plus gradient . (clean - corrupt). One backward pass a layer
    serves all its positions, so this is the cheaper the longer the sentence. It misses what a large
    change does; compare a few sites with the exact ones.

    Args and errors are those of `patch_sites`.
    """
    return _compared(
        _attribution_patching,
        params,
        config,
        clean_source,
        corrupt_source,
        target_in,
        metric,
        side=side,
    )


def _compared(
    compute: Callable[..., Patching],
    params: Params,
    config: TransformerConfig,
    clean_source: Tokens,
    corrupt_source: Tokens,
    target_in: Tokens,
    metric: Metric,
    **options: object,
) -> Patching:
    """Checks what goes into a comparison of two runs, and what comes out."""
    if options["side"] not in get_args(Side):
        raise InputError(
            f"side {options['side']!r} is unknown; choose one of {list(get_args(Side))}"
        )
    clean = check_tokens("clean_source", clean_source, config)
    corrupt = check_tokens("corrupt_source", corrupt_source, config)
    target_in = check_tokens("target_in", target_in, config)
    if clean.shape != corrupt.shape:
        raise InputError(
            f"clean_source has {len(clean)} tokens and corrupt_source {len(corrupt)}, but sites "
            "are compared position by position; choose two sentences of one length"
        )
    metric = checked(metric, len(target_in), config)
    patching = compute(params, config, clean, corrupt, target_in, metric, **options)
    if is_concrete(patching):
        require_finite(patching.clean, "clean run")
        require_finite(patching.corrupt, "corrupt run")
        if patching.clean == patching.corrupt:
            raise InputError(
                f"the metric is {float(patching.clean)} in both runs, so no site can restore it; "
                "choose sentences or a metric that tell the two apart"
            )
    return patching


def with_patches(
    interventions: Interventions,
    side: str,
    mask: Bool[Array, "P S"],
    value: Float[Array, "P S D"],
) -> Interventions:
    """Interventions that overwrite one stack's residual stream with `value` where `mask` is true.

    Args:
      interventions: of which all else stays.
      side: the stack.
      mask: by place, P = L + 1 (0 is the stack's input, l the output of layer l), and position.
      value: as `StackTrace.residual` of a run captures it.
    """
    stack = getattr(interventions, side)
    return interventions.replace(
        **{side: stack.replace(patch_mask=mask[..., None], patch_value=value)}
    )


@functools.partial(jax.jit, static_argnames=("config", "side", "sites_at_once"))
def _patch_sites(
    params: Params,
    config: TransformerConfig,
    clean_source: Int[Array, " S"],
    corrupt_source: Int[Array, " S"],
    target_in: Int[Array, " T"],
    metric: Metric,
    *,
    side: str,
    sites_at_once: int | None,
) -> Patching:
    clean_logits, trace = run(params, config, clean_source, target_in, capture="full")
    residual = getattr(trace, side).residual
    nothing = Interventions.none(config, len(corrupt_source), len(target_in))

    def patched(mask: Bool[Array, "P S"]) -> Float[Array, ""]:
        changed = with_patches(nothing, side, mask, residual)
        return metric(run(params, config, corrupt_source, target_in, interventions=changed)[0])

    shape = residual.shape[:2]
    sites = shape[0] * shape[1]
    one_site = jnp.eye(sites, dtype=bool).reshape(sites, *shape)
    values = jax.lax.map(patched, one_site, batch_size=sites_at_once or sites)
    corrupt = metric(run(params, config, corrupt_source, target_in)[0])
    return Patching(values.reshape(shape), metric(clean_logits), corrupt)


@functools.partial(jax.jit, static_argnames=("config", "side"))
def _attribution_patching(
    params: Params,
    config: TransformerConfig,
    clean_source: Int[Array, " S"],
    corrupt_source: Int[Array, " S"],
    target_in: Int[Array, " T"],
    metric: Metric,
    *,
    side: str,
) -> Patching:
    clean_logits, clean = run(params, config, clean_source, target_in, capture="full")
    corrupt_logits, corrupt = run(params, config, corrupt_source, target_in, capture="full")
    nothing = Interventions.none(config, len(corrupt_source), len(target_in))
    clean_residual, residual = (getattr(trace, side).residual for trace in (clean, corrupt))

    def of_layer(values: Float[Array, "P S D"], layer: Int[Array, ""]) -> Float[Array, ""]:
        """The metric as a function of one layer's vectors: the whole layer is overwritten."""
        mask = jnp.arange(len(values)) == layer
        mask = jnp.broadcast_to(mask[:, None], values.shape[:2])
        changed = with_patches(nothing, side, mask, values)
        return metric(run(params, config, corrupt_source, target_in, interventions=changed)[0])

    layers = jnp.arange(len(residual))
    # For each layer the gradient with respect to all layers' values, 0 but for its own.
    gradients = jax.vmap(jax.grad(of_layer), (None, 0))(residual, layers).sum(0)
    value = metric(corrupt_logits)
    estimate = value + (gradients * (clean_residual - residual)).sum(-1, dtype=value.dtype)
    return Patching(estimate, metric(clean_logits), value)
