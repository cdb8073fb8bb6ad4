# SPDX-License-Identifier: Apache-2.0
"""The convolutional encoder-decoder: "Convolutional Sequence to Sequence Learning".

Gehring et al. 2017; numbers in parentheses are its sections. Encoder and decoder are stacks of
gated convolutions, and every layer of the decoder attends to the source. The paper multiplies the
sum of a residual connection by sqrt(0.5). As in the authors' code (fairseq), so are the sums in
queries and values and the sum with the attention's output.

Deviations: embeddings and hidden states have one width, `d_model`; and the scales of the weight
normalization begin with the expected norm of the drawn kernels, not with the norm of each.
"""

import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import normal

from transformer.arrays import Array, Bool, Float, Int, gather
from transformer.config import ConvolutionalConfig
from transformer.models import protocol
from transformer.models.convolutional.convolution import (
    HALF,
    GatedConvolution,
    NormalizedLinear,
    causal_padding,
    centered_padding,
    dot_product_attention,
    scale_gradient,
)
from transformer.models.convolutional.flops import forward_flops
from transformer.models.protocol import AttentionSize, Description
from transformer.nn.dropout import apply_dropout, example_ids_of
from transformer.nn.embedding import table_rows
from transformer.nn.parameters import declare
from transformer.nn.taps import tap


@flax.struct.dataclass
class EncodedSource:
    """The encoder's output, which every layer of the decoder attends to."""

    key: Float[Array, "B S D"]
    """z, the output of the last layer."""
    value: Float[Array, "B S D"]
    """z plus the embedding of the token, which keeps what is at each position (3.3)."""


@flax.struct.dataclass
class WindowCache:
    """The state of cached decoding."""

    windows: tuple[Float[Array, "B K _ D"], ...]
    """For each layer and beam, the last k - 1 inputs of its convolution, the latest last."""
    memory: EncodedSource
    source_mask: Bool[Array, "B S"]
    index: Int[Array, ""]
    """The target position that the next step computes."""
    length: int = flax.struct.field(pytree_node=False)
    """Capacity in target positions. Only the table of positions limits it."""


