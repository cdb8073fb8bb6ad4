# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer (paper 3, figure 1)."""

from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.config import TransformerConfig
from transformer.models import base
from transformer.models.base import AttentionSize, Description
from transformer.nn.cache import LayerCache, take_sentences
from transformer.nn.capture import (
    Capture,
    Interventions,
    StackInterventions,
    StackTrace,
    Trace,
    patch,
    stack_layers,
)
from transformer.nn.embedding import Embedding, timestep_encodings
from transformer.nn.gather import divmod_of_indices, gather
from transformer.nn.layers import GATES, NORMS, DecoderLayer, EncoderLayer, LayerTrace
from transformer.nn.masks import (
    ancestry_mask,
    neighborhood_mask,
    packed_mask,
    padding_mask,
    restrict,
)
from transformer.nn.parameters import cast_params
from transformer.nn.positions import SCHEMES, positions_within_segments

Layer = EncoderLayer | DecoderLayer
Results = TypeVar("Results")


@flax.struct.dataclass
class DecodeCache:
    """The state of cached decoding."""

    layers: tuple[LayerCache, ...]
    source_mask: Bool[Array, "B 1 1 S"]
    ancestry: Int[Array, "BG K M"]
    """`ancestry[g, k, m]`: the beam of group g that computed the keys and values of hypothesis k at
    position m.
    """
    index: Int[Array, ""]
    """The target position that the next step computes."""


