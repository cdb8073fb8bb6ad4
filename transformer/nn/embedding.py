# SPDX-License-Identifier: Apache-2.0
"""Token embeddings, absolute positions and the output logits (paper 3.4, 3.5)."""

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import normal, zeros

from transformer.arrays import Array, Float, Int, wide
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.nn.dropout import apply_dropout
from transformer.nn.matmul import project
from transformer.nn.parameters import declare
from transformer.nn.positions import sinusoids

Side = Literal["source", "target"]


class Embedding(nn.Module):
    """Tokens to vectors and vectors to logits, with one table if the vocabulary is shared."""

    config: TransformerConfig

    def setup(self) -> None:
        """The table [V,D] of the target and the logits, and of the source if it is shared."""
        config = self.config
        initializer = normal(config.d_model**-0.5)
        shape = (config.vocab_size, config.d_model)
        self.table = declare(self, "table", "embedding", ("vocab", "embed"), initializer, shape)
        self.source_table = self.table
        if config.source_vocab_size is not None:
            shape, axes = (config.source_vocab_size, config.d_model), ("source_vocab", "embed")
            self.source_table = declare(self, "source_table", "embedding", axes, initializer, shape)
        self.output_bias = None
        if config.output_bias:
            shape = (config.vocab_size,)
            self.output_bias = declare(self, "output_bias", "bias", ("vocab",), zeros, shape)
        if config.positions == "learned":
            shape = (config.max_positions, config.d_model)
            self.learned = declare(
                self, "positions", "embedding", ("position", "embed"), initializer, shape
            )

    def tokens(self, tokens: Int[Array, "B T"], side: Side = "target") -> Float[Array, "B T D"]:
        """Each token's row of the side's table, in the compute dtype, times sqrt(d_model)."""
        table = self.source_table if side == "source" else self.table
        vectors = jnp.take(table, tokens, axis=0)  # [B, T, D]
        if self.config.compute_dtype == "bfloat16":
            vectors = vectors.astype(jnp.bfloat16)
        return (vectors * jnp.sqrt(self.config.d_model)).astype(vectors.dtype)

    def positions(self, length: int) -> Float[Array, "T D"]:
        """The absolute encodings of the first `length` positions.

        Zeros where positions enter in attention only (`positions.SCHEMES`).

        Raises:
          InputError: for a length beyond the learned table.
        """
        config = self.config
        if config.positions == "learned":
            if length > config.max_positions:
                raise InputError(
                    f"{length} positions requested, but the learned table has model.max_positions "
                    f"= {config.max_positions}; shorten the sentence or train with a longer table"
                )
            return self.learned[:length]
        dtype = wide(self.table.dtype)
        if config.positions == "sinusoidal":
            return jnp.asarray(sinusoids(length, config.d_model, config.sinusoid_layout), dtype)
        return jnp.zeros((length, config.d_model), dtype)

    def embed(
        self,
        tokens: Int[Array, "B T"],
        positions: Float[Array, "*#B #T D"],
        side: Side = "target",
        *,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Dropout(embedding * sqrt(d_model) + position)."""
        vectors = self.tokens(tokens, side)  # [B, T, D]
        vectors = vectors + positions.astype(vectors.dtype)
        rate = self.config.dropout
        return apply_dropout(self, vectors, rate, train=train, example_ids=example_ids)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """The linear map before the softmax, with the embedding table as its kernel (paper 3.4)."""
        return project("BTD,VD->BTV", x, self.table, self.output_bias)
