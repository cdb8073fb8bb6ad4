# SPDX-License-Identifier: Apache-2.0
"""The few target sub-words that a search looks at, sentence by sentence (vocabulary selection; Jean
et al. 2015, section 3.3).

The logits of a step, their softmax and the choice among them take time for every sub-word of the
vocabulary, of which a translation uses a few. With a shortlist a step computes the logits of those
alone that some sentence of the batch has on its list. For each sentence, what is not on its own
list cannot follow, so that its translation does not depend on the others; its probabilities are
those of the sub-words on its list, which sum to 1. Which sub-words these are is learned by
`lexicon`.
"""

import flax.struct
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Bool, Float, Int
from transformer.decoding.constraints import NEVER

LEAST_ROOM = 512
"""Shortlists have room for so many sub-words, or for twice, four times ... as many, so that few
programs are compiled.
"""


@flax.struct.dataclass
class Shortlist:
    """What a batch of sentences is translated with; V is here the number of its sub-words.

    A search over a shortlist counts its tokens by their places in it. The special ids are the same
    in both.
    """

    ids: Int[Array, " V"]
    """In rising order, the special ids first; the last one fills what room is left."""
    listed: Bool[Array, "B V"]
    """Which of them are on the list of each sentence."""

    @classmethod
    def of(cls, listed: Bool[np.ndarray, "B _"]) -> "Shortlist":
        """Of a batch's sentences, from which sub-words of the whole vocabulary each may have; of
        NumPy arrays.
        """
        chosen = np.flatnonzero(listed.any(0))
        room = LEAST_ROOM
        while room < len(chosen):
            room *= 2
        ids = np.full(min(room, listed.shape[1]), chosen[-1], np.int32)
        ids[: len(chosen)] = chosen
        return cls(ids, listed[:, ids] & (np.arange(len(ids)) < len(chosen)))

    def places_of(self, ids: Int[Array, "B M"]) -> Int[Array, "B M"]:
        """The places of sub-words that are all in it."""
        return jnp.searchsorted(self.ids, ids).astype(jnp.int32)

    def limit(self, logits: Float[Array, "B K V"]) -> Float[Array, "B K V"]:
        """The logits, `NEVER` for what is not on a sentence's list."""
        return jnp.where(self.listed[:, None], logits, NEVER)

    def take(self, sentences: Int[Array, " B"]) -> "Shortlist":
        """That of these sentences alone."""
        return self.replace(listed=self.listed[sentences])