class Stack(nn.Module):
    """L identical layers (paper 3.1), their position scheme, and for pre-norm a final norm."""

    config: TransformerConfig
    side = "encoder"
    layer_class = EncoderLayer

    def setup(self) -> None:
        """Declare the layers, whose parameters are ``layer_0``, ``layer_1``, ...

        With `model.shared_layers` there is one, which is applied L times.
        """
        config = self.config
        distinct = 1 if config.shared_layers else config.depth(self.side)
        self.layer = [self.layer_class(config) for _ in range(distinct)]
        self.position_scheme = SCHEMES[config.positions](config, self.side)
        if config.norm == "pre":
            self.final_norm = NORMS[config.norm_kind](config.norm_epsilon)

    @property
    def layers(self) -> list[Layer]:
        """The L layers in the order of their application."""
        return [*self.layer] * (self.config.depth(self.side) // len(self.layer))

    def run(
        self,
        x: Float[Array, "B T D"],
        *layer_inputs: Array | None,
        position_ids: Int[Array, "*#B T"],
        capture: Capture = "none",
        interventions: StackInterventions | None = None,
        **mode: Any,
    ) -> tuple[Float[Array, "B T D"], StackTrace | None]:
        """Apply all layers to the residual stream `x`.

        Args:
          x: the embedded tokens.
          *layer_inputs: further inputs of every layer: masks, and in the decoder the memory.
          position_ids: position of each token in its sentence, for relative schemes.
          capture: what the trace holds.
          interventions: gates and patches.
          **mode: `train` and `example_ids`, for dropout.
        """
        positions = self.position_scheme(position_ids, position_ids)
        x = patch(x, interventions, 0)
        residual, traces = [x], []

        def apply(layer: Layer, x: Array, changes: dict) -> tuple[Array, LayerTrace]:
            options = {"positions": positions, "capture": capture, **changes, **mode}
            return layer(x, *layer_inputs, **options)

        if not (mode.get("train") or self.is_initializing()):
            apply = self.traced_once(apply, x)
        for index, layer in enumerate(self.layers):
            changes = {} if interventions is None else interventions.of_layer(index)
            x, trace = apply(layer, x, changes)
            x = patch(self.with_timestep(x, index + 1), interventions, index + 1)
            residual.append(x)
            traces.append(trace)
        return self.normalize(x), _stack_trace(traces, residual, capture)

    def traced_once(self, call: Callable[..., Results], x: Array) -> Callable[..., Results]:
        """Return `call` such that JAX traces it once for all L layers, which have the same shapes.

        XLA inlines the layers, so results do not change. Dropout differs between layers and must
        not be traced once.

        Args:
          call: a function of a layer and pytrees.
          x: the input of the stack. Outside of a JAX transformation `call` is returned as it is,
            because compiling a layer would take longer than computing it.
        """
        if not isinstance(x, jax.core.Tracer):
            return call
        layer = self.layer_class(self.config, parent=None)
        traced = jax.jit(lambda variables, *inputs: layer.apply(variables, *inputs, method=call))
        return lambda layer, *inputs: traced(layer.variables, *inputs)

    def with_timestep(self, x: Float[Array, "B T D"], index: int) -> Float[Array, "B T D"]:
        """The input of layer `index` from the output of the layer before, if it is not the last.

        The embedding adds the encoding of layer 0.
        """
        depth = self.config.depth(self.side)
        if not self.config.timestep_encoding or index == depth:
            return x
        return x + timestep_encodings(self.config, depth)[index].astype(x.dtype)

    def restricted(
        self, mask: Bool[Array, "#B 1 #T T"] | None, position_ids: Int[Array, "*#B T"]
    ) -> Bool[Array, "#B 1 #T T"] | None:
        """The mask of self-attention within `model.attention_window`, if there is one."""
        size = self.config.attention_window
        if size is None:
            return mask
        neighborhood = neighborhood_mask(position_ids, position_ids, size)
        return neighborhood if mask is None else restrict(mask, neighborhood)

    def normalize(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Apply the final norm, which only pre-norm stacks have."""
        return self.final_norm(x) if self.config.norm == "pre" else x


class Encoder(Stack):
    """The stack on the left of figure 1."""

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "#B 1 #S S"],
        position_ids: Int[Array, "*#B S"],
        **options: Any,
    ) -> tuple[Float[Array, "B S D"], StackTrace | None]:
        """From the embedded source to the memory; the options are those of `run`."""
        mask = self.restricted(mask, position_ids)
        return self.run(x, mask, position_ids=position_ids, **options)


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
        **options: Any,
    ) -> tuple[Float[Array, "B T D"], StackTrace | None]:
        """From the embedded target to the input of the output map; the options are `run`'s.

        Every layer's self-attention is causal besides what `self_mask` forbids.
        """
        self_mask = self.restricted(self_mask, position_ids)
        return self.run(x, memory, self_mask, cross_mask, position_ids=position_ids, **options)

    def init_cache(
        self, memory: Float[Array, "B S D"], num_beams: int, length: int, num_groups: int
    ) -> tuple[LayerCache, ...]:
        """The cache of every layer."""
        return tuple(
            layer.init_cache(memory, num_beams, length, num_groups) for layer in self.layers
        )

    def step(
        self, x: Float[Array, "B _ D"], cache: DecodeCache
    ) -> tuple[Float[Array, "B _ D"], tuple[LayerCache, ...]]:
        """Compute one target position of every beam."""
        _, num_beams, length = cache.ancestry.shape
        self_mask = ancestry_mask(cache.ancestry, cache.index)  # [BG, 1, K, C]
        # Slot m K + k of the cache holds a key of position m.
        key_positions = jnp.arange(length * num_beams) // num_beams  # [C]
        if self.config.attention_window is not None:
            size = self.config.attention_window
            self_mask = self_mask & neighborhood_mask(cache.index[None], key_positions, size)
        positions = self.position_scheme(cache.index[None], key_positions)
        layers = []

        def apply(layer: DecoderLayer, x: Array, layer_cache: LayerCache) -> tuple:
            return layer.step(x, layer_cache, cache.index, self_mask, cache.source_mask, positions)

        step = self.traced_once(apply, x)
        for index, (layer, layer_cache) in enumerate(zip(self.layers, cache.layers, strict=True)):
            x, layer_cache = step(layer, x, layer_cache)
            x = self.with_timestep(x, index + 1)
            layers.append(layer_cache)
        return self.normalize(x), tuple(layers)


class Transformer(nn.Module):
    """The complete model, a `base.Model`.

    By default one embedding table serves the target, the logits and, with a shared vocabulary, the
    source (paper 3.4).
    """

    config: TransformerConfig

    def setup(self) -> None:
        """The embedding and the two stacks."""
        self.embedding = Embedding(self.config)
        self.encoder = Encoder(self.config)
        self.decoder = Decoder(self.config)

    def __call__(
        self,
        source: Int[Array, "B S"],
        target_in: Int[Array, "B T"],
        *,
        source_segments: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
        capture: Capture = "none",
        interventions: Interventions | None = None,
    ) -> tuple[Float[Array, "B T V"], Trace | None]:
        """Predict the token after each position of `target_in`; see `base.Model`."""
        options = {"train": train, "example_ids": example_ids, "capture": capture}
        memory, encoder_trace = self.encode(
            source,
            segments=source_segments,
            interventions=None if interventions is None else interventions.encoder,
            **options,
        )
        self_mask, cross_mask = None, self._padding_mask(source)  # [B, 1, 1, S]
        if target_segments is not None:
            self_mask = packed_mask(target_segments, target_segments)  # [B, 1, T, T]
            cross_mask = packed_mask(target_segments, source_segments)  # [B, 1, T, S]
        position_ids, positions = self._positions(target_in, target_segments)
        x, decoder_trace = self.decoder(
            self.embedding.embed(target_in, positions, train=train, example_ids=example_ids),
            memory,
            self_mask,
            cross_mask,
            position_ids,
            interventions=None if interventions is None else interventions.decoder,
            **options,
        )
        logits = self.embedding.logits(x)
        if capture == "none":
            return logits, None
        if capture == "full":
            decoder_trace = decoder_trace.replace(
                embedded=self.embedding.tokens(target_in), positions=positions
            )
        return logits, Trace(encoder_trace, decoder_trace, logits if capture == "full" else None)

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
        capture: Capture = "none",
        interventions: StackInterventions | None = None,
    ) -> tuple[Float[Array, "B S D"], StackTrace | None]:
        """The memory: one vector for every source position."""
        position_ids, positions = self._positions(source, segments)
        mode = {"train": train, "example_ids": example_ids}
        memory, trace = self.encoder(
            self.embedding.embed(source, positions, "source", **mode),
            self._padding_mask(source) if segments is None else packed_mask(segments, segments),
            position_ids,
            capture=capture,
            interventions=interventions,
            **mode,
        )
        if capture == "full":
            trace = trace.replace(
                embedded=self.embedding.tokens(source, "source"), positions=positions
            )
        return memory, trace

    def _padding_mask(self, tokens: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
        return padding_mask(tokens, self.config.pad_id)

    def _positions(
        self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"] | None
    ) -> tuple[Int[Array, "*#B T"], Float[Array, "*#B T D"]]:
        """The position of each token in its sentence, from 0, and its absolute encoding."""
        length = tokens.shape[1]
        table = self.embedding.positions(length)  # [T, D]
        if segments is None:
            return jnp.arange(length), table
        position_ids = positions_within_segments(segments)  # [B, T]
        return position_ids, table[position_ids]

    def init_cache(
        self,
        memory: Float[Array, "B S D"],
        source: Int[Array, "B S"],
        num_beams: int,
        length: int,
        num_groups: int = 1,
    ) -> DecodeCache:
        """Create the cache of a search; see `base.Model`.

        Cross-attention keys and values are computed here, once. In self-attention every beam reads
        the keys of its complete group.
        """
        groups = len(memory) * num_groups
        return DecodeCache(
            layers=self.decoder.init_cache(memory, num_beams, length, num_groups),
            source_mask=self._padding_mask(source),
            ancestry=jnp.zeros((groups, num_beams // num_groups, length), jnp.int32),
            index=jnp.zeros((), jnp.int32),
        )

    def step(
        self, tokens: Int[Array, "B K"], cache: DecodeCache
    ) -> tuple[Float[Array, "B K V"], DecodeCache]:
        """Read the token at position `cache.index` of every beam and predict the next."""
        num_beams, length = cache.ancestry.shape[1:]
        position = jax.lax.dynamic_slice_in_dim(self.embedding.positions(length), cache.index, 1)
        # At this position, every hypothesis has the keys and values that its beam computes.
        beam = jnp.arange(num_beams, dtype=jnp.int32)[:, None]  # [K, 1]
        is_current = jnp.arange(length) == cache.index  # [M]
        cache = cache.replace(ancestry=jnp.where(is_current, beam, cache.ancestry))
        x, layers = self.decoder.step(self.embedding.embed(tokens, position), cache)
        return self.embedding.logits(x), cache.replace(layers=layers, index=cache.index + 1)

    @staticmethod
    def reorder(cache: DecodeCache, parents: Int[Array, "B K"]) -> DecodeCache:
        """Let beam k continue the hypothesis of beam ``parents[b, k]``, which is in its group.

        Keys and values stay where they are: only the ancestry is copied.
        """
        num_beams = cache.ancestry.shape[1]
        _, within_group = divmod_of_indices(parents.reshape(-1, num_beams), num_beams)  # [BG, K]
        return cache.replace(ancestry=gather(cache.ancestry, within_group[..., None]))

    @staticmethod
    def grow(cache: DecodeCache, length: int) -> DecodeCache:
        """Extend the capacity to `length` target positions."""
        _, num_beams, before = cache.ancestry.shape
        return cache.replace(
            layers=tuple(layer.grow(length * num_beams) for layer in cache.layers),
            ancestry=jnp.pad(cache.ancestry, ((0, 0), (0, 0), (0, length - before))),
        )

    @staticmethod
    def take(cache: DecodeCache, sentences: Int[Array, "_"]) -> DecodeCache:
        """Select these sentences of the batch."""
        batch = len(cache.source_mask)
        return cache.replace(
            layers=tuple(layer.take(sentences) for layer in cache.layers),
            source_mask=cache.source_mask[sentences],
            ancestry=take_sentences(cache.ancestry, sentences, batch),
        )

    @nn.nowrap
    def cast_params(self, params: Params) -> Params:
        """Cast kernels and embeddings to the compute dtype."""
        return cast_params(params, base.parameter_metadata(self), self.config.compute_dtype)

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
            forward_flops=lambda b, s, t: b * forward_flops(config, s, t),
        )


def forward_flops(config: TransformerConfig, source: int, target: int) -> int:
    """Floating-point operations of the matmuls of a forward pass over one sentence pair.

    A matmul of [m, k] and [k, n] counts as 2 m k n. For S and T positions, padding included:

    - attention from t to s positions: projections 2 D N (t d_k + s d_k + s d_v + t d_v), scores
      and weighted sum 2 t s N (d_k + d_v), masked scores included, because they are computed;
    - of these, keys and values have `model.num_kv_heads` instead of N heads in the projections, and
      self-attention with ``model.positions="shaw"`` has scores and weighted sum twice;
    - feed-forward network: 4 t D F, or 6 t D F if it is gated;
    - logits: 2 T D V.

    An encoder layer has one attention from S to S. A decoder layer has one from T to T and one from
    T to S. Norms, softmax, embeddings and the optimizer are not counted, as is usual.

    Args:
      config: the sizes.
      source: S.
      target: T.
    """
    decoder = decoder_flops(config, source, target)
    return encoder_flops(config, source) + decoder + logits_flops(config, target)


def encoder_flops(config: TransformerConfig, source: int) -> int:
    """The encoder's share of `forward_flops`."""
    layer = _self_attention_flops(config, "encoder", source) + _feed_forward_flops(config, source)
    return config.depth("encoder") * layer


def decoder_flops(config: TransformerConfig, source: int | None, target: int) -> int:
    """The decoder's share of `forward_flops`; without cross-attention if `source` is None."""
    layer = _self_attention_flops(config, "decoder", target)
    layer += _feed_forward_flops(config, target)
    if source is not None:
        layer += _attention_flops(config, "decoder", target, source)
    return config.depth("decoder") * layer


def logits_flops(config: TransformerConfig, target: int) -> int:
    """The output map's share of `forward_flops`."""
    return 2 * target * config.d_model * config.vocab_size


def _self_attention_flops(config: TransformerConfig, side: str, positions: int) -> int:
    vectors = config.heads(side) * sum(config.head_widths(side))
    relative = 2 * positions**2 * vectors if config.positions == "shaw" else 0
    return _attention_flops(config, side, positions, positions) + relative


def _attention_flops(config: TransformerConfig, side: str, queries: int, keys: int) -> int:
    heads, head_size = config.heads(side), sum(config.head_widths(side))
    rows = queries * heads + keys * config.kv_heads(side)
    projections = 2 * config.d_model * rows * head_size
    return projections + 2 * queries * keys * heads * head_size


def _feed_forward_flops(config: TransformerConfig, positions: int) -> int:
    kernels = 3 if config.activation in GATES else 2
    return 2 * kernels * positions * config.d_model * config.d_ff


def _stack_trace(
    traces: list[LayerTrace], residual: list[Array], capture: Capture
) -> StackTrace | None:
    """The traces of a stack's layers, with a leading axis L."""
    if capture == "none":
        return None
    trace = StackTrace(
        self_attention=stack_layers([trace.self_attention for trace in traces]),
        cross_attention=stack_layers([trace.cross_attention for trace in traces]),
    )
    if capture == "weights":
        return trace
    return trace.replace(
        feed_forward=jnp.stack([trace.feed_forward for trace in traces]),
        sublayers=jnp.stack([jnp.stack(trace.sublayers) for trace in traces]),
        residual=jnp.stack(residual),
    )


base.register(TransformerConfig, Transformer)
