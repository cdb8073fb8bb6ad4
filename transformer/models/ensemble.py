# SPDX-License-Identifier: Apache-2.0
"""Ensembles: several models with one vocabulary that decode with their mean probabilities."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.config import ModelConfig
from transformer.models.protocol import Decodable, Description, Model


class Ensemble(nn.Module):
    """A `protocol.Model` for scoring and decoding, with the parameters of its members; see `join`.

    Every step averages the members' probabilities of the next token. The logits are the logarithm
    of the mean, so that their softmax is the mean. The members share a vocabulary and nothing else.
    """

    models: tuple[Decodable, ...]

    @property
    def config(self) -> ModelConfig:
        """The config of the first member, whose vocabulary and special ids all members have."""
        return self.models[0].config

    def __call__(
        self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, train: bool = False
    ) -> Float[Array, "B T V"]:
        """Predict the token after each position of `target_in`."""
        return log_mean([model(source, target_in, train=train) for model in self.models])

    def encode(self, source: Int[Array, "B S"]) -> tuple[Any, ...]:
        """The memory of every member."""
        return tuple(model.encode(source) for model in self.models)

    def init_cache(
        self,
        memory: tuple[Any, ...],
        source: Int[Array, "B S"],
        num_beams: int,
        length: int,
        num_groups: int = 1,
    ) -> tuple[Any, ...]:
        """The cache of every member."""
        members = zip(self.models, memory, strict=True)
        return tuple(
            model.init_cache(part, source, num_beams, length, num_groups) for model, part in members
        )

    def step(
        self, tokens: Int[Array, "B K"], cache: tuple[Any, ...]
    ) -> tuple[Float[Array, "B K V"], tuple[Any, ...]]:
        """Read one token of every beam and predict the next."""
        members = zip(self.models, cache, strict=True)
        logits, cache = zip(*(model.step(tokens, part) for model, part in members), strict=True)
        return log_mean(list(logits)), cache

    @nn.nowrap
    def example_inputs(self) -> tuple[Array, Array]:
        """The smallest source and decoder input."""
        return self.models[0].example_inputs()

    @nn.nowrap
    def source_mask(self, source: Int[Array, "B S"]) -> Bool[Array, "B S"]:
        """True where the source is not padding."""
        return self.models[0].source_mask(source)

    @nn.nowrap
    def reorder(self, cache: tuple[Any, ...], parents: Int[Array, "B K"]) -> tuple[Any, ...]:
        """Let beam k continue the hypothesis of beam ``parents[b, k]``, in every member."""
        members = zip(self.models, cache, strict=True)
        return tuple(model.reorder(part, parents) for model, part in members)

    @nn.nowrap
    def grow(self, cache: tuple[Any, ...], length: int) -> tuple[Any, ...]:
        """Extend the capacity of every member's cache to `length` target positions."""
        members = zip(self.models, cache, strict=True)
        return tuple(model.grow(part, length) for model, part in members)

    @nn.nowrap
    def take(self, cache: tuple[Any, ...], sentences: Int[Array, "_"]) -> tuple[Any, ...]:
        """Select these sentences of the batch, in every member's cache."""
        members = zip(self.models, cache, strict=True)
        return tuple(model.take(part, sentences) for model, part in members)

    @nn.nowrap
    def cast_params(self, params: Params) -> Params:
        """Cast the parameters of every member to its compute dtype."""
        cast = [model.cast_params(part) for model, part in members(self, params)]
        return join(self.models, cast)[1]

    @nn.nowrap
    def describe(self) -> Description:
        """The sum of the members' FLOPs; nothing is captured."""
        members = [model.describe() for model in self.models]
        return Description(
            d_model=members[0].d_model,
            attention={},
            residual_layers={},
            forward_flops=lambda b, s, t: sum(one.forward_flops(b, s, t) for one in members),
        )


def join(models: Sequence[Decodable], params: Sequence[Params]) -> tuple[Ensemble, Params]:
    """The ensemble of these models, and its parameters."""
    # Linen's names of the members of `models`.
    return Ensemble(tuple(models)), {f"models_{i}": each for i, each in enumerate(params)}


def members(ensemble: Ensemble, params: Params) -> list[tuple[Model, Params]]:
    """The models of an ensemble with their parameters; the inverse of `join`."""
    return [(model, params[f"models_{i}"]) for i, model in enumerate(ensemble.models)]


def log_mean(logits: list[Array]) -> Float[Array, "B T V"]:
    """The logarithm of the mean of the probabilities that each softmax gives."""
    total = functools.reduce(jnp.logaddexp, map(jax.nn.log_softmax, logits))
    return total - math.log(len(logits))
