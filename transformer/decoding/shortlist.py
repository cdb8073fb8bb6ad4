# SPDX-License-Identifier: Apache-2.0
"""Vocabulary selection: search over the few target subwords that a sentence is likely to need (Jean
et al. 2015, section 3.3).

The logits of a step, their softmax and the top-k take time for every subword of the vocabulary, of
which a translation uses few. With a shortlist, a step computes the logits of the subwords that are
on the list of any sentence of the batch. A subword that is not on the list of its own sentence
cannot follow, so a translation does not depend on the rest of the batch, and its probabilities are
renormalized over its list. `text.lexicon` learns the lists.
"""

import flax.struct
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Bool, Float, Int
from transformer.decoding.constraints import NEG_INF

MIN_SIZE = 512
"""Shortlists have this size or this size times a power of two, so that few programs are compiled.
"""


@flax.struct.dataclass
class Shortlist:
    """The subwords that the translations of a batch may contain; here V is the length of the list.

    A search over a shortlist represents each token by its position in `ids`. Special ids are the
    same in both representations.
    """

    ids: Int[Array, " V"]
    """Ascending, the special ids first; the last id is repeated up to the size of the list."""
    listed: Bool[Array, "B V"]
    """Which of them are on the list of each sentence."""

    @classmethod
    def from_lists(cls, listed: Bool[np.ndarray, "B _"]) -> "Shortlist":
        """The shortlist of a batch, given which subwords of the vocabulary each sentence lists."""
        chosen = np.flatnonzero(listed.any(0))
        size = MIN_SIZE
        while size < len(chosen):
            size *= 2
        ids = np.full(min(size, listed.shape[1]), chosen[-1], np.int32)
        ids[: len(chosen)] = chosen
        return cls(ids, listed[:, ids] & (np.arange(len(ids)) < len(chosen)))

    def positions_of(self, ids: Int[Array, "B M"]) -> Int[Array, "B M"]:
        """Positions in the shortlist of subwords that are all on it."""
        return jnp.searchsorted(self.ids, ids).astype(jnp.int32)

    def limit(self, logits: Float[Array, "B K V"]) -> Float[Array, "B K V"]:
        """The logits, `NEG_INF` for what is not on the list of a sentence."""
        return jnp.where(self.listed[:, None], logits, NEG_INF)

    def take(self, sentences: Int[Array, " B"]) -> "Shortlist":
        """The shortlist of these sentences."""
        return self.replace(listed=self.listed[sentences])
