# SPDX-License-Identifier: Apache-2.0
"""Attention for a few queries at a time: the formula of paper 3.2.1 for long sentences.

Memory grows with T + S instead of T S, and what a causal mask hides is mostly not computed. The
backward pass is written by hand, as in FlashAttention (Dao et al. 2022).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, wide
from transformer.platforms import operation

CHUNK = 256
"""Queries per chunk of `chunked_attention`."""
CAUSAL_PARTS = 8
"""Parts of the queries of a causal `chunked_attention`: 16 take longer to compile."""


class _Queries(NamedTuple):
    """What differs between queries, heads before positions; the causal mask by the positions."""

    query: Float[Array, "B N T H"]
    mask: Bool[Array, "#B #N T S"] | None
    bias: Float[Array, "#B N T S"] | None
    positions: Int[Array, "1 1 T 1"] | None
    """None if attention is not causal."""


class _Keys(NamedTuple):
    """What all queries share; it ends with the positions of the source."""

    key: Float[Array, "B N H S"]
    value: Float[Array, "B N Hv S"]
    mask: Bool[Array, "#B #N 1 S"] | None
    bias: Float[Array, "#B N 1 S"] | None


class _Output(NamedTuple):
    """The result, and what the weights of each query are computed from again."""

    z: Float[Array, "B N T Hv"]
    largest: Float[Array, "B N T 1"]
    """The maximum of the scores."""
    log_total: Float[Array, "B N T 1"]
    """The logarithm of the sum of exp(scores - largest).

    It is not added to `largest`, which for a query without keys is a number so large that the sum
    would lose it.
    """


def chunked_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N Hv"],
    mask: Bool[Array, "#B #N #T S"] | None,
    bias: Float[Array, "#B N #T S"] | None = None,
    *,
    causal: bool = False,
) -> Float[Array, "B T N Hv"]:
    """The formula for `CHUNK` queries at a time, in memory that grows with T + S.

    Queries are independent, so the result is unchanged. The backward pass computes a chunk's
    weights again: seven matmuls instead of six, but on numbers that are still in the processor's
    cache. A mask or a bias that differs between queries still takes T S elements; the causal mask
    does not, as each chunk computes its rows.

    With `causal`, the queries are divided into P parts, each of which reads the keys up to its last
    query. This takes (P + 1) / 2P of the work.

    Args:
      query: queries of T target positions.
      key: keys of S source positions.
      value: values of S source positions.
      mask: true where a query may attend to a key.
      bias: added to the scores.
      causal: a query may attend only to keys up to its own position, besides what `mask` forbids.
    """
    length = query.shape[1]
    of_queries, of_keys = {}, {}
    for name, x in {"mask": mask, "bias": bias}.items():
        differs = x is not None and x.shape[2] == length
        of_queries[name], of_keys[name] = (x, None) if differs else (None, x)
    positions = jnp.arange(length)[:, None][None, None] if causal else None
    queries = _Queries(query.transpose(0, 2, 1, 3), **of_queries, positions=positions)
    keys = _Keys(key.transpose(0, 2, 3, 1), value.transpose(0, 2, 3, 1), **of_keys)
    return _attend(queries, keys).swapaxes(1, 2)


@jax.custom_vjp
def _attend(queries: _Queries, keys: _Keys) -> Float[Array, "B N T Hv"]:
    """Compute softmax(Q K^T / sqrt(d_k)) V (paper 3.2.1), chunk by chunk.

    The backward pass reads the inputs, the result and two numbers for each query; with these, the
    weights are one exponential (Dao et al. 2022, FlashAttention, appendix B).
    """
    return _forward(queries, keys)[0]


def _forward(
    queries: _Queries, keys: _Keys
) -> tuple[Float[Array, "B N T Hv"], tuple[_Queries, _Keys, _Output]]:
    """z, and what the backward pass needs."""
    output = _by_heads(_forward_of_heads, queries, keys)
    return output.z, (queries, keys, output)


def _backward(
    residuals: tuple[_Queries, _Keys, _Output], dz: Float[Array, "B N T Hv"]
) -> tuple[_Queries, _Keys]:
    """The gradients of queries, keys, values and biases from that of z."""
    return _by_heads(_backward_of_heads, *residuals, dz)


_attend.defvjp(_forward, _backward)


def _by_heads(function: Callable[..., Any], queries: _Queries, *others: Any) -> Any:
    """`function` of all heads, or of one after the other where a platform prefers that."""
    if queries.query.shape[2] <= CHUNK:
        return function(queries, *others)
    return operation("by_heads", _at_once)(function, queries.query.shape[1], queries, *others)


def _at_once(function: Callable[..., Any], num_heads: int, *trees: Any) -> Any:
    return function(*trees)


def _forward_of_heads(queries: _Queries, keys: _Keys) -> _Output:
    """Attention, part by part."""
    parts = [
        _forward_of_part(_rows(queries, rows), _first(keys, num_keys))
        for rows, num_keys in _parts(queries, keys)
    ]
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=2), *parts)


def _forward_of_part(queries: _Queries, keys: _Keys) -> _Output:
    """Attention, chunk by chunk."""
    outputs = jax.lax.map(lambda chunk: _output(chunk, keys), _chunks(queries))
    return _joined(outputs, queries.query.shape[2])


def _backward_of_heads(
    queries: _Queries, keys: _Keys, output: _Output, dz: Float[Array, "B N T Hv"]
) -> tuple[_Queries, _Keys]:
    """Gradients, part by part; what all queries share has the sum."""
    of_queries, of_keys = [], _zeros(keys)
    for rows, num_keys in _parts(queries, keys):
        part = _rows((queries, output, dz), rows)
        query_gradients, key_gradients = _backward_of_part(*part, _first(keys, num_keys))
        of_queries.append(query_gradients)
        of_keys = jax.tree.map(
            lambda total, x: total.at[..., : x.shape[-1]].add(x), of_keys, key_gradients
        )
    of_keys = jax.tree.map(lambda x, total: total.astype(x.dtype), _differentiable(keys), of_keys)
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=2), *of_queries), of_keys


def _backward_of_part(
    queries: _Queries, output: _Output, dz: Float[Array, "B N T Hv"], keys: _Keys
) -> tuple[_Queries, _Keys]:
    """Gradients, chunk by chunk."""

    def add(total: _Keys, chunk: tuple[Any, ...]) -> tuple[_Keys, _Queries]:
        of_queries, of_keys = _gradients(*chunk, keys)
        return jax.tree.map(jnp.add, total, of_keys), of_queries

    # The last chunk is filled with copies of the last query, whose weights are finite, and dz = 0.
    chunks = (_chunks(queries), _chunks(output), _chunks(dz, "constant"))
    of_keys, of_queries = jax.lax.scan(add, _zeros(keys), chunks)
    return _joined(of_queries, queries.query.shape[2]), of_keys


def _output(queries: _Queries, keys: _Keys) -> _Output:
    """Attention of one chunk."""
    scores = _masked_scores(queries, keys)
    largest = scores.max(-1, keepdims=True)
    exponentials = jnp.exp(scores - largest)  # [B, N, T, S]
    total = exponentials.sum(-1, keepdims=True)
    z = jnp.einsum(
        "BNTS,BNHS->BNTH",
        exponentials.astype(keys.value.dtype),
        keys.value,
        preferred_element_type=scores.dtype,
    )
    return _Output((z / total).astype(queries.query.dtype), largest, jnp.log(total))


def _gradients(
    queries: _Queries, output: _Output, dz: Float[Array, "B N T Hv"], keys: _Keys
) -> tuple[_Queries, _Keys]:
    """The gradients of one chunk.

    Scale and mask are applied to arrays [B, N, T, _], which take less time than those of T S.
    """
    query, key, value = queries.query, keys.key, keys.value
    scores = _masked_scores(queries, keys)
    weights = jnp.exp(scores - output.largest - output.log_total)  # [B, N, T, S]
    # The weight of a masked key is 0, and so is the gradient of its score, unless all are masked.
    seen_dz = jnp.where(output.largest > jnp.finfo(scores.dtype).min, dz, 0)
    weights_gradient = jnp.einsum(
        "BNTH,BNHS->BNTS", seen_dz, value, preferred_element_type=scores.dtype
    )
    # The gradient of softmax is w (g - sum(w g)), and sum(w g) over the keys is z . dz.
    mean = (seen_dz.astype(scores.dtype) * output.z).sum(-1, keepdims=True)  # [B, N, T, 1]
    scores_gradient = weights * (weights_gradient - mean)
    biases = [_gradient_of_bias(each.bias, scores_gradient) for each in (queries, keys)]
    scores_gradient = scores_gradient.astype(query.dtype)
    scale = jnp.sqrt(query.shape[-1]).astype(query.dtype)
    transpose = operation("transpose", jnp.matrix_transpose)
    of_query = _rounded_einsum("BNTS,BNHS->BNTH", scores_gradient, key) / scale
    of_key = _rounded_einsum("BNHT,BNTS->BNHS", transpose(query / scale), scores_gradient)
    of_value = _rounded_einsum("BNHT,BNTS->BNHS", transpose(dz), weights.astype(value.dtype))
    return _Queries(of_query, None, biases[0], None), _Keys(of_key, of_value, None, biases[1])


def _rounded_einsum(spec: str, x: Array, y: Array) -> Array:
    """The einsum, summed in float32 or wider and rounded once to the dtype of x."""
    return jnp.einsum(spec, x, y, preferred_element_type=wide(x.dtype)).astype(x.dtype)


def _gradient_of_bias(
    bias: Float[Array, "#B N #T S"] | None, gradient: Float[Array, "B N T _"]
) -> Float[Array, "#B N #T S"] | None:
    """The gradient of the scores, summed where the bias is broadcast; 0 for keys not seen."""
    if bias is None:
        return None
    broadcast = [axis for axis in range(3) if bias.shape[axis] == 1]
    gradient = gradient.sum(broadcast, keepdims=True).astype(bias.dtype)
    unseen = bias.shape[-1] - gradient.shape[-1]
    return jnp.pad(gradient, [(0, 0)] * 3 + [(0, unseen)])


def _masked_scores(queries: _Queries, keys: _Keys) -> Float[Array, "B N T S"]:
    """Q K^T / sqrt(d_k) + bias, the least number where masked."""
    query, key = queries.query, keys.key
    scale = jnp.sqrt(query.shape[-1]).astype(wide(query.dtype))
    if query.dtype == scale.dtype:  # divides T H numbers, not T S; bfloat16 would round them
        query, scale = query / scale, 1
    scores = jnp.einsum("BNTH,BNHS->BNTS", query, key, preferred_element_type=wide(query.dtype))
    scores = scores / scale
    num_keys = key.shape[-1]
    bias = queries.bias if keys.bias is None else keys.bias
    if bias is not None:
        scores = scores + bias[..., :num_keys]
    mask = queries.mask if keys.mask is None else keys.mask
    if mask is not None:
        mask = mask[..., :num_keys]
    if queries.positions is not None:
        causal = jnp.arange(num_keys) <= queries.positions
        mask = causal if mask is None else mask & causal
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return scores


def _parts(queries: _Queries, keys: _Keys) -> list[tuple[slice, int]]:
    """The queries of each part, and how many keys they see: one part unless it is causal."""
    length, num_keys = queries.query.shape[2], keys.key.shape[-1]
    if queries.positions is None:
        return [(slice(length), num_keys)]
    size = -(-length // (CHUNK * CAUSAL_PARTS)) * CHUNK
    return [
        (slice(start, start + size), min(start + size, num_keys))
        for start in range(0, length, size)
    ]


def _rows(tree: Any, rows: slice) -> Any:
    """[B, N, T, _] to some of the queries."""
    return jax.tree.map(lambda x: x[:, :, rows], tree)


def _first(keys: _Keys, num_keys: int) -> _Keys:
    """The first keys."""
    return jax.tree.map(lambda x: x[..., :num_keys], keys)


def _chunks(tree: Any, filling: str = "edge") -> Any:
    """[B, N, T, _] to [count, B, N, size, _], the last one filled up (see `jnp.pad`)."""

    def chunked(x: Array) -> Array:
        length = x.shape[2]
        size = min(CHUNK, length)
        count = -(-length // size)
        x = jnp.pad(x, [(0, 0), (0, 0), (0, count * size - length), (0, 0)], mode=filling)
        return jnp.moveaxis(x.reshape(*x.shape[:2], count, size, x.shape[3]), 2, 0)

    return jax.tree.map(chunked, tree)


def _joined(tree: Any, length: int) -> Any:
    """[count, B, N, size, _] to [B, N, T, _] with T = length."""

    def joined(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, 2)
        return x.reshape(*x.shape[:2], -1, x.shape[-1])[:, :, :length]

    return jax.tree.map(joined, tree)


def _differentiable(keys: _Keys) -> _Keys:
    """Without the mask, which has no gradient."""
    return keys._replace(mask=None)


def _zeros(keys: _Keys) -> _Keys:
    """Gradients to add to, in float32 or wider."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, wide(x.dtype)), _differentiable(keys))
