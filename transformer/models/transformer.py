# SPDX-License-Identifier: Apache-2.0
"""The encoder-decoder Transformer (paper 3, figure 1).

The calls that every model family offers, whoever uses them (trainer, beam search, inspection)::

    __call__(source, target_in)       -> logits, trace         training and teacher forcing
    encode(source)                    -> memory, trace
    init_cache(memory, source, K, M)  -> cache                 cross-attention keys and values, once
    step(tokens, cache)               -> logits, cache         one target position of every beam
    reorder(cache, parents)           -> cache                 the beams that survived
    grow(cache, M)                    -> cache                 room for more positions
    take(cache, sentences)            -> cache                 the sentences that go on
    rounded(params)                   -> params                what many calls need not cast again
"""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Params
from transformer.config import TransformerConfig
from transformer.decoding.shortlist import Shortlist
from transformer.nn.cache import LayerCache, rows_of
from transformer.nn.capture import (
    Capture,
    Interventions,
    StackInterventions,
    StackTrace,
    Trace,
    patch,
    stack_layers,
)
from transformer.nn.dropout import Rows
from transformer.nn.layers import DecoderLayer, Embedding, EncoderLayer, LayerNorm, LayerTrace
from transformer.nn.masks import ancestry_mask, causal_mask, packed_mask, padding_mask
from transformer.nn.positions import within_segments


@flax.struct.dataclass
class DecodeCache:
    """Everything the decoder needs to go on: value in, value out."""

    layers: tuple[LayerCache, ...]
    source_mask: Bool[Array, "B 1 1 S"]
    ancestry: Int[Array, "R K M"]
    """`ancestry[r, k, m]`: which of a row's beams computed the keys and values that hypothesis k
    has at position m. (A row: see `caches.LayerCache`.)
    """
    index: Int[Array, ""]
    """The target position that the next step computes."""
    shortlist: Shortlist | None = None
    """The sub-words that may follow, if not all may ..."""
    table: Float[Array, "V D"] | None = None
    """... and their rows of the embedding table, in the compute dtype."""


class Encoder(nn.Module):
    """A stack of L identical layers (paper 3.1)."""

    config: TransformerConfig

    def setup(self) -> None:
        """The layers, and for pre-norm the norm after the last of them."""
        self.layer = [EncoderLayer(self.config) for _ in range(self.config.depth("encoder"))]
        if self.config.norm == "pre":
            self.final_norm = LayerNorm(self.config.norm_epsilon)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "#B 1 #S S"],
        *,
        rows: Rows | None = None,
        capture: Capture = "none",
        interventions: StackInterventions | None = None,
    ) -> tuple[Float[Array, "B S D"], StackTrace | None]:
        """From embedded source to memory."""
        x = patch(x, interventions, 0)
        residual, traces = [x], []
        for index, layer in enumerate(self.layer):
            gates = None if interventions is None else interventions.self_heads[index]
            x, trace = layer(x, mask, rows=rows, capture=capture, gates=gates)
            x = patch(x, interventions, index + 1)
            residual.append(x)
            traces.append(trace)
        if self.config.norm == "pre":
            x = self.final_norm(x)
        return x, _stack_trace(traces, residual, capture)


class Decoder(nn.Module):
    """A stack of L identical layers that also attend to the memory (paper 3.1)."""

    config: TransformerConfig

    def setup(self) -> None:
        """The layers, and for pre-norm the norm after the last of them."""
        self.layer = [DecoderLayer(self.config) for _ in range(self.config.depth("decoder"))]
        if self.config.norm == "pre":
            self.final_norm = LayerNorm(self.config.norm_epsilon)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        self_mask: Bool[Array, "#B 1 #T T"],
        cross_mask: Bool[Array, "#B 1 #T S"],
        *,
        rows: Rows | None = None,
        capture: Capture = "none",
        interventions: StackInterventions | None = None,
    ) -> tuple[Float[Array, "B T D"], StackTrace | None]:
        """From embedded target and memory to what the logits are made of."""
        x = patch(x, interventions, 0)
        residual, traces = [x], []
        for index, layer in enumerate(self.layer):
            gates = {}
            if interventions is not None:
                gates = {
                    "self_gates": interventions.self_heads[index],
                    "cross_gates": interventions.cross_heads[index],
                }
            x, trace = layer(x, memory, self_mask, cross_mask, rows=rows, capture=capture, **gates)
            x = patch(x, interventions, index + 1)
            residual.append(x)
            traces.append(trace)
        if self.config.norm == "pre":
            x = self.final_norm(x)
        return x, _stack_trace(traces, residual, capture)

    def init_cache(
        self, memory: Float[Array, "B S D"], beams: int, length: int, groups: int
    ) -> tuple[LayerCache, ...]:
        """Every layer's cache."""
        return tuple(layer.init_cache(memory, beams, length, groups) for layer in self.layer)

    def step(
        self, x: Float[Array, "B K D"], cache: DecodeCache
    ) -> tuple[Float[Array, "B K D"], tuple[LayerCache, ...]]:
        """One target position of every beam."""
        layers, self_mask = [], ancestry_mask(cache.ancestry, cache.index)
        for layer, layer_cache in zip(self.layer, cache.layers, strict=True):
            x, layer_cache = layer.step(x, layer_cache, cache.index, self_mask, cache.source_mask)
            layers.append(layer_cache)
        if self.config.norm == "pre":
            x = self.final_norm(x)
        return x, tuple(layers)


