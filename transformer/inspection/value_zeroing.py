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
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.activations import PARTS
from transformer.inspection.interventions import no_interventions
from transformer.inspection.trace import Tokens
from transformer.models.protocol import Kind, Model


def value_zeroing(
    model: Model, params: Params, source: Tokens, target_in: Tokens, kind: Kind = "encoder"
) -> Float[Array, "L T S"]:
    """Share of each key in the change of each query's vector; rows sum to 1.

    ``1 - cos(x, x without the value)`` after the layer, divided by its sum over the keys, as in
    Mohebbi et al. (2023). A row is 0 if no key changes the vector.

    Args:
      kind: kind of attention; the rows of ``cross`` are target positions.

    Raises:
      InputError: for a model that lacks this kind of attention, or its residual stream.
    """
    description, (side, _) = trace.describe(model), PARTS[kind]
    if kind not in description.attention or side not in description.residual_layers:
        raise InputError(
            f"the model family {model.config.family!r} has no {kind!r} attention that writes to a "
            "residual stream; give a Transformer and one of its kinds of attention"
        )
    source = trace.check_tokens("source", source, model.config)
    target_in = trace.check_tokens("target_in", target_in, model.config)
    return _value_zeroing(model, params, source, target_in, kind)


ROUNDING = 1e-10
"""Smaller changes are rounding errors; shares would magnify them."""


@functools.partial(jax.jit, static_argnames=("model", "kind"))
def _value_zeroing(
    model: Model,
    params: Params,
    source: Int[Array, " S"],
    target_in: Int[Array, " T"],
    kind: Kind,
) -> Float[Array, "L _ _"]:
    side, _ = PARTS[kind]
    nothing = no_interventions(model, len(source), len(target_in))
    _, seen = trace.run(model, params, source, target_in, capture="full")
    value = seen.attention(kind).value  # [L, N, S, Hv]
    depth, _, keys, _ = value.shape

    def unit(vectors: Float[Array, "_ D"]) -> Float[Array, "_ D"]:
        return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)

    def change(site: Int[Array, ""]) -> Float[Array, "_"]:
        """Change of the vectors after the layer, without the value of one key there."""
        layer, key = site // keys, site % keys
        chosen = (jnp.arange(depth) == layer)[:, None] & (jnp.arange(keys) == key)  # [L, S]
        changed = nothing.patch_heads(
            kind, "value", chosen[:, None, :, None], jnp.zeros_like(value)
        )
        _, without = trace.run(
            model, params, source, target_in, capture="full", interventions=changed
        )
        before, after = (unit(getattr(each, side).residual[layer + 1]) for each in (seen, without))
        return jnp.square(before - after).sum(-1) / 2  # 1 - cos, without its cancellation

    changes = jax.lax.map(change, jnp.arange(depth * keys))  # [L * S, T]
    changes = changes.reshape(depth, keys, -1).swapaxes(1, 2)  # [L, T, S]
    changes = jnp.where(changes > ROUNDING, changes, 0)
    total = changes.sum(-1, keepdims=True)
    return jnp.where(total > 0, changes / jnp.maximum(total, 1e-30), 0)
