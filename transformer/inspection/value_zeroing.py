# SPDX-License-Identifier: Apache-2.0
"""Value zeroing: how much each token's vector changes when it cannot read another (Mohebbi 2023).

In one layer, the values of one key are set to zero in all heads; attention weights and all other
values stay. The change of each query's vector after the layer, residual connection, norm and
feed-forward network included, is what the key contributes. Attention weights leave out the values,
and `measures.norm_weighted_attention` leaves out all that follows them.
"""

import functools

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Params
from transformer.config import ModelConfig, TransformerConfig
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.trace import Tokens
from transformer.nn.capture import Kind


def value_zeroing(
    params: Params, config: ModelConfig, source: Tokens, target_in: Tokens, kind: Kind = "encoder"
) -> Float[Array, "L T S"]:
    """Share of each key in the change of each query's vector; rows sum to 1.

    ``1 - cos(x, x without the value)`` after the layer, divided by its sum over the keys, as in
    Mohebbi et al. (2023). A row is 0 if no key changes the vector. `rollout` combines the layers of
    self-attention.

    Args:
      source: ids [S].
      target_in: ids [T].
      kind: of attention; the rows of ``cross`` are target positions.

    Raises:
      InputError: for a model that is not a Transformer, or lacks this kind of attention.
    """
    attention = trace.describe(config).attention
    if not isinstance(config, TransformerConfig) or kind not in attention:
        raise InputError(
            f"the model family {config.family!r} has no values of {kind!r} attention that could be "
            "set to zero; give a Transformer and one of its kinds of attention"
        )
    source = trace.check_tokens("source", source, config)
    target_in = trace.check_tokens("target_in", target_in, config)
    return _value_zeroing(params, config, source, target_in, kind)


ROUNDING = 1e-10
"""Smaller changes are rounding errors; shares would magnify them."""


@functools.partial(jax.jit, static_argnames=("config", "kind"))
def _value_zeroing(
    params: Params,
    config: ModelConfig,
    source: Int[Array, " S"],
    target_in: Int[Array, " T"],
    kind: Kind,
) -> Float[Array, "L _ _"]:
    side = "encoder" if kind == "encoder" else "decoder"
    nothing = trace.no_interventions(config, len(source), len(target_in))
    _, seen = trace.run(params, config, source, target_in, capture="full")
    value = seen.attention(kind).value  # [L, N, S, Hv]
    depth, _, keys, _ = value.shape

    def unit(vectors: Float[Array, "_ D"]) -> Float[Array, "_ D"]:
        return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)

    def change(site: Int[Array, ""]) -> Float[Array, "_"]:
        """Of the vectors after the layer, without the value of one key there."""
        layer, key = site // keys, site % keys
        chosen = (jnp.arange(depth) == layer)[:, None] & (jnp.arange(keys) == key)  # [L, S]
        changed = nothing.patched_heads(
            kind, "value", chosen[:, None, :, None], jnp.zeros_like(value)
        )
        _, without = trace.run(
            params, config, source, target_in, capture="full", interventions=changed
        )
        before, after = (unit(getattr(each, side).residual[layer + 1]) for each in (seen, without))
        return jnp.square(before - after).sum(-1) / 2  # 1 - cos, without its cancellation

    changes = jax.lax.map(change, jnp.arange(depth * keys))  # [L * S, T]
    changes = changes.reshape(depth, keys, -1).swapaxes(1, 2)  # [L, T, S]
    changes = jnp.where(changes > ROUNDING, changes, 0)
    total = changes.sum(-1, keepdims=True)
    return jnp.where(total > 0, changes / jnp.maximum(total, 1e-30), 0)
