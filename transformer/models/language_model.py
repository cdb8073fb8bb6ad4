# SPDX-License-Identifier: Apache-2.0
"""The decoder-only language model: masked self-attention and feed-forward, without a source.

P(y) is the product of P(y_t | y_<t) over the target and its EOS.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer.arrays import Array, Bool, Float, Int
from transformer.config import LanguageModelConfig
from transformer.decode_cache import DecodeCache, LayerCache
from transformer.models import protocol
from transformer.models.cached_attention import CachedAttention
from transformer.models.decoding_model import DecodingModel
from transformer.models.flops import decoder_flops, logits_flops
from transformer.models.protocol import AttentionSize, Description
from transformer.models.transformer import Encoder, EncoderLayer
from transformer.nn.dropout import example_ids_of
from transformer.nn.embedding import Embedding
from transformer.nn.masks import packed_mask
from transformer.nn.positions import NO_POSITIONS, PositionTerm


class CausalLayer(EncoderLayer):
    """Masked self-attention, then feed-forward."""

    side = "decoder"
    causal = True
    attention_class = CachedAttention

    def step(
        self,
        x: Float[Array, "B _ D"],
        cache: LayerCache,
        index: Int[Array, ""],
        mask: Bool[Array, "BG 1 K C"],
        positions: PositionTerm = NO_POSITIONS,
    ) -> tuple[Float[Array, "B _ D"], LayerCache]:
        """Apply the layer to position `index` of every beam, as `__call__` does to its row."""
        groups, _, group_beams, _ = mask.shape
        y = self.self_attention_residual.prepare(x).reshape(groups, group_beams, -1)  # [BG, K, D]
        y, written = self.self_attention.step(y, cache.self_attention, index, mask, positions)
        x = self.self_attention_residual(x, y.reshape(x.shape))
        y = self.feed_forward(self.feed_forward_residual.prepare(x))
        return self.feed_forward_residual(x, y), cache.replace(self_attention=written)


class CausalStack(Encoder):
    """A stack of causal layers, applied as the encoder's are."""

    side = "decoder"
    layer_class = CausalLayer

    def init_cache(
        self, groups: int, group_beams: int, length: int, dtype: DTypeLike
    ) -> tuple[LayerCache, ...]:
        """The empty cache of every layer."""
        sizes = (groups, group_beams, length, dtype)
        return tuple(LayerCache(layer.self_attention.init_cache(*sizes)) for layer in self.layers)


class LanguageModel(DecodingModel):
    """See `protocol.Model`; the source is not read."""

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
        target_segments: Int[Array, "B T"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T V"]:
        """Predict the token after each position of `target_in`; see `protocol.Model`."""
        position_ids, positions = self.sentence_positions(target_in.shape[1], target_segments)
        mask = None
        if target_segments is not None:
            mask = packed_mask(target_segments, target_segments)  # [B, 1, T, T]
        dropout = example_ids_of(len(target_in), train, example_ids)
        x = self.embedding.embed(target_in, positions, "target", dropout)
        return self.embedding.logits(self.decoder(x, mask, position_ids, dropout))

    def encode(self, source: Int[Array, "B S"], **options: Any) -> None:
        """There is no memory."""

    def init_cache(
        self,
        memory: None,
        source: Int[Array, "B S"],
        num_beams: int,
        length: int,
        num_groups: int = 1,
    ) -> DecodeCache:
        """Create the cache of a search; see `protocol.Model`."""
        sizes = (len(source) * num_groups, num_beams // num_groups, length)
        dtype = self.embedding.tokens(jnp.zeros((1, 1), jnp.int32)).dtype
        return DecodeCache.of(self.decoder.init_cache(*sizes, dtype), sizes, num_groups)

    @nn.nowrap
    def describe(self) -> Description:
        """Self-attention and the residual stream, of a stack that is called the decoder."""
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


protocol.register(LanguageModelConfig, LanguageModel)
