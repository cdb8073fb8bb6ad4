# SPDX-License-Identifier: Apache-2.0
"""The decoder-only language model: masked self-attention and feed-forward, without a source.

P(y) is the product of P(y_t | y_<t) over the target and its EOS. The layers, the embedding, the
cache and the search are the encoder-decoder's. Any source is cut to no tokens, so the memory has no
positions, and the layers have no cross-attention.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int
from transformer.config import LanguageModelConfig
from transformer.models import base
from transformer.models.base import AttentionSize, Description
from transformer.models.transformer import (
    DecodeCache,
    Decoder,
    Transformer,
    decoder_flops,
    logits_flops,
)
from transformer.nn.capture import Trace
from transformer.nn.embedding import Embedding
from transformer.nn.layers import DecoderLayer


class CausalLayer(DecoderLayer):
    """Masked self-attention, then feed-forward."""

    has_cross_attention = False


class CausalStack(Decoder):
    """The decoder without cross-attention."""

    layer_class = CausalLayer


class LanguageModel(Transformer):
    """See `base.Model`; the source is not read."""

    config: LanguageModelConfig

    def setup(self) -> None:
        """The embedding and the stack."""
        self.embedding = Embedding(self.config)
        self.decoder = CausalStack(self.config)

    def __call__(
        self,
        source: Int[Array, "B S"],
        target_in: Int[Array, "B T"],
        *,
        source_segments: Int[Array, "B S"] | None = None,
        **options: Any,
    ) -> tuple[Float[Array, "B T V"], Trace | None]:
        """Predict the token after each position of `target_in`; see `base.Model`."""
        if source_segments is not None:
            source_segments = source_segments[:, :0]
        return super().__call__(
            source[:, :0], target_in, source_segments=source_segments, **options
        )

    def encode(
        self, source: Int[Array, "B S"], **options: Any
    ) -> tuple[Float[Array, "B _ D"], None]:
        """The empty memory, `[B, 0, D]`, and no trace."""
        return jnp.zeros((len(source), 0, self.config.d_model), self.config.compute_dtype), None

    def init_cache(
        self, memory: Float[Array, "B _ D"], source: Int[Array, "B S"], *sizes: int
    ) -> DecodeCache:
        """Create the cache of a search; see `base.Model`."""
        return super().init_cache(memory, source[:, :0], *sizes)

    @nn.nowrap
    def describe(self) -> Description:
        """Self-attention of the decoder and its residual stream can be captured."""
        config = self.config
        layers, heads = config.depth("decoder"), config.heads("decoder")
        return Description(
            d_model=config.d_model,
            attention={"decoder": AttentionSize(layers, heads)},
            residual_layers={"decoder": layers},
            forward_flops=lambda b, s, t: (
                b * (decoder_flops(config, None, t) + logits_flops(config, t))
            ),
        )


base.register(LanguageModelConfig, LanguageModel)
