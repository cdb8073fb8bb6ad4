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

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, gather
from transformer.config import RecurrentConfig
from transformer.models import protocol
from transformer.models.protocol import AttentionSize, Description
from transformer.models.recurrent.decoder import (
    DecoderState,
    RecurrentDecoder,
    SourceKeys,
)
from transformer.models.recurrent.flops import forward_flops
from transformer.models.recurrent.layers import EncodedSource, RecurrentEncoder
from transformer.nn.dropout import apply_dropout, example_ids_of
from transformer.nn.embedding import Side, TokenEmbedding


@flax.struct.dataclass
class RecurrentCache:
    """The state of cached decoding. It has no target positions, so it does not grow."""

    state: DecoderState
    source: SourceKeys | None


class Recurrent(protocol.TextModel):
    """The complete model, a `protocol.Model`."""

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
    ) -> Float[Array, "B T V"]:
        """Predict the token after each position of `target_in`; see `protocol.Model`."""
        memory = self.encode(source, segments=source_segments, train=train, example_ids=example_ids)
        dropout = example_ids_of(len(target_in), train, example_ids)
        state, keys = self.decoder.initial(memory), self._source_keys(memory, source)
        x = self.decoder(self._embed(target_in, "target", dropout), state, keys, dropout)
        return self.embedding.logits(apply_dropout(self, x, self.config.dropout, dropout))

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> EncodedSource:
        """The states of the encoder.

        Raises:
          InputError: for packed rows.
        """
        protocol.require_unpacked(self.config, segments)
        dropout = example_ids_of(len(source), train, example_ids)
        embedded = self._embed(source, "source", dropout)
        return self.encoder(embedded, self.source_mask(source), dropout)

    def _source_keys(self, memory: EncodedSource, source: Int[Array, "B S"]) -> SourceKeys | None:
        return self.decoder.source_keys(memory, self.source_mask(source))

    def _embed(
        self, tokens: Int[Array, "B T"], side: Side, dropout: Int[Array, " B"] | None
    ) -> Float[Array, "B T D"]:
        embedded = self.embedding.tokens(tokens, side)
        return apply_dropout(self, embedded, self.config.dropout, dropout)

    def init_cache(
        self,
        memory: EncodedSource,
        source: Int[Array, "B S"],
        num_beams: int,
        length: int,
        num_groups: int = 1,
    ) -> RecurrentCache:
        """Create the cache of a search; see `protocol.Model`. Beams share a sentence's keys."""

        def for_beams(part: Float[Array, "B 1 D"]) -> Float[Array, "B K D"]:
            return jnp.repeat(part, num_beams, axis=1)

        state = jax.tree.map(for_beams, self.decoder.initial(memory))
        return RecurrentCache(state, self._source_keys(memory, source))

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
    def describe(self) -> Description:
        """One head of cross-attention if there is attention; no residual streams."""
        config = self.config
        return Description(
            d_model=config.d_model,
            attention={} if config.attention == "none" else {"cross": AttentionSize(1, 1)},
            residual_layers={},
            forward_flops=lambda b, s, t: b * forward_flops(config, s, t),
        )
