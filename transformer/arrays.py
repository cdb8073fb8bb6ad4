# SPDX-License-Identifier: Apache-2.0
"""The letters, array types and special ids that every other file uses.

Letters, in einsum strings, types and comments alike::

    B batch                 D d_model             L layers
    S source/key position   N heads               K beams
    T target/query position H head size (d_k, d_v) M longest decoded length
    F d_ff                  V vocabulary            C places of a cache, M K or S
                                                    R rows of a cache (caches.LayerCache)

Einsum strings are upper case (``BTNH,BSNH->BNTS``); attention weights are ``[B,N,T,S]``; a true
mask entry means "may attend".
"""

from typing import Any, NamedTuple

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
    """A character that the vocabulary does not have."""


PAD_ID = 0
"""Fills a row up to its static length; never a target, never attended to."""
BOS_ID = 1
"""The first decoder input: what the shifted target begins with (paper, figure 1)."""
EOS_ID = 2
"""Ends every source and every target; a hypothesis is finished when it is produced."""
UNK_ID = 3
"""Stands for a character that the vocabulary does not have."""
NUM_SPECIAL_IDS = 4

Params = Any
"""A nested dict of parameter arrays."""


def wide(dtype: jnp.dtype) -> jnp.dtype:
    """float32, or the dtype itself where that is wider: of sums, softmax and what is compared."""
    return jnp.promote_types(dtype, jnp.float32)


__all__ = [
    "BOS_ID",
    "EOS_ID",
    "NUM_SPECIAL_IDS",
    "PAD_ID",
    "UNK_ID",
    "Array",
    "Bool",
    "Float",
    "Int",
    "Key",
    "Params",
    "SpecialIds",
    "UInt",
    "wide",
]
