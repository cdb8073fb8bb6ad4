# SPDX-License-Identifier: Apache-2.0
"""Several models with one vocabulary that decode as one: the mean of their probabilities."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Params
from transformer.decoding.shortlist import Shortlist


class Ensemble(nn.Module):
    """Offers what a model offers, and has no parameters but its members'; see `join`.

    At every step the members' probabilities of the next token are averaged. The logits are the
    mean's logarithm, so that a softmax gives the mean again. The members may differ in all but the
    vocabulary.
    """

    models: tuple[nn.Module, ...]

    def __call__(
        self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, train: bool = False
    ) -> tuple[Float[Array, "B T V"], None]:
        """Logits for the token that follows each position of `target_in`; there is no trace."""
        logits = [model(source, target_in, train=train)[0] for model in self.models]
        return log_mean(logits), None

    def encode(self, source: Int[Array, "B S"]) -> tuple[tuple[Array, ...], None]:
        """Every member's memory; there is no trace."""
        return tuple(model.encode(source)[0] for model in self.models), None

    def init_cache(
        self,
        memories: tuple[Array, ...],
        source: Int[Array, "B S"],
        beams: int,
        length: int,
        groups: int = 1,
        shortlist: Shortlist | None = None,
    ) -> tuple[Any, ...]:
        """Every member's cache."""
        members = zip(self.models, memories, strict=True)
        return tuple(
            model.init_cache(memory, source, beams, length, groups, shortlist)
            for model, memory in members
        )

    def step(
        self, tokens: Int[Array, "B K"], caches: tuple[Any, ...]
    ) -> tuple[Float[Array, "B K V"], tuple[Any, ...]]:
        """Reads one token a beam and predicts the next."""
        members = zip(self.models, caches, strict=True)
        logits, caches = zip(*(model.step(tokens, cache) for model, cache in members), strict=True)
        return log_mean(logits), caches

    @nn.nowrap
    def reorder(self, caches: tuple[Any, ...], parents: Int[Array, "B K"]) -> tuple[Any, ...]:
        """Beam k goes on from what beam ``parents[b, k]`` was, in every member."""
        members = zip(self.models, caches, strict=True)
        return tuple(model.reorder(cache, parents) for model, cache in members)

    @nn.nowrap
    def grow(self, caches: tuple[Any, ...], length: int) -> tuple[Any, ...]:
        """Room for `length` target tokens in every member's cache."""
        members = zip(self.models, caches, strict=True)
        return tuple(model.grow(cache, length) for model, cache in members)

    @nn.nowrap
    def take(self, caches: tuple[Any, ...], sentences: Int[Array, " B"]) -> tuple[Any, ...]:
        """The caches of these sentences alone."""
        members = zip(self.models, caches, strict=True)
        return tuple(model.take(cache, sentences) for model, cache in members)

    @nn.nowrap
    def rounded(self, params: Params) -> Params:
        """Those of every member, each in its compute dtype."""
        return {
            f"models_{i}": model.rounded(params[f"models_{i}"])
            for i, model in enumerate(self.models)
        }


def join(models: list[nn.Module], params: list[Params]) -> tuple[Ensemble, Params]:
    """The ensemble of these models, and its parameters."""
    return Ensemble(tuple(models)), {f"models_{i}": each for i, each in enumerate(params)}


def log_mean(logits: list[Array] | tuple[Array, ...]) -> Float[Array, "B T V"]:
    """The logarithm, in float32, of the mean of the probabilities that each entry's softmax has."""
    log_probs = [jax.nn.log_softmax(each.astype(jnp.float32)) for each in logits]
    return jax.nn.logsumexp(jnp.stack(log_probs), axis=0) - jnp.log(len(log_probs))
