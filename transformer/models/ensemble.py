# SPDX-License-Identifier: Apache-2.0
"""Ensembles: several models with one vocabulary that decode with their mean probabilities."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Params
from transformer.config import ModelConfig
from transformer.decoding.shortlist import Shortlist
from transformer.models.base import Description, Model


class Ensemble(nn.Module):
    """A `base.Model` for scoring and decoding, with the parameters of its members; see `join`.

    Every step averages the members' probabilities of the next token. The logits are the logarithm
    of the mean, so that their softmax is the mean. The members share a vocabulary and nothing else.
    """

    models: tuple[Model, ...]

    @property
    def config(self) -> ModelConfig:
        """The config of the first member, whose vocabulary and special ids all members have."""
        return self.models[0].config

    def __call__(
        self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, train: bool = False
    ) -> tuple[Float[Array, "B T V"], None]:
        """Predict the token after each position of `target_in`; there is no trace."""
        return log_mean([model(source, target_in, train=train)[0] for model in self.models]), None

    def encode(self, source: Int[Array, "B S"]) -> tuple[tuple[Any, ...], None]:
        """The memory of every member; there is no trace."""
        return tuple(model.encode(source)[0] for model in self.models), None

    def init_cache(
        self,
        memory: tuple[Any, ...],
        source: Int[Array, "B S"],
        num_beams: int,
        length: int,
        num_groups: int = 1,
        shortlist: Shortlist | None = None,
    ) -> tuple[Any, ...]:
        """The cache of every member."""
        options = (num_beams, length, num_groups, shortlist)
        members = zip(self.models, memory, strict=True)
        return tuple(model.init_cache(part, source, *options) for model, part in members)

    def step(
        self, tokens: Int[Array, "B K"], cache: tuple[Any, ...]
    ) -> tuple[Float[Array, "B K V"], tuple[Any, ...]]:
        """Read one token of every beam and predict the next."""
        members = zip(self.models, cache, strict=True)
        logits, cache = zip(*(model.step(tokens, part) for model, part in members), strict=True)
        return log_mean(list(logits)), cache

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
        names = [_name(number) for number in range(len(self.models))]
        members = zip(self.models, names, strict=True)
        return {name: model.cast_params(params[name]) for model, name in members}

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


def join(models: list[Model], params: list[Params]) -> tuple[Ensemble, Params]:
    """The ensemble of these models, and its parameters."""
    return Ensemble(tuple(models)), {_name(number): each for number, each in enumerate(params)}


def _name(number: int) -> str:
    """The name that Linen gives to a member of `models`."""
    return f"models_{number}"


def log_mean(logits: list[Array]) -> Float[Array, "B T V"]:
    """The logarithm, in float32, of the mean of the probabilities that each softmax gives."""
    log_probs = [jax.nn.log_softmax(each.astype(jnp.float32)) for each in logits]
    return jax.nn.logsumexp(jnp.stack(log_probs), axis=0) - jnp.log(len(log_probs))
