# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer (paper 3, figure 1): layers, stacks and the model."""

import functools

import flax.linen as nn
import jax

from transformer.arrays import Array, Bool, Float, Int
from transformer.config import TransformerConfig
from transformer.decode_cache import DecodeCache, KeyValueCache, LayerCache
from transformer.models import flops, protocol
from transformer.models.cached_attention import CachedAttention
from transformer.models.decoding_model import DecodingModel
from transformer.models.protocol import AttentionSize, Description, Source
from transformer.models.relative_positions import SCHEMES
from transformer.nn.dropout import example_ids_of
from transformer.nn.embedding import Embedding, timestep_encodings
from transformer.nn.feed_forward import FeedForward
from transformer.nn.masks import both, neighborhood_mask, packed_mask
from transformer.nn.multi_head_attention import MultiHeadAttention
from transformer.nn.norm import NORMS
from transformer.nn.positions import NO_POSITIONS, PositionTerm
from transformer.nn.residual import Residual
from transformer.nn.taps import tap

REMAT = {
    "none": lambda layer_class: layer_class,
    "full": nn.remat,
    "dots": functools.partial(
        nn.remat, policy=jax.checkpoint_policies.save_only_these_names("matmul")
    ),
}
"""What `model.remat` does to the class of a layer."""


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (figure 1, left)."""

    config: TransformerConfig
    side = "encoder"
    causal = False
    attention_class = MultiHeadAttention
    feed_forward_class = FeedForward

    def setup(self) -> None:
        """Two sub-layers, and the residual connection around each."""
        self.self_attention = self.attention_class(self.config, self.side)
        self.feed_forward = self.feed_forward_class(self.config)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "#B 1 #S S"] | None,
        positions: PositionTerm = NO_POSITIONS,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        """Apply the layer to all source positions.

        `dropout` is None, or in training the index of each example (`nn.dropout.example_ids_of`).
        """
        y = self.self_attention_residual.prepare(x)
        y = self.self_attention(
            y, y, y, mask, causal=self.causal, positions=positions, dropout=dropout
        )
        x = self.self_attention_residual(x, y, dropout)
        y = self.feed_forward(self.feed_forward_residual.prepare(x), dropout)
        return self.feed_forward_residual(x, y, dropout)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention over the memory, then feed-forward (figure 1, right).

    The paper calls cross-attention "encoder-decoder attention".
    """

    config: TransformerConfig
    attention_class = CachedAttention
    cross_attention_class = CachedAttention
    feed_forward_class = FeedForward

    def setup(self) -> None:
        """Three sub-layers, and the residual connection around each."""
        self.self_attention = self.attention_class(self.config, "decoder")
        self.cross_attention = self.cross_attention_class(self.config, "decoder")
        self.feed_forward = self.feed_forward_class(self.config)
        self.self_attention_residual = Residual(self.config)
        self.cross_attention_residual = Residual(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        self_mask: Bool[Array, "#B 1 #T T"] | None,
        cross_mask: Bool[Array, "#B 1 #T S"],
        positions: PositionTerm = NO_POSITIONS,
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Apply the layer to all target positions at once; `positions` is for self-attention.

        Self-attention is causal besides what `self_mask` forbids (paper 3.2.3, third item).
        """
        y = self.self_attention_residual.prepare(x)
        y = self.self_attention(
            y, y, y, self_mask, causal=True, positions=positions, dropout=dropout
        )
        x = self.self_attention_residual(x, y, dropout)
        y = self.cross_attention_residual.prepare(x)
        y = self.cross_attention(y, memory, memory, cross_mask, dropout=dropout)
        x = self.cross_attention_residual(x, y, dropout)
        y = self.feed_forward(self.feed_forward_residual.prepare(x), dropout)
        return self.feed_forward_residual(x, y, dropout)

    def init_cache(
        self,
        memory: Float[Array, "B S D"],
        mask: Bool[Array, "B 1 1 S"],
        groups: int,
        group_beams: int,
        length: int,
    ) -> LayerCache:
        """An empty cache of self-attention, and the memory's keys and values with their mask."""
        return LayerCache(
            self.self_attention.init_cache(groups, group_beams, length, memory.dtype),
            KeyValueCache.of(*self.cross_attention.keys_values(memory, memory)),
            mask,
        )

    def step(
        self,
        x: Float[Array, "B _ D"],
        cache: LayerCache,
        index: Int[Array, ""],
        self_mask: Bool[Array, "BG 1 K C"],
        positions: PositionTerm = NO_POSITIONS,
    ) -> tuple[Float[Array, "B _ D"], LayerCache]:
        """Apply the layer to target position `index` of every beam, as `__call__` does to its row.

        The beams of a sentence act as query positions over one copy of its keys. In self-attention
        these are the keys of all K beams of a group, and the mask selects each hypothesis's slots.
        """
        groups, _, group_beams, _ = self_mask.shape
        y = self.self_attention_residual.prepare(x).reshape(groups, group_beams, -1)  # [BG, K, D]
        y, written = self.self_attention.step(y, cache.self_attention, index, self_mask, positions)
        x = self.self_attention_residual(x, y.reshape(x.shape))
        y = self.cross_attention_residual.prepare(x)
        y = self.cross_attention.attend_cached(y, cache.cross_attention, cache.cross_mask)
        x = self.cross_attention_residual(x, y)
        y = self.feed_forward(self.feed_forward_residual.prepare(x))
        return self.feed_forward_residual(x, y), cache.replace(self_attention=written)


class Stack(nn.Module):
    """L identical layers (paper 3.1), their position scheme, and for pre-norm a final norm."""

    config: TransformerConfig
    side = "encoder"
    layer_class = EncoderLayer

    def setup(self) -> None:
        """Declare the layers, whose parameters are ``layer_0``, ``layer_1``, ..."""
        self.layer = self.make_layers()
        self.position_scheme = SCHEMES[self.config.positions](self.config, self.side)
        norm = NORMS[self.config.norm_kind](self.config.norm_epsilon)
        self.final_norm = norm if self.config.norm == "pre" else lambda x: x

    def make_layers(self) -> list[nn.Module]:
        """The layers that have parameters: with `model.shared_layers` one, applied L times."""
        config = self.config
        layer_class = REMAT[config.remat](self.layer_class)
        return [
            layer_class(config)
            for _ in range(1 if config.shared_layers else config.depth(self.side))
        ]

    @property
    def layers(self) -> list[nn.Module]:
        """The L layers in the order of their application."""
        return [*self.layer] * (self.config.depth(self.side) // len(self.layer))

    def with_timestep(self, x: Float[Array, "B T D"], number: int) -> Float[Array, "B T D"]:
        """The output of layer `number`, plus the encoding of the next layer's number if asked for.

        The embedding adds the encoding of the first layer.
        """
        depth = self.config.depth(self.side)
        if not self.config.timestep_encoding or number == depth:
            return x
        return x + timestep_encodings(self.config, depth)[number].astype(x.dtype)

    def relative(
        self,
        mask: Bool[Array, "#B 1 #T S"] | None,
        query_positions: Int[Array, "*#B #T"],
        key_positions: Int[Array, "*#B S"],
    ) -> tuple[Bool[Array, "#B 1 #T S"] | None, PositionTerm]:
        """What positions do in self-attention: the mask within the window, and the scheme's term.

        Without `model.attention_window` the mask is unchanged.
        """
        size = self.config.attention_window
        if size is not None:
            mask = both(mask, neighborhood_mask(query_positions, key_positions, size))
        return mask, self.position_scheme(query_positions, key_positions)

    def step(
        self, x: Float[Array, "B _ D"], cache: DecodeCache
    ) -> tuple[Float[Array, "B _ D"], tuple[LayerCache, ...]]:
        """Compute one target position of every beam, in a stack whose layers have a `step`."""
        mask, positions = self.relative(cache.self_mask(), cache.index[None], cache.key_positions())
        caches = []
        layers = zip(self.layers, cache.layers, strict=True)
        for number, (layer, layer_cache) in enumerate(layers, 1):
            x, layer_cache = layer.step(x, layer_cache, cache.index, mask, positions)
            x = self.with_timestep(x, number)
            caches.append(layer_cache)
        return self.final_norm(x), tuple(caches)


class Encoder(Stack):
    """The stack on the left of figure 1."""

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "#B 1 #S S"] | None,
        position_ids: Int[Array, "*#B S"],
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        """From the embedded source to the memory."""
        mask, positions = self.relative(mask, position_ids, position_ids)
        x = tap(self, "residual", x)
        for number, layer in enumerate(self.layers, 1):
            x = self.with_timestep(layer(x, mask, positions, dropout), number)
            x = tap(self, "residual", x)
        return self.final_norm(x)


class Decoder(Stack):
    """The stack on the right of figure 1, whose layers also attend to the memory."""

    side = "decoder"
    layer_class = DecoderLayer

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        self_mask: Bool[Array, "#B 1 #T T"] | None,
        cross_mask: Bool[Array, "#B 1 #T S"],
        position_ids: Int[Array, "*#B T"],
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """From the embedded target to the input of the output map."""
        self_mask, positions = self.relative(self_mask, position_ids, position_ids)
        x = tap(self, "residual", x)
        for number, layer in enumerate(self.layers, 1):
            x = layer(x, memory, self_mask, cross_mask, positions, dropout)
            x = tap(self, "residual", self.with_timestep(x, number))
        return self.final_norm(x)

    def init_cache(
        self, memory: Float[Array, "B S D"], mask: Bool[Array, "B 1 1 S"], *sizes: int
    ) -> tuple[LayerCache, ...]:
        """The cache of every layer."""
        return tuple(layer.init_cache(memory, mask, *sizes) for layer in self.layers)


class Transformer(DecodingModel):
    """The complete model, a `protocol.Model`.

    By default one embedding table serves the target, the logits and, with a shared vocabulary, the
    source (paper 3.4).
    """

    config: TransformerConfig
    encoder_class = Encoder
    decoder_class = Decoder

    def setup(self) -> None:
        """The embedding and the two stacks."""
        self.embedding = Embedding(self.config)
        self.encoder = self.encoder_class(self.config)
        self.decoder = self.decoder_class(self.config)

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
        """Predict the token after each position of `target_in`; see `protocol.Model`."""
        memory = self.encode(source, segments=source_segments, train=train, example_ids=example_ids)
        self_mask, cross_mask = None, self.source_mask(source)[:, None, None]  # [B, 1, 1, S]
        if target_segments is not None:
            self_mask = packed_mask(target_segments, target_segments)  # [B, 1, T, T]
            cross_mask = packed_mask(target_segments, source_segments)  # [B, 1, T, S]
        position_ids, positions = self.sentence_positions(target_in.shape[1], target_segments)
        dropout = example_ids_of(len(target_in), train, example_ids)
        x = self.embedding.embed(target_in, positions, "target", dropout)
        x = self.decoder(x, memory, self_mask, cross_mask, position_ids, dropout)
        return self.embedding.logits(x)

    def encode(
        self,
        source: Source,
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        """The memory: one vector for every source position."""
        mask = self.source_mask(source)  # [B, S]
        position_ids, positions = self.sentence_positions(mask.shape[1], segments)
        dropout = example_ids_of(len(mask), train, example_ids)
        mask = mask[:, None, None] if segments is None else packed_mask(segments, segments)
        return self.encoder(
            self.embed_source(source, positions, dropout), mask, position_ids, dropout
        )

    def embed_source(
        self,
        source: Source,
        positions: Float[Array, "*#B #S D"],
        dropout: Int[Array, " B"] | None,
    ) -> Float[Array, "B S D"]:
        """The input of the encoder; a model whose source is not text overrides this."""
        return self.embedding.embed(source, positions, "source", dropout)

    def init_cache(
        self,
        memory: Float[Array, "B S D"],
        source: Source,
        num_beams: int,
        length: int,
        num_groups: int = 1,
    ) -> DecodeCache:
        """Create the cache of a search; see `protocol.Model`.

        Cross-attention keys and values are computed here, once. In self-attention every beam reads
        the keys of its complete group.
        """
        mask = self.source_mask(source)[:, None, None]  # [B, 1, 1, S]
        sizes = (len(memory) * num_groups, num_beams // num_groups, length)
        return DecodeCache.of(self.decoder.init_cache(memory, mask, *sizes), sizes, num_groups)

    @nn.nowrap
    def describe(self) -> Description:
        """All three kinds of attention and both residual streams can be captured."""
        config = self.config
        encoder, decoder = (
            AttentionSize(config.depth(side), config.heads(side)) for side in ("encoder", "decoder")
        )
        return Description(
            d_model=config.d_model,
            attention={"encoder": encoder, "decoder": decoder, "cross": decoder},
            residual_layers={"encoder": encoder.layers, "decoder": decoder.layers},
            forward_flops=lambda b, s, t: b * flops.forward_flops(config, s, t),
        )


protocol.register(TransformerConfig, Transformer)
