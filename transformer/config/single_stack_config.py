# SPDX-License-Identifier: Apache-2.0
"""Configs of the model families that are one stack of the Transformer: a decoder or an encoder."""

import dataclasses
from typing import ClassVar, Literal

from transformer.config.model_config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(TransformerConfig):
    """The decoder-only language model: P(target), without a source.

    The fields are the Transformer's. `decoder_layers` and `decoder_heads` are those of the one
    stack, like `num_layers` and `num_heads`.
    """

    reads_source: ClassVar[bool] = False

    family: Literal["language_model"] = "language_model"

    def validate(self) -> None:
        """Check that no field describes an encoder."""
        super().validate()
        for name in ("encoder_layers", "encoder_heads", "source_vocab_size"):
            absent = getattr(self, name) is None
            self.require(absent, name, "left out: a language model has no encoder and no source")
        known = self.tied_embeddings in ("all", "source_target")
        must = "'all', or 'source_target' for an output map with a kernel: there is no source"
        self.require(known, "tied_embeddings", must)


@dataclasses.dataclass(frozen=True)
class ClassifierConfig(TransformerConfig):
    """The encoder-only classifier: P(label | source), where the target is one token, the label.

    The fields are the Transformer's, and the pooling. The labels are the target vocabulary. With a
    shared vocabulary the weights of the linear layer are the embedding table; with separate
    vocabularies they are a separate table.
    """

    packable: ClassVar[bool] = False
    max_target_tokens: ClassVar[int | None] = 2
    predicts_eos: ClassVar[bool] = False

    family: Literal["classifier"] = "classifier"
    pooling: Literal["mean", "first"] = "mean"
    """From the encoder's output to one vector: the mean over the tokens of the source, or the first
    token's vector.
    """

    def validate(self) -> None:
        """Check that no field describes a decoder."""
        super().validate()
        for name in ("decoder_layers", "decoder_heads"):
            absent = getattr(self, name) is None
            self.require(absent, name, "left out: a classifier has no decoder")
        known = self.tied_embeddings != "none"
        must = "another value, such as 'target_output': no target is embedded"
        self.require(known, "tied_embeddings", must)
