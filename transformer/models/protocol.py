# SPDX-License-Identifier: Apache-2.0
"""The protocol that every model family implements, and the registry of families.

A new family is one file: a config class, a Linen module with the calls of `Model`, and
``register(Config, Module)``. Training, decoding, scoring and evaluation use these calls only.
Inspection needs the taps (`nn.taps`) that `Description` announces.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.config import ModelConfig
from transformer.errors import InputError
from transformer.nn.parameters import declarations, is_parameter

Kind = Literal["encoder", "decoder", "cross"]
"""Self-attention of the encoder, self-attention of the decoder, and cross-attention."""
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")

Source = Any
"""A pytree that `encode` reads; every leaf has the leading axis B. Of text, token ids [B,S]."""
Memory = Any
"""A pytree that `encode` returns; every leaf has the leading axis B."""
Cache = Any
"""A pytree that `init_cache` returns and `step` passes on."""


class AttentionSize(NamedTuple):
    """The number of attention heads of one kind."""

    layers: int
    heads: int


@dataclasses.dataclass(frozen=True)
class Description:
    """The facts about a model that its users need and that its family alone knows."""

    d_model: int
    """Width of the decoder's output, which the learning-rate schedule reads (paper 5.3)."""
    attention: Mapping[Kind, AttentionSize]
    """The kinds of attention that have taps; empty if there are none."""
    residual_layers: Mapping[str, int]
    """Layers of the ``encoder`` and ``decoder`` whose residual stream has a tap; empty if none."""
    forward_flops: Callable[[int, int, int], int]
    """From (B, S, T) to the floating-point operations of the matmuls of one forward pass."""


