# SPDX-License-Identifier: Apache-2.0
"""Vocabulary selection: search over the few target subwords that a sentence is likely to need (Jean
et al. 2015, section 3.3).

The logits of a step, their softmax and the top-k take time for every subword of the vocabulary, of
which a translation uses few. With a shortlist, a step computes the logits of the subwords that are
on the list of any sentence of the batch. A subword that is not on the list of its sentence
cannot follow, so a translation does not depend on the rest of the batch, and its probabilities are
renormalized over its list. `text.lexicon` learns the lists.

No model knows of this. `restrict` builds the same model with a smaller vocabulary, and slices every
parameter axis that is declared as ``vocab``.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Bool, Float, Int, Params, SpecialIds
from transformer.config import ModelConfig
from transformer.decoding.constraints import NEG_INF
from transformer.models import base, ensemble
from transformer.nn.parameters import Parameter, is_parameter

MIN_SIZE = 512
"""Shortlists have this size or this size times a power of two, so that few programs are compiled.
"""


@flax.struct.dataclass
class Shortlist:
    """The subwords that the translations of a batch may contain; here V is the length of the list.

    A search over a shortlist represents each token by its position in `ids`.
    """

    ids: Int[Array, " V"]
    """The special ids in the order of `SpecialIds`, then the others ascending; the last id is
    repeated up to the size of the list.
    """
    listed: Bool[Array, "B V"]
    """Which of them are on the list of each sentence."""

    @classmethod
    def from_lists(
        cls, listed: Bool[np.ndarray, "B _"], special_ids: SpecialIds = SpecialIds()
    ) -> "Shortlist":
        """The shortlist of a batch, given which subwords of the vocabulary each sentence lists."""
        others = np.setdiff1d(np.flatnonzero(listed.any(0)), special_ids)
        chosen = np.array([*special_ids, *others], np.int32)
        size = MIN_SIZE
        while size < len(chosen):
            size *= 2
        padding = max(min(size, listed.shape[1]) - len(chosen), 0)
        ids = np.pad(chosen, (0, padding), mode="edge")
        return cls(ids, listed[:, ids] & (np.arange(len(ids)) < len(chosen)))

    def positions_of(self, ids: Int[Array, "B M"], vocab_size: int) -> Int[Array, "B M"]:
        """Positions in the shortlist of subwords that are all on it."""
        size = len(self.ids)
        positions = jnp.full(vocab_size, size, jnp.int32).at[self.ids].min(jnp.arange(size))
        return positions[ids]


class ShortlistModel(nn.Module):
    """A `base.Decodable` that reads and predicts positions in a shortlist.

    `full` encodes and creates the cache, `sliced` makes the steps. Logits of subwords that are not
    on the list of a sentence are `NEG_INF`. The lists are the variable ``listed`` of the collection
    ``shortlist``, and then a part of the cache.
    """

    full: base.Decodable
    sliced: base.Decodable

    @property
    def config(self) -> ModelConfig:
        """The config of the model with the smaller vocabulary."""
        return self.sliced.config

    def encode(self, source: Int[Array, "B S"]) -> tuple[Any, Any]:
        """See `base.Decodable.encode`."""
        return self.full.encode(source)

    def init_cache(self, *arguments: Any) -> tuple[Any, Bool[Array, "B V"]]:
        """See `base.Decodable.init_cache`."""
        return self.full.init_cache(*arguments), self.get_variable("shortlist", "listed")

    def step(
        self, tokens: Int[Array, "B K"], cache: tuple[Any, Bool[Array, "B V"]]
    ) -> tuple[Float[Array, "B K V"], tuple[Any, Bool[Array, "B V"]]]:
        """See `base.Decodable.step`."""
        cache, listed = cache
        logits, cache = self.sliced.step(tokens, cache)
        return jnp.where(listed[:, None], logits, NEG_INF), (cache, listed)

    @nn.nowrap
    def reorder(self, cache: tuple[Any, Array], parents: Int[Array, "B K"]) -> tuple[Any, Array]:
        """See `base.Decodable.reorder`."""
        cache, listed = cache
        return self.full.reorder(cache, parents), listed

    @nn.nowrap
    def grow(self, cache: tuple[Any, Array], length: int) -> tuple[Any, Array]:
        """See `base.Decodable.grow`."""
        cache, listed = cache
        return self.full.grow(cache, length), listed

    @nn.nowrap
    def take(self, cache: tuple[Any, Array], sentences: Int[Array, " _"]) -> tuple[Any, Array]:
        """See `base.Decodable.take`."""
        cache, listed = cache
        return self.full.take(cache, sentences), listed[sentences]


def restrict(
    model: base.Model, params: Params, shortlist: Shortlist
) -> tuple[base.Decodable, dict[str, Any]]:
    """The model for decoding over a shortlist, and its variables.

    Each member of an ensemble is restricted by itself, so that the ensemble averages probabilities
    that are renormalized over the list of each sentence.
    """
    if isinstance(model, ensemble.Ensemble):
        restricted = [
            restrict(member, member_params, shortlist)
            for member, member_params in ensemble.members(model, params)
        ]
        models, variables = zip(*restricted, strict=True)
        joined = {
            collection: ensemble.join(models, [each[collection] for each in variables])[1]
            for collection in ("params", "shortlist")
        }
        return ensemble.Ensemble(models), joined
    special = dict(zip(("pad_id", "bos_id", "eos_id", "unk_id"), SpecialIds(), strict=True))
    config = dataclasses.replace(model.config, vocab_size=len(shortlist.ids), **special)
    sliced = slice_vocabulary(params, base.parameter_metadata(model), shortlist.ids)
    variables = {
        "params": {"full": params, "sliced": sliced},
        "shortlist": {"listed": shortlist.listed},
    }
    return ShortlistModel(model, base.build(config)), variables


def slice_vocabulary(params: Params, metadata: Params, ids: Int[Array, " V"]) -> Params:
    """Select the entries `ids` of every parameter axis that is declared as ``vocab``."""

    def select(parameter: Parameter, leaf: Array) -> Array:
        for axis, name in enumerate(parameter.names):
            if name == "vocab":
                leaf = jnp.take(leaf, ids, axis=axis)
        return leaf

    return jax.tree.map(select, metadata, params, is_leaf=is_parameter)
