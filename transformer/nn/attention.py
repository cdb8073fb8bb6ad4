# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention (paper 3.2.1): Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.

Every kernel has one signature, so that a config chooses it by name. ``einsum`` is the formula
itself and the tested reference; ``chunked`` is the formula for a few queries at a time, for long
sentences; ``fused`` hands the work to `jax.nn.dot_product_attention`. The last two give no weights
away.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, wide
from transformer.errors import InputError


class Attended(NamedTuple):
    """What attention gives back: the mixed values, and how they were mixed if that was asked
    for.
    """

    z: Float[Array, "B T N Hv"]
    """For each query and head, the weighted sum of the values."""
    weights: Float[Array, "B N T S"] | None = None
    """After the softmax and before dropout; every row sums to 1."""
    scores: Float[Array, "B N T S"] | None = None
    """query . key / sqrt(d_k), before the mask."""


class Kernel(Protocol):
    """The signature that all attention kernels share."""

    def __call__(
        self,
        query: Float[Array, "B T N H"],
        key: Float[Array, "B S N H"],
        value: Float[Array, "B S N Hv"],
        mask: Bool[Array, "#B #N #T S"] | None,
        *,
        dropout: Callable[[Array], Array] | None = None,
        with_weights: bool = False,
    ) -> Attended:
        """Mix the values by the match of query and key."""


def scaled_scores(
    query: Float[Array, "B T N H"], key: Float[Array, "B S N H"]
) -> Float[Array, "B N T S"]:
    """Q K^T / sqrt(d_k), in float32 or wider, whatever the inputs are."""
    scores = jnp.einsum("BTNH,BSNH->BNTS", query, key, preferred_element_type=wide(query.dtype))
    return scores / jnp.sqrt(query.shape[-1]).astype(scores.dtype)


def masked_softmax(
    scores: Float[Array, "B N T S"], mask: Bool[Array, "#B #N #T S"] | None
) -> Float[Array, "B N T S"]:
    """Softmax over the keys a query may attend to; every other weight is exactly 0.

    A query that may attend to nothing (a row that is padding throughout) gets equal weights, so
    that nothing becomes NaN; such rows are never read.
    """
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jax.nn.softmax(scores, axis=-1)


def einsum_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N Hv"],
    mask: Bool[Array, "#B #N #T S"] | None,
    *,
    dropout: Callable[[Array], Array] | None = None,
    with_weights: bool = False,
) -> Attended:
    """The formula of paper 3.2.1, step by step.

    Args:
      dropout: applied to the weights; the paper has none there.
      with_weights: also return the weights (before dropout) and the unmasked scores.
    """
    scores = scaled_scores(query, key)
    weights = masked_softmax(scores, mask)
    mixing = dropout(weights) if dropout else weights
    z = jnp.einsum("BNTS,BSNH->BTNH", mixing.astype(value.dtype), value)
    return Attended(z, weights, scores) if with_weights else Attended(z)


CHUNK = 128
"""Queries that `chunked_attention` takes at a time."""


def chunked_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N Hv"],
    mask: Bool[Array, "#B #N #T S"] | None,
    *,
    dropout: Callable[[Array], Array] | None = None,
    with_weights: bool = False,
) -> Attended:
    """The formula for `CHUNK` queries after another `CHUNK`, in memory that grows with T + S.

    Queries have nothing to do with each other, so this changes no number. The backward pass keeps
    no weights but computes those of a chunk again, a product more beside six, so that memory is
    saved and not time. What is left of T S is the mask, where it differs from query
    to query: a byte for each query and key, for all heads and, if it is causal, for all sentences
    together.

    Raises:
      InputError: when weights or dropout on weights are asked for.
    """
    _refuse_weights("chunked", dropout, with_weights)
    length = query.shape[1]
    size = min(CHUNK, length)
    count = -(-length // size)

    def chunks(x: Array, axis: int) -> Array:
        """[..., T, ...] to [count, ..., size, ...]; what fills the last one up is cut off below."""
        fill = [(0, 0)] * x.ndim
        fill[axis] = (0, count * size - length)
        shape = (*x.shape[:axis], count, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(jnp.pad(x, fill).reshape(shape), axis, 0)

    keys, values = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
    varies = mask is not None and mask.shape[2] > 1

    @jax.checkpoint
    def attend(chunk: tuple[Array, Array | None]) -> Float[Array, "B N _ Hv"]:
        queries, own_mask = chunk
        return cached_attention(queries, keys, values, own_mask if varies else mask)

    chunked = chunks(query.transpose(0, 2, 1, 3), 2), chunks(mask, 2) if varies else None
    z = jnp.moveaxis(jax.lax.map(attend, chunked), 0, 2)
    return Attended(z.reshape(*z.shape[:2], -1, z.shape[-1])[:, :, :length].swapaxes(1, 2))


def fused_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N Hv"],
    mask: Bool[Array, "#B #N #T S"] | None,
    *,
    dropout: Callable[[Array], Array] | None = None,
    with_weights: bool = False,
) -> Attended:
    """`jax.nn.dot_product_attention`: the same mixed values, the weights never in memory for long.

    Raises:
      InputError: when weights, dropout on weights, or unequal d_k and d_v are asked for.
    """
    _refuse_weights("fused", dropout, with_weights)
    if query.shape[-1] != value.shape[-1]:
        raise InputError(
            f"the 'fused' attention kernel needs d_k == d_v, not {query.shape[-1]} and "
            f"{value.shape[-1]}; use model.attention_kernel='einsum'"
        )
    return Attended(jax.nn.dot_product_attention(query, key, value, mask=mask))


def cached_attention(
    query: Float[Array, "B N K H"],
    key: Float[Array, "B N H C"],
    value: Float[Array, "B N C Hv"],
    mask: Bool[Array, "#B #N #K C"] | None,
) -> Float[Array, "B N K Hv"]:
    """The same formula for one query of each beam, or for other queries that lie like these, over
    keys and values as a cache lays them out.

    Both are as a matrix product reads them, heads outside and for the keys H before the places C.
    In any other layout they would be copied into this one at each step, which takes several times
    as long as the products themselves. They may be in a wider dtype than the queries, as what is
    computed from them.
    """
    dtype, sums = query.dtype, wide(query.dtype)
    scores = jnp.einsum(
        "BNKH,BNHC->BNKC", query.astype(key.dtype), key, preferred_element_type=sums
    )
    weights = masked_softmax(scores / jnp.sqrt(query.shape[-1]).astype(sums), mask)
    weights = weights.astype(dtype).astype(value.dtype)
    z = jnp.einsum("BNKC,BNCH->BNKH", weights, value, preferred_element_type=sums)
    return z.astype(dtype)


KERNELS: dict[str, Kernel] = {
    "einsum": einsum_attention,
    "chunked": chunked_attention,
    "fused": fused_attention,
}


def _refuse_weights(kernel: str, dropout: object, with_weights: bool) -> None:
    if with_weights:
        raise InputError(
            f"the {kernel!r} attention kernel does not keep its weights, so it cannot capture "
            "them; use model.attention_kernel='einsum' to look inside (same parameters, same "
            "result)"
        )
    if dropout:
        raise InputError(
            f"the {kernel!r} attention kernel has no dropout on weights; "
            "use model.attention_kernel='einsum' or model.attention_dropout=0"
        )
