# SPDX-License-Identifier: Apache-2.0
"""Token embeddings, absolute positions and the output logits (paper 3.4, 3.5)."""

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import normal, zeros

from transformer.arrays import Array, Float, Int, wide
from transformer.config import ModelConfig, TransformerConfig
from transformer.errors import InputError
from transformer.nn.dropout import apply_dropout
from transformer.nn.linear import wide_einsum
from transformer.nn.parameters import declare
from transformer.nn.positions import sinusoids
from transformer.nn.taps import tap

Side = Literal["source", "target"]

ZEROED = -1
"""A token id whose vector is zero: that of a token which a training pass leaves out."""


class TokenEmbedding(nn.Module):
    """Tokens to vectors and vectors to logits, with one table if the vocabulary is shared."""

    config: ModelConfig
    """Config of any family with `d_model`, `tied_embeddings`, `embedding_scale`, `output_bias`."""

    def setup(self) -> None:
        """The table [V,D] of the target, of the source and of the logits, as far as they share it.

        Otherwise the source has a table, and the logits a kernel [D,V].
        """
        config = self.config
        initializer = normal(config.d_model**-0.5)
        of_tokens = normal(1.0) if self.config.embedding_scale == "none" else initializer
        shape = (config.vocab_size, config.d_model)
        self.table = declare(self, "table", "embedding", ("vocab", "embed"), of_tokens, shape)
        self.source_table, self.output_kernel = self.table, None
        if config.source_vocab_size is not None:
            shape, axes = (config.source_vocab_size, config.d_model), ("source_vocab", "embed")
            self.source_table = declare(self, "source_table", "embedding", axes, of_tokens, shape)
        elif config.tied_embeddings in ("target_output", "none"):
            axes = ("vocab", "embed")
            self.source_table = declare(self, "source_table", "embedding", axes, of_tokens, shape)
        if config.tied_embeddings in ("source_target", "none"):
            axes, shape = ("embed", "vocab"), (config.d_model, config.vocab_size)
            self.output_kernel = declare(self, "output", "kernel", axes, initializer, shape)
        self.output_bias = None
        if config.output_bias:
            shape = (config.vocab_size,)
            self.output_bias = declare(self, "output_bias", "bias", ("vocab",), zeros, shape)

    def tokens(self, tokens: Int[Array, "B T"], side: Side = "target") -> Float[Array, "B T D"]:
        """Each token's row of the side's table, in the compute dtype, times sqrt(d_model).

        The factor is absent with another `model.embedding_scale`. The vector of `ZEROED` is zero.
        """
        table = self.source_table if side == "source" else self.table
        vectors = table_rows(table, tokens)
        if self.config.compute_dtype == "bfloat16":
            vectors = vectors.astype(jnp.bfloat16)
        if self.config.embedding_scale != "tokens":
            return vectors
        return (vectors * jnp.sqrt(self.config.d_model)).astype(vectors.dtype)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """The linear map before the softmax, in float32 (paper 3.4).

        Its kernel is the embedding table, unless `model.tied_embeddings` separates them.
        """
        kernel = self.table if self.output_kernel is None else self.output_kernel
        spec = "BTD,VD->BTV" if self.output_kernel is None else "BTD,DV->BTV"
        logits = wide_einsum(spec, x, kernel.astype(x.dtype))
        return logits if self.output_bias is None else logits + self.output_bias


def table_rows(table: Float[Array, "V D"], tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Each token's row of a table; that of `ZEROED` is zero."""
    vectors = jnp.take(table, tokens, axis=0)  # [B, T, D]
    return jnp.where(tokens[..., None] == ZEROED, jnp.zeros_like(vectors), vectors)


class Embedding(TokenEmbedding):
    """The embeddings of the Transformer: of tokens, plus absolute positions."""

    config: TransformerConfig

    def setup(self) -> None:
        """The tables of tokens, and for learned positions theirs."""
        super().setup()
        config = self.config
        if config.positions == "learned":
            initializer, axes = normal(config.d_model**-0.5), ("position", "embed")
            shape = (config.max_positions, config.d_model)
            self.learned = declare(self, "positions", "embedding", axes, initializer, shape)

    def positions(self, length: int) -> Float[Array, "T D"]:
        """What is added to the embeddings of the first `length` positions.

        These are the absolute encodings, zeros where positions enter in attention only
        (`positions.SCHEMES`), and with `model.timestep_encoding` that of the first layer.

        Raises:
          InputError: for a length beyond the learned table.
        """
        config = self.config
        table = jnp.zeros((length, config.d_model), wide(self.table.dtype))
        if config.positions == "sinusoidal":
            last = config.position_offset + length
            encodings = sinusoids(last, config.d_model, config.sinusoid_layout)
            table = jnp.asarray(encodings[config.position_offset :], table.dtype)
        elif config.positions == "learned":
            if length > config.max_positions:
                raise InputError(
                    f"{length} positions requested, but the learned table has model.max_positions "
                    f"= {config.max_positions}; shorten the sentence or train with a longer table"
                )
            table = self.learned[:length]
        if self.config.embedding_scale == "positions":
            table = table / jnp.sqrt(config.d_model).astype(table.dtype)
        if config.timestep_encoding:
            table = table + timestep_encodings(config, 1)[0].astype(table.dtype)
        return table

    def embed(
        self,
        tokens: Int[Array, "B T"],
        positions: Float[Array, "*#B #T D"],
        side: Side = "target",
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Dropout(embedding * sqrt(d_model) + position), scaled as `model.embedding_scale` says."""
        vectors = tap(self, f"{side}_tokens", self.tokens(tokens, side))  # [B, T, D]
        positions = tap(self, f"{side}_positions", positions)
        vectors = vectors + positions.astype(vectors.dtype)
        return apply_dropout(self, vectors, self.config.dropout, dropout)


def timestep_encodings(config: TransformerConfig, number: int) -> Float[Array, "L D"]:
    """The encodings of the layers 1 to `number` (Dehghani et al. 2019, section 2.1).

    They are the sinusoids of positions, of the layer's number. That paper adds the encodings of the
    positions again before each layer too; here they are added once.
    """
    return jnp.asarray(sinusoids(number + 1, config.d_model, config.sinusoid_layout)[1:])
