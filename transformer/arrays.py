# SPDX-License-Identifier: Apache-2.0
"""Axis letters, array types, special ids, and the gather of a search.

The letters of axes in einsum strings, array types and comments::

    B  batch                      D  d_model                 L  layers of a stack
    S  source or key position     N  heads                   U  sub-layers of a layer
    T  target or query position   H  head size d_k           K  beams
    W  query word                 F  d_ff                    G  beam groups
    X  key word                   V  vocabulary              M  maximum decoded length
    J  N times H, flattened       k  entries of a top-k      C  cache length: M times K, or S
    E  window of a convolution    O  output channels
    A  recurrent encoder's width  P  gates of a cell times D

Hv is the head size d_v where it may differ from d_k. BG is B times G, flattened; there, K counts
the beams of one group. r, x and y are the rows, inputs and outputs of a matrix in `cpu.matmul`.
Every other axis has a lower-case name.

Einsum strings are upper case (``BTNH,BSNH->BNTS``). Attention weights are ``[B,N,T,S]``. A true
mask entry means "may attend".
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt


class SpecialIds(NamedTuple):
    """The token ids that are not pieces of text, in the order of SentencePiece's options."""

    pad: int = 0
    """Fills a row up to its static length; never a target, never attended to."""
    bos: int = 1
    """``<s>``, the first decoder input: the shifted target begins with it (paper, figure 1)."""
    eos: int = 2
    """``</s>``, which ends every source and every target; producing it finishes a hypothesis."""
    unk: int = 3
    """A character outside the vocabulary."""


Params = Any
"""A nested dict of parameter arrays."""


def wide(dtype: jnp.dtype) -> jnp.dtype:
    """float32, or the dtype itself if it is wider: the dtype of sums, softmax and comparisons."""
    return jnp.promote_types(dtype, jnp.float32)


def gather(values: Array, indices: Int[Array, "..."], axis: int = 1) -> Array:
    """`jnp.take_along_axis` for indices in bounds, which are not checked.

    The checks would add a fifth to the time in which a search compiles.
    """
    return jnp.take_along_axis(values, indices, axis, mode="promise_in_bounds")


class Shown:
    """A pytree that prints the dtypes and shapes of its arrays, and not their numbers."""

    def __repr__(self) -> str:
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        given = (f"{name}={_shown(value)}" for name, value in fields if value is not None)
        return f"{type(self).__name__}({', '.join(given)})"


def _shown(value: Any) -> str:
    """An array as ``float32[2,5]``; a dict of arrays by their number and elements."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        is_number = not value.ndim and jnp.issubdtype(value.dtype, jnp.number)
        return f"{value}" if is_number else f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, dict):
        leaves = jax.tree.leaves(value)
        return f"{{{len(leaves)} arrays, {sum(leaf.size for leaf in leaves):,} elements}}"
    return repr(value)


__all__ = [
    "Array",
    "Bool",
    "Float",
    "Int",
    "Key",
    "Params",
    "Shown",
    "SpecialIds",
    "UInt",
    "gather",
    "wide",
]