class Transformer(nn.Module):
    """The whole model; one embedding table serves source, target and logits (paper 3.4)."""

    config: TransformerConfig

    def setup(self) -> None:
        """The shared embedding and the two stacks."""
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
        rows: Rows | None = None,
        capture: Capture = "none",
        interventions: Interventions | None = None,
    ) -> tuple[Float[Array, "B T V"], Trace | None]:
        """Logits for the token that follows each position of `target_in`, all positions at once.

        Args:
          source: token ids, 0 where padded.
          target_in: the target moved right by one (`positions.shift_right`).
          source_segments: where several sentences share a row, which of them each token belongs to,
            from 1, and 0 where padded. None: one sentence a row.
          target_segments: the same for the target; both are given or neither.
          train: with dropout; needs an rng named ``dropout``. Static.
          rows: in training, the numbers that the rows have in a larger batch of which these are a
            part, so that they drop out as they would in it; 0, 1, ... unless given.
          capture: what the trace holds. Static.
          interventions: gates and patches, the same for every row.

        Returns:
          the logits in the compute dtype, and the trace (None when capture is ``none``).
        """
        numbers = _numbers(source, train, rows)
        own = (
            (None, None)
            if interventions is None
            else (interventions.encoder, interventions.decoder)
        )
        memory, encoder_trace = self.encode(
            source,
            segments=source_segments,
            train=train,
            rows=rows,
            capture=capture,
            interventions=own[0],
        )
        self_mask, cross_mask = causal_mask(target_in.shape[1]), padding_mask(source)
        if target_segments is not None:
            self_mask = self_mask & packed_mask(target_segments, target_segments)
            cross_mask = packed_mask(target_segments, source_segments)
        positions = self._positions(target_in, target_segments)
        x, decoder_trace = self.decoder(
            self.embedding.embed(target_in, positions, rows=numbers),
            memory,
            self_mask,
            cross_mask,
            rows=numbers,
            capture=capture,
            interventions=own[1],
        )
        logits = self.embedding.logits(x)
        if capture == "none":
            return logits, None
        if capture == "full":
            decoder_trace = decoder_trace.replace(
                embedded=self.embedding.tokens(target_in), positions=positions
            )
        full_logits = logits if capture == "full" else None
        return logits, Trace(encoder_trace, decoder_trace, full_logits)

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        rows: Rows | None = None,
        capture: Capture = "none",
        interventions: StackInterventions | None = None,
    ) -> tuple[Float[Array, "B S D"], StackTrace | None]:
        """The memory: one vector for every source position."""
        numbers = _numbers(source, train, rows)
        positions = self._positions(source, segments)
        memory, trace = self.encoder(
            self.embedding.embed(source, positions, rows=numbers),
            padding_mask(source) if segments is None else packed_mask(segments, segments),
            rows=numbers,
            capture=capture,
            interventions=interventions,
        )
        if capture == "full":
            trace = trace.replace(embedded=self.embedding.tokens(source), positions=positions)
        return memory, trace

    def _positions(
        self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"] | None
    ) -> Float[Array, "*#B T D"]:
        """The positional table's row for each token; packed sentences each count from 0."""
        table = self.embedding.positions(tokens.shape[1])
        return table if segments is None else table[within_segments(segments)]

    def init_cache(
        self,
        memory: Float[Array, "B S D"],
        source: Int[Array, "B S"],
        beams: int,
        length: int,
        groups: int = 1,
        shortlist: Shortlist | None = None,
    ) -> DecodeCache:
        """Room for `length` target tokens of `beams` hypotheses a sentence.

        Args:
          groups: into how many, of equal size, the beams are divided that never go on from a beam
            of another group. For each beam, self-attention reads the keys of its whole group.
          shortlist: steps read and predict sub-words by their places in it, and no others.
        """
        table = None
        if shortlist is not None:
            table = self.embedding.table[shortlist.ids].astype(memory.dtype)
        return DecodeCache(
            layers=self.decoder.init_cache(memory, beams, length, groups),
            source_mask=padding_mask(source),
            ancestry=jnp.zeros((len(memory) * groups, beams // groups, length), jnp.int32),
            index=jnp.zeros((), jnp.int32),
            shortlist=shortlist,
            table=table,
        )

    def step(
        self, tokens: Int[Array, "B K"], cache: DecodeCache
    ) -> tuple[Float[Array, "B K V"], DecodeCache]:
        """Reads one token a beam, the one at position `cache.index`, and predicts the next."""
        beams, length = cache.ancestry.shape[1:]
        position = jax.lax.dynamic_slice_in_dim(self.embedding.positions(length), cache.index, 1)
        itself = jnp.arange(beams, dtype=jnp.int32)[:, None]
        now = jnp.arange(length) == cache.index
        cache = cache.replace(ancestry=jnp.where(now, itself, cache.ancestry))
        shortlist = cache.shortlist
        if shortlist is not None:
            tokens = shortlist.ids[tokens]
        x, layers = self.decoder.step(self.embedding.embed(tokens, position), cache)
        logits = self.embedding.logits(x, cache.table)
        if shortlist is not None:
            logits = shortlist.limit(logits)
        return logits, cache.replace(layers=layers, index=cache.index + 1)

    @staticmethod
    def reorder(cache: DecodeCache, parents: Int[Array, "B K"]) -> DecodeCache:
        """Beam k goes on from what beam ``parents[b, k]``, of its group, was.

        Keys and values stay where they are: beam k takes over which of them are its parent's.
        """
        beams = cache.ancestry.shape[1]
        within_group = parents.reshape(-1, beams) % beams
        return cache.replace(
            ancestry=jnp.take_along_axis(cache.ancestry, within_group[..., None], axis=1)
        )

    @staticmethod
    def grow(cache: DecodeCache, length: int) -> DecodeCache:
        """The cache with room for `length` target tokens; a step takes time for all of it."""
        _, beams, before = cache.ancestry.shape
        more = ((0, 0), (0, 0), (0, length - before))
        return cache.replace(
            layers=tuple(layer.grow(length * beams) for layer in cache.layers),
            ancestry=jnp.pad(cache.ancestry, more),
        )

    @staticmethod
    def take(cache: DecodeCache, sentences: Int[Array, " B"]) -> DecodeCache:
        """The cache of these sentences alone."""
        batch, shortlist = len(cache.source_mask), cache.shortlist
        return cache.replace(
            layers=tuple(layer.take(sentences) for layer in cache.layers),
            source_mask=cache.source_mask[sentences],
            ancestry=rows_of(cache.ancestry, sentences, batch),
            shortlist=None if shortlist is None else shortlist.take(sentences),
        )

    @nn.nowrap
    def rounded(self, params: Params) -> Params:
        """The parameters with every kernel and table in the compute dtype, as `layers.project`
        casts them.

        The model computes the same with either; with these it need not cast them at every call.
        Biases, and the scales of layer norms, stay float32, in which they are used.
        """
        dtype = self.config.compute_dtype
        if dtype == "float32":
            return params

        def cast(path: tuple, leaf: Array) -> Array:
            name = path[-1].key
            return leaf if name == "scale" or "bias" in name else leaf.astype(dtype)

        return jax.tree_util.tree_map_with_path(cast, params)


def _numbers(tokens: Int[Array, "B T"], train: bool, rows: Rows | None) -> Rows | None:
    """The numbers of the rows when training, None otherwise."""
    if not train:
        return None
    return jnp.arange(tokens.shape[0]) if rows is None else rows


def _stack_trace(
    traces: list[LayerTrace], residual: list[Array], capture: Capture
) -> StackTrace | None:
    """What a stack's layers captured, with a leading axis L."""
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