class InputEmbedding(nn.Module):
    """Embeddings of the tokens and of the positions of one side, added (3.1)."""

    config: ConvolutionalConfig
    side: str

    def setup(self) -> None:
        """Two tables, drawn with standard deviation 0.1 (3.5)."""
        config, draw = self.config, normal(0.1)
        is_separate = self.side == "source" and config.source_vocab_size is not None
        axes = ("source_vocab" if is_separate else "vocab", "embed")
        shape = (config.vocab_size_of(self.side), config.d_model)
        self.table = declare(self, "table", "embedding", axes, draw, shape)
        axes, shape = ("position", "embed"), (config.max_positions, config.d_model)
        self.positions = declare(self, "positions", "embedding", axes, draw, shape)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        position_ids: Int[Array, " #T"],
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Dropout(token + position), in the compute dtype."""
        config = self.config
        vectors = table_rows(self.table, tokens)  # [B, T, D]
        positions = jnp.take(self.positions, position_ids, axis=0)  # [T, D]
        if config.compute_dtype == "bfloat16":
            vectors, positions = vectors.astype(jnp.bfloat16), positions.astype(jnp.bfloat16)
        return apply_dropout(self, vectors + positions, config.dropout, dropout)


class ConvolutionalEncoder(nn.Module):
    """L gated convolutions between two linear maps (3.2)."""

    config: ConvolutionalConfig

    @nn.compact
    def __call__(
        self,
        embedded: Float[Array, "B S D"],
        mask: Bool[Array, "B S"],
        dropout: Int[Array, " B"] | None = None,
    ) -> EncodedSource:
        """Encode the embedded source; padding is zero wherever a convolution reads it."""
        config, rate, real = self.config, self.config.dropout, mask[..., None]  # [B, S, 1]
        x = NormalizedLinear(config.d_model, rate, name="linear_in")(embedded)
        for index in range(config.depth("encoder")):
            y = jnp.where(real, x, jnp.zeros_like(x))
            y = apply_dropout(self, y, rate, dropout)
            y = centered_padding(y, config.kernel_width)
            y = GatedConvolution(config.kernel_width, rate, name=f"layer_{index}")(y)
            x = (x + y) * HALF
        z = NormalizedLinear(config.d_model, name="linear_out")(x)
        if dropout is not None:
            # Every layer of the decoder adds its gradient (3.4).
            z = scale_gradient(z, 1 / config.depth("decoder"))
        return EncodedSource(key=z, value=(z + embedded) * HALF)


class CrossAttention(nn.Module):
    """Attention to the source, which has no parameters besides those of the queries."""

    def __call__(
        self, query: Float[Array, "B T D"], memory: EncodedSource, source_mask: Bool[Array, "B S"]
    ) -> Float[Array, "B T D"]:
        """The weighted sum of the values."""
        tap_here = functools.partial(tap, self)
        return dot_product_attention(query, memory.key, memory.value, source_mask, tap_here)


class ConvolutionalDecoderLayer(nn.Module):
    """A causal gated convolution, then attention to the source (3.3)."""

    config: ConvolutionalConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        window: Float[Array, "_ inputs D"],
        embedded: Float[Array, "B T D"],
        memory: EncodedSource,
        source_mask: Bool[Array, "B S"],
    ) -> Float[Array, "B T D"]:
        """h = GLU(window * W + b) + x, then c + h with c the attention of W h + b + g.

        Args:
          x: the input of the layer, which is added to the convolution's output.
          window: the same with dropout, after its k - 1 predecessors. In cached decoding T counts
            beams, and each has its window of k inputs in a row.
          embedded: g, the embedded target.
          memory: the encoded source.
          source_mask: true where the source is not padding.
        """
        config = self.config
        convolution = GatedConvolution(config.kernel_width, config.dropout, name="convolution")
        h = (convolution(window).reshape(x.shape) + x) * HALF
        query = (NormalizedLinear(config.d_model, name="query")(h) + embedded) * HALF
        context = CrossAttention(name="cross_attention")(query, memory, source_mask)
        return (h + context) * HALF


class ConvolutionalDecoder(nn.Module):
    """L layers between two linear maps."""

    config: ConvolutionalConfig

    def setup(self) -> None:
        """The layers, whose parameters are ``layer_0``, ``layer_1``, ..., and the linear maps."""
        config = self.config
        self.linear_in = NormalizedLinear(config.d_model, config.dropout)
        self.layer = [ConvolutionalDecoderLayer(config) for _ in range(config.depth("decoder"))]
        self.linear_out = NormalizedLinear(config.d_model)

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        memory: EncodedSource,
        source_mask: Bool[Array, "B S"],
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Apply all layers to all target positions at once."""
        x, rate = self.linear_in(embedded), self.config.dropout
        for layer in self.layer:
            window = causal_padding(apply_dropout(self, x, rate, dropout), self.config.kernel_width)
            x = layer(x, window, embedded, memory, source_mask)
        return apply_dropout(self, self.linear_out(x), rate, dropout)

    def step(
        self, embedded: Float[Array, "B K D"], cache: WindowCache
    ) -> tuple[Float[Array, "B K D"], tuple[Float[Array, "B K _ D"], ...]]:
        """Compute one target position of every beam; returns it and the new windows.

        In the convolution the beams are rows of a batch, in attention they are query positions over
        one copy of the sentence's keys.
        """
        x, windows = self.linear_in(embedded), []
        for layer, window in zip(self.layer, cache.windows, strict=True):
            window = jnp.concatenate([window, x[:, :, None]], axis=2)  # [B, K, E, D]
            rows = window.reshape(-1, *window.shape[2:])  # [BK, E, D]
            x = layer(x, rows, embedded, cache.memory, cache.source_mask)
            windows.append(window[:, :, 1:])
        return self.linear_out(x), tuple(windows)


