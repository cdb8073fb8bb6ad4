# SPDX-License-Identifier: Apache-2.0
"""The encoder-only classifier: the encoder, pooling, and a linear layer over the labels.

A label is a target of one token. EOS follows it with certainty, so a search returns the most
probable label and a score is its log-probability. EOS has no part in the loss
(`ClassifierConfig.predicts_eos`).
"""

import flax.linen as nn
import flax.struct
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Int, wide
from transformer.config import ClassifierConfig
from transformer.models import protocol
from transformer.models.flops import encoder_flops, logits_flops
from transformer.models.protocol import AttentionSize, Description
from transformer.models.transformer import Encoder
from transformer.nn.dropout import example_ids_of
from transformer.nn.embedding import Embedding

NEVER = -100.0
"""The logit of a token with probability 0: its exponential, 4e-44, is lost beside 1 in every dtype.

A larger number would round the losses that it is added to, though with weight 0.
"""


@flax.struct.dataclass
class LabelCache:
    """The state of decoding: the labels' logits, and the next target position."""

    label_logits: Float[Array, "B 1 V"]
    index: Int[Array, ""]


def mean_pool(x: Float[Array, "B S D"], mask: Bool[Array, "B S"]) -> Float[Array, "B D"]:
    """The mean over the positions that the mask selects, in float32 or wider; 0 if it is empty."""
    total = jnp.where(mask[..., None], x.astype(wide(x.dtype)), 0).sum(1)  # [B, D]
    return (total / jnp.maximum(mask.sum(1), 1)[:, None]).astype(x.dtype)


class Classifier(protocol.TextModel):
    """See `protocol.Model`; the memory is the pooled vector [B,D]."""

    config: ClassifierConfig

    def setup(self) -> None:
        """The embedding, whose target table is the linear layer's kernel, and the encoder."""
        self.embedding = Embedding(self.config)
        self.encoder = Encoder(self.config)

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
        """Predict the label, then EOS, whatever `target_in` holds; see `protocol.Model`."""
        pooled = self.encode(source, segments=source_segments, train=train, example_ids=example_ids)
        return self._at(jnp.arange(target_in.shape[1]), self._label_logits(pooled))

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        example_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B D"]:
        """One vector for the complete source, by `model.pooling`.

        Raises:
          InputError: for packed rows.
        """
        protocol.require_unpacked(self.config, segments)
        mask, length = self.source_mask(source), source.shape[1]
        dropout = example_ids_of(len(source), train, example_ids)
        positions = self.embedding.positions(length)  # [S, D]
        x = self.embedding.embed(source, positions, "source", dropout)
        x = self.encoder(x, mask[:, None, None], jnp.arange(length), dropout)
        return x[:, 0] if self.config.pooling == "first" else mean_pool(x, mask)

    def _label_logits(self, pooled: Float[Array, "B D"]) -> Float[Array, "B 1 V"]:
        return self.embedding.logits(pooled[:, None])

    def _at(
        self, positions: Int[Array, " T"], label_logits: Float[Array, "B 1 V"]
    ) -> Float[Array, "B T V"]:
        """The logits at target positions: of the label at position 0, then of EOS alone."""
        is_eos = jnp.arange(label_logits.shape[-1]) == self.config.eos_id  # [V]
        eos_logits = jnp.where(is_eos, 0.0, NEVER).astype(label_logits.dtype)
        return jnp.where((positions == 0)[:, None], label_logits, eos_logits)

    def init_cache(
        self,
        memory: Float[Array, "B D"],
        source: Int[Array, "B S"],
        num_beams: int,
        length: int,
        num_groups: int = 1,
    ) -> LabelCache:
        """The labels' logits, computed once."""
        return LabelCache(self._label_logits(memory), jnp.zeros((), jnp.int32))

    def step(
        self, tokens: Int[Array, "B K"], cache: LabelCache
    ) -> tuple[Float[Array, "B K V"], LabelCache]:
        """The label's logits at position 0, then EOS; the same for all beams."""
        logits = self._at(cache.index[None], cache.label_logits)  # [B, 1, V]
        shape = (*tokens.shape, logits.shape[-1])
        return jnp.broadcast_to(logits, shape), cache.replace(index=cache.index + 1)

    @staticmethod
    def reorder(cache: LabelCache, parents: Int[Array, "B K"]) -> LabelCache:
        """All beams of a sentence share its logits."""
        return cache

    @staticmethod
    def grow(cache: LabelCache, length: int) -> LabelCache:
        """No target position is kept."""
        return cache

    @staticmethod
    def take(cache: LabelCache, sentences: Int[Array, "_"]) -> LabelCache:
        """Select these sentences of the batch."""
        return cache.replace(label_logits=cache.label_logits[sentences])

    @nn.nowrap
    def describe(self) -> Description:
        """Self-attention of the encoder and its residual stream can be captured."""
        config = self.config
        layers, heads = config.depth("encoder"), config.heads("encoder")
        return Description(
            d_model=config.d_model,
            attention={"encoder": AttentionSize(layers, heads)},
            residual_layers={"encoder": layers},
            forward_flops=lambda b, s, t: b * (encoder_flops(config, s) + logits_flops(config, 1)),
        )


protocol.register(ClassifierConfig, Classifier)
