# SPDX-License-Identifier: Apache-2.0
"""The recurrent encoder-decoder, from Sutskever et al. (2014) to Luong et al. (2015).

`RecurrentConfig.attention` chooses among three models:

- ``none``: "Sequence to Sequence Learning with Neural Networks" (Sutskever et al. 2014). The last
  state of the encoder is the first of the decoder.
- ``additive``: "Neural Machine Translation by Jointly Learning to Align and Translate" (Bahdanau et
  al. 2015, appendix A). The previous state s' of the decoder attends to the source, and the
  context enters the cell: ``c = attend(s')``, ``s = cell(E y, c; s')``. The output is
  ``maxout(U [s; E y; c])``.
- ``dot``, ``general``, ``concat``: "Effective Approaches to Attention-based Neural Machine
  Translation" (Luong et al. 2015). The new state attends: ``s = cell(E y; s')``,
  ``c = attend(s)``. The output is the attentional vector ``tanh(W [c; s])`` (equation 5).

Deviations from the papers: embeddings are as wide as states, and tied unless
`RecurrentConfig.tied_embeddings` says otherwise. The maxout layer is therefore as wide as the
states, where Bahdanau et al. have half of it, and it reads the new state where their appendix reads
the previous one. With two directions, the last state of the backward encoder starts each layer of
the decoder, as in their A.2.2; an LSTM's cell state starts in the same way. Recurrent kernels are
initially orthogonal, as theirs are, others follow Glorot, and the bias of an LSTM's forget gate is
initially 1.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, Params, gather
from transformer.config import RecurrentConfig
from transformer.models import base
from transformer.models.base import AttentionSize, Description
from transformer.models.recurrent.cells import CELLS
from transformer.models.recurrent.decoder import (
    Attended,
    DecoderState,
    RecurrentDecoder,
    SourceKeys,
)
from transformer.models.recurrent.layers import EncodedSource, RecurrentEncoder
from transformer.nn.capture import (
    AttentionTrace,
    Capture,
    Interventions,
    StackInterventions,
    StackTrace,
    Trace,
    stack_layers,
)
from transformer.nn.dropout import apply_dropout
from transformer.nn.embedding import Side, TokenEmbedding
from transformer.nn.parameters import cast_params


@flax.struct.dataclass
class RecurrentCache:
    """The state of cached decoding. It has no target positions, so it does not grow."""

    state: DecoderState
    source: SourceKeys | None


class Recurrent(nn.Module):
    """The complete model, a `base.Model`."""

    config: RecurrentConfig

    def setup(self) -> None:
        """The embedding, the encoder and the decoder."""
        self.embedding = TokenEmbedding(self.config)
        self.encoder = RecurrentEncoder(self.config)
        self.decoder = RecurrentDecoder(self.config)

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
        mode = {"train": train, "example_ids": example_ids}
        memory, _ = self.encode(source, segments=source_segments, **mode)
        gates = None if interventions is None else interventions.decoder.cross_heads  # [1, 1]
        source_keys = self.decoder.source_keys(
            memory, self._mask(source), None if gates is None else gates[0, 0]
        )
        x, attended = self.decoder(
            self._embed(target_in, **mode),
            self.decoder.initial(memory),
            source_keys,
            **mode,
        )
        logits = self.embedding.logits(apply_dropout(self, x, self.config.dropout, **mode))
        if capture == "none" or attended is None:
            return logits, None
        return logits, _trace(attended, logits if capture == "full" else None)

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
        capture: Capture = "none",
        interventions: StackInterventions | None = None,
    ) -> tuple[EncodedSource, None]:
        """The states of the encoder; there is nothing to capture in it.

        Raises:
          InputError: for packed rows.
        """
        base.require_unpacked(self.config, segments)
        mode = {"train": train, "example_ids": example_ids}
        return self.encoder(self._embed(source, "source", **mode), self._mask(source), **mode), None

    def _mask(self, tokens: Int[Array, "B S"]) -> Bool[Array, "B S"]:
        return tokens != self.config.pad_id

    def _embed(
        self, tokens: Int[Array, "B T"], side: Side = "target", **mode: Any
    ) -> Float[Array, "B T D"]:
        return apply_dropout(self, self.embedding.tokens(tokens, side), self.config.dropout, **mode)

    def init_cache(
        self,
        memory: EncodedSource,
        source: Int[Array, "B S"],
        num_beams: int,
        length: int,
        num_groups: int = 1,
    ) -> RecurrentCache:
        """Create the cache of a search; see `base.Model`. Beams share the keys of a sentence."""

        def for_beams(part: Float[Array, "B 1 D"]) -> Float[Array, "B K D"]:
            return jnp.repeat(part, num_beams, axis=1)

        state = jax.tree.map(for_beams, self.decoder.initial(memory))
        return RecurrentCache(state, self.decoder.source_keys(memory, self._mask(source)))

    def step(
        self, tokens: Int[Array, "B K"], cache: RecurrentCache
    ) -> tuple[Float[Array, "B K V"], RecurrentCache]:
        """Read the next token of every beam and predict the one after it."""
        x, state = self.decoder.step(self.embedding.tokens(tokens), cache.state, cache.source)
        return self.embedding.logits(x), cache.replace(state=state)

    @staticmethod
    def reorder(cache: RecurrentCache, parents: Int[Array, "B K"]) -> RecurrentCache:
        """Copy the state of beam ``parents[b, k]`` to beam k."""

        def move(part: Float[Array, "B K D"]) -> Float[Array, "B K D"]:
            return gather(part, parents[..., None])

        return cache.replace(state=jax.tree.map(move, cache.state))

    @staticmethod
    def grow(cache: RecurrentCache, length: int) -> RecurrentCache:
        """Return the cache, whose size does not depend on the number of target positions."""
        return cache

    @staticmethod
    def take(cache: RecurrentCache, sentences: Int[Array, "_"]) -> RecurrentCache:
        """Select these sentences of the batch."""
        return jax.tree.map(lambda leaf: leaf[sentences], cache)

    @nn.nowrap
    def cast_params(self, params: Params) -> Params:
        """Cast kernels and embeddings to the compute dtype."""
        return cast_params(params, base.parameter_metadata(self), self.config.compute_dtype)

    @nn.nowrap
    def describe(self) -> Description:
        """One head of cross-attention if there is attention; no residual streams."""
        config = self.config
        return Description(
            d_model=config.d_model,
            attention={} if config.attention == "none" else {"cross": AttentionSize(1, 1)},
            residual_layers={},
            forward_flops=lambda b, s, t: b * forward_flops(config, s, t),
        )


def forward_flops(config: RecurrentConfig, source: int, target: int) -> int:
    """Floating-point operations of the matmuls of a forward pass over one sentence pair.

    A matmul of [m, k] and [k, n] counts as 2 m k n. For S and T positions, a layer of cells has
    2 (inputs + D) P at each position. The kernels of the attention and of the output layer count
    once for each position, the weighted sum 2 S T A, and dot products 2 S T D; additive scores are
    no matmul.

    Args:
      config: the sizes.
      source: S.
      target: T.
    """
    width, memory = config.d_model, config.memory_width
    gates, layers = CELLS[config.cell].gates * width, config.num_layers

    def cells(input_width: int) -> int:
        return 2 * (input_width + width) * gates

    encoder = source * (memory // width) * (cells(width) + (layers - 1) * cells(memory))
    decoder = target * layers * cells(width) + 2 * target * width * config.vocab_size
    if config.encoder_direction == "both":
        decoder += 2 * layers * CELLS[config.cell].state_size * width * width
    if config.attention == "none":
        return encoder + decoder
    attention = 2 * source * target * memory
    if config.attention in ("dot", "general"):
        attention += 2 * source * target * width
    if config.attention != "dot":
        attention += 2 * source * memory * width
    if config.attention in ("additive", "concat"):
        attention += 2 * target * width * width
    if config.local_window is not None:
        attention += 2 * target * width * width
    if config.attention == "additive":
        attention += 2 * target * (memory * gates + (2 * width + memory) * 2 * width)
    else:
        attention += 2 * target * (memory + width) * width
        attention += 2 * target * width * gates if config.input_feeding else 0
    return encoder + decoder + attention


def _trace(attended: Attended, logits: Array | None) -> Trace:
    """The attention as one layer with one head; everything if logits are given."""
    arrays = (attended.weights, attended.scores, attended.context)
    weights, scores, context = (array[:, None] for array in arrays)  # [B, 1, T, ...]
    attention = AttentionTrace(weights=weights)
    if logits is not None:
        attention = attention.replace(scores=scores, z=context)
    return Trace(StackTrace(None), StackTrace(None, stack_layers([attention])), logits)