@runtime_checkable
class Encodable(Protocol):
    """A model that encodes a source. The call needs parameters: ``model.apply(...)``."""

    config: ModelConfig

    def encode(
        self,
        source: Source,
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> Memory:
        """Encode the source; None for a family that reads none."""

    def source_mask(self, source: Source) -> Bool[Array, "B S"]:
        """True where the source is not padding."""


@runtime_checkable
class Decodable(Encodable, Protocol):
    """A model that predicts one token after another; the calls that decoding makes.

    `encode`, `init_cache` and `step` need parameters (``model.apply({"params": params}, ...,
    method=...)``). The others are plain functions of a model (``model.reorder(cache, parents)``).
    """

    def init_cache(
        self,
        memory: Memory,
        source: Source,
        num_beams: int,
        length: int,
        num_groups: int = 1,
    ) -> Cache:
        """Create the cache of a search, with capacity for `length` target positions.

        Args:
          memory: from `encode`.
          source: what it was encoded from.
          num_beams: hypotheses per sentence.
          length: target positions.
          num_groups: groups of equal size that the beams are divided into; `reorder` never moves a
            hypothesis from one group to another.
        """

    def step(self, tokens: Int[Array, "B K"], cache: Cache) -> tuple[Float[Array, "B K V"], Cache]:
        """Read the token at the next position of every beam and predict the one after it.

        The logits are those of `__call__` in that row, to rounding.
        """

    def reorder(self, cache: Cache, parents: Int[Array, "B K"]) -> Cache:
        """Let beam k continue the hypothesis of beam ``parents[b, k]``."""

    def grow(self, cache: Cache, length: int) -> Cache:
        """Extend the capacity to `length` target positions; a step takes time for all of them."""

    def take(self, cache: Cache, sentences: Int[Array, "_"]) -> Cache:
        """Select these sentences of the batch, by index."""


@runtime_checkable
class Scorable(Protocol):
    """A model that maps a source and a decoder input to logits, for training and scoring."""

    config: ModelConfig

    def __call__(
        self,
        source: Source,
        target_in: Int[Array, "B T"],
        *,
        source_segments: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T V"]:
        """Predict the token after each position of `target_in`, all positions at once.

        Args:
          source: token ids, `pad_id` where padded.
          target_in: the target shifted right (`positions.shift_right`).
          source_segments: in packed rows, the sentence of its row that each token belongs to, from
            1; 0 where padded. None: one sentence per row.
          target_segments: the same for the target; both are given or neither.
          train: apply dropout, which needs an rng named ``dropout``. Static.
          example_ids: global index of each example in the batch, so that the examples of a
            micro-batch or of one device have the dropout of the complete batch. None: 0, 1, ...

        Returns:
          the logits, in float32.
        """


@runtime_checkable
class Model(Scorable, Decodable, Protocol):
    """A Linen module that does both. `cast_params` and `describe` need no parameters."""

    def example_inputs(self) -> tuple[Array, Array]:
        """The smallest source and decoder input, which initialize the parameters."""

    def cast_params(self, params: Params) -> Params:
        """Cast parameters to the dtypes they are used in, once and not at every call."""

    def describe(self) -> Description:
        """Return the facts about this model that training, cost estimates and inspection need."""


class TextModel(nn.Module):
    """What the families share whose source and target are token ids."""

    config: ModelConfig

    @nn.nowrap
    def example_inputs(self) -> tuple[Int[Array, "1 1"], Int[Array, "1 1"]]:
        """The smallest source and decoder input, which initialize the parameters."""
        return jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32)

    @nn.nowrap
    def source_mask(self, source: Int[Array, "B S"]) -> Bool[Array, "B S"]:
        """True where the source is not padding."""
        return source != self.config.pad_id

    @nn.nowrap
    def cast_params(self, params: Params) -> Params:
        """Cast kernels and embeddings to the compute dtype, which changes no result.

        Biases and scales stay float32, the dtype in which they are added and multiplied.
        """
        dtype = self.config.compute_dtype
        if dtype == "float32":
            return params
        return jax.tree.map(
            lambda parameter, leaf: leaf.astype(dtype) if parameter.is_weight else leaf,
            *(parameter_metadata(self), params),
            is_leaf=is_parameter,
        )


FAMILIES: dict[type[ModelConfig], type[nn.Module]] = {}
"""The model class of each config class."""


def register(config_class: type[ModelConfig], model_class: type[nn.Module]) -> None:
    """Add a model family; its name is the default of the config's field `family`.

    Args:
      config_class: a frozen dataclass.
      model_class: a Linen module with the calls of `Model`, constructed from a config.
    """
    FAMILIES[config_class] = model_class


def require_unpacked(config: ModelConfig, segments: Int[Array, "B S"] | None) -> None:
    """Refuse packed rows, for a family that reads across the sentences of a row.

    Raises:
      InputError: if there are `segments`.
    """
    if segments is not None:
        raise InputError(
            f"the model family {config.family!r} cannot keep the sentences of a packed row apart; "
            "give each sentence a row (data.packing=False)"
        )


def build(config: ModelConfig) -> Model:
    """The model that a config describes; parameters come from its ``init``.

    A subclass of a registered config class has its model, unless another one is registered for it.

    Raises:
      InputError: for a config class without a model, and for the config of an experiment.
    """
    if not isinstance(config, ModelConfig):
        raise InputError(
            f"config is a {type(config).__name__}, but it must be that of the model: config.model"
        )
    for config_class in type(config).__mro__:
        if config_class in FAMILIES:
            return FAMILIES[config_class](config)
    raise InputError(
        f"no model is registered for {type(config).__name__} (model.family is {config.family!r}); "
        "call transformer.models.protocol.register"
    )


@functools.lru_cache(maxsize=16)
def parameter_metadata(model: nn.Module) -> Params:
    """The tree of a model's `Parameter` declarations, whose values are shapes and dtypes.

    Every call returns the same tree, which must not be changed: tracing a deep model takes a third
    of a second.
    """
    return declarations(lambda: model.init(jax.random.key(0), *model.example_inputs()))