class Convolutional(protocol.TextModel):
    """The complete model, a `protocol.Model`."""

    config: ConvolutionalConfig

    def setup(self) -> None:
        """Embeddings of both sides, the two stacks, and the map to the logits."""
        config = self.config
        self.source_embedding = InputEmbedding(config, "source")
        self.target_embedding = InputEmbedding(config, "target")
        self.encoder = ConvolutionalEncoder(config)
        self.decoder = ConvolutionalDecoder(config)
        self.output = NormalizedLinear(
            config.vocab_size, config.dropout, ("embed", "vocab"), is_wide=True
        )

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
        memory = self.encode(source, segments=source_segments, train=train, example_ids=example_ids)
        dropout = example_ids_of(len(target_in), train, example_ids)
        positions = self._positions(target_in.shape[1])
        embedded = self.target_embedding(target_in, positions, dropout)
        return self.output(self.decoder(embedded, memory, self.source_mask(source), dropout))

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> EncodedSource:
        """The keys and values of the source.

        Raises:
          InputError: for packed rows, because a convolution reads across their sentences.
        """
        protocol.require_unpacked(self.config, segments)
        dropout = example_ids_of(len(source), train, example_ids)
        embedded = self.source_embedding(source, self._positions(source.shape[1]), dropout)
        return self.encoder(embedded, self.source_mask(source), dropout)

    def _positions(self, length: int) -> Int[Array, " T"]:
        """0, 1, ... as far as the tables of positions reach."""
        self.config.check_length(length)
        return jnp.arange(length)

    def init_cache(
        self,
        memory: EncodedSource,
        source: Int[Array, "B S"],
        num_beams: int,
        length: int,
        num_groups: int = 1,
    ) -> WindowCache:
        """Create the cache of a search; see `protocol.Model`. Windows begin with zeros."""
        batch, _, width = memory.key.shape
        shape = (batch, num_beams, self.config.kernel_width - 1, width)
        empty = jnp.zeros(shape, memory.key.dtype)
        return WindowCache(
            windows=(empty,) * self.config.depth("decoder"),
            memory=memory,
            source_mask=self.source_mask(source),
            index=jnp.zeros((), jnp.int32),
            length=length,
        )

    def step(
        self, tokens: Int[Array, "B K"], cache: WindowCache
    ) -> tuple[Float[Array, "B K V"], WindowCache]:
        """Read the token at position `cache.index` of every beam and predict the next."""
        self.config.check_length(cache.length)
        embedded = self.target_embedding(tokens, cache.index[None])
        x, windows = self.decoder.step(embedded, cache)
        return self.output(x), cache.replace(windows=windows, index=cache.index + 1)

    @staticmethod
    def reorder(cache: WindowCache, parents: Int[Array, "B K"]) -> WindowCache:
        """Let beam k continue the hypothesis of beam ``parents[b, k]``, whose windows it copies."""
        indices = parents[:, :, None, None]
        return cache.replace(windows=tuple(gather(window, indices) for window in cache.windows))

    @staticmethod
    def grow(cache: WindowCache, length: int) -> WindowCache:
        """Extend the capacity to `length` target positions; the windows keep their size."""
        return cache.replace(length=length)

    @staticmethod
    def take(cache: WindowCache, sentences: Int[Array, "_"]) -> WindowCache:
        """Select these sentences of the batch."""
        windows, memory, mask = jax.tree.map(
            lambda leaf: leaf[sentences], (cache.windows, cache.memory, cache.source_mask)
        )
        return cache.replace(windows=windows, memory=memory, source_mask=mask)

    @nn.nowrap
    def describe(self) -> Description:
        """Every layer of the decoder has one attention; no residual stream is captured."""
        config = self.config
        return Description(
            d_model=config.d_model,
            attention={"cross": AttentionSize(config.depth("decoder"), 1)},
            residual_layers={},
            forward_flops=lambda b, s, t: b * forward_flops(config, s, t),
        )
