# SPDX-License-Identifier: Apache-2.0
"""Config of the convolutional encoder-decoder (Gehring et al. 2017)."""

import dataclasses
from typing import Literal

from transformer.config.model_config import Layers, ModelConfig, Width
from transformer.fields import Length, Positive, Rate


@dataclasses.dataclass(frozen=True)
class ConvolutionalConfig(ModelConfig):
    """ "Convolutional Sequence to Sequence Learning" (Gehring et al. 2017).

    The defaults are the paper's model for WMT'16 English-Romanian (section 4.2). Embeddings and
    hidden states have one width.
    """

    family: Literal["convolutional"] = "convolutional"
    num_layers: Layers = 20
    encoder_layers: Layers | None = None
    """If it differs from num_layers."""
    decoder_layers: Layers | None = None
    d_model: Width = 512
    kernel_width: Positive = 3
    """k, the inputs that one convolution reads; odd, so that the encoder's windows are centered."""
    max_positions: Length = 1024
    """Length of the tables of learned positions (section 3.1)."""
    dropout: Rate = 0.1
    """On the embeddings, on the input of every convolution and on the decoder's output (4.2)."""
    dropout_generator: Literal["threefry", "hash"] = "threefry"
    """Random bits of dropout: JAX's own, or a faster hash (`transformer/nn/dropout.py`)."""

    def validate(self) -> None:
        """Check that the width of the kernels is odd."""
        super().validate()
        self.require(self.kernel_width % 2 == 1, "kernel_width", "odd")

    def check_length(self, length: int) -> None:
        """Check that the tables of learned positions reach `length`."""
        self.require_positions(length)

    def depth(self, side: str) -> int:
        """L of the ``encoder`` or the ``decoder``."""
        return getattr(self, f"{side}_layers") or self.num_layers
