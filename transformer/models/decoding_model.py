# SPDX-License-Identifier: Apache-2.0
"""What the models with a decoder stack share: positions of the target, and a step of a search."""

import jax.numpy as jnp

from transformer.arrays import Array, Float, Int
from transformer.decode_cache import DecodeCache
from transformer.models.protocol import TextModel
from transformer.nn.positions import positions_within_segments


class DecodingModel(TextModel):
    """What models with an `embedding` and a `decoder` share: positions, and a step of a search."""

    def sentence_positions(
        self, length: int, segments: Int[Array, "B T"] | None
    ) -> tuple[Int[Array, "*#B T"], Float[Array, "*#B T D"]]:
        """The position of each token in its sentence, from 0, and its absolute encoding."""
        table = self.embedding.positions(length)  # [T, D]
        if segments is None:
            return jnp.arange(length), table
        position_ids = positions_within_segments(segments)  # [B, T]
        return position_ids, table[position_ids]

    def step(
        self, tokens: Int[Array, "B K"], cache: DecodeCache
    ) -> tuple[Float[Array, "B K V"], DecodeCache]:
        """Read the token at position `cache.index` of every beam and predict the next."""
        cache = cache.begin_step()
        position = cache.row(self.embedding.positions(cache.length))
        x, layers = self.decoder.step(self.embedding.embed(tokens, position), cache)
        return self.embedding.logits(x), cache.replace(layers=layers, index=cache.index + 1)

    reorder = staticmethod(DecodeCache.reorder)
    grow = staticmethod(DecodeCache.grow)
    take = staticmethod(DecodeCache.take)
