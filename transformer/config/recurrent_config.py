# SPDX-License-Identifier: Apache-2.0
"""Config of the recurrent encoder-decoder (Sutskever, Bahdanau and Luong, 2014 and 2015)."""

import dataclasses
from typing import ClassVar, Literal

from transformer.config.model_config import Layers, ModelConfig, Tied, Width
from transformer.fields import Length, Rate


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """A recurrent encoder and decoder, with or without attention between them.

    The defaults are the sizes of Bahdanau et al. (2015). Embeddings and states have one width.
    """

    family: Literal["recurrent"] = "recurrent"
    cell: Literal["gru", "lstm", "gru_reset_before"] = "gru"
    """``gru`` is that of PyTorch and cuDNN; ``gru_reset_before`` that of Cho et al. (2014)."""
    num_layers: Layers = 1
    d_model: Width = 1000
    """Width of the embeddings, and of the states of each layer and direction."""
    encoder_direction: Literal["both", "forward", "backward"] = "both"
    """``both``: bidirectional. ``backward`` reads the source from its end, which is the reversed
    source of Sutskever et al. (2014, section 3.3).
    """
    attention: Literal["additive", "none", "dot", "general", "concat"] = "additive"
    """``additive``: that of Bahdanau et al., before the decoder's cell. ``dot``, ``general`` and
    ``concat``: those of Luong et al. (2015), after it. ``none``: the decoder starts from the
    encoder's last state and sees nothing else of the source (Sutskever et al. 2014).
    """
    local_window: Length | None = None
    """Local-p attention: the positions at most this far from a predicted one (Luong et al. 2015,
    who use 10); default: all positions.
    """
    input_feeding: bool = False
    """The decoder also reads the previous attentional vector (Luong et al. 2015, section 3.3)."""
    tied_embeddings: Tied = "all"
    """Which of the source embedding, the target embedding and the output map share one table:
    ``all`` of them, two of them, or, as in the papers, ``none``. A separate source vocabulary
    always has a separate table.
    """
    output_bias: bool = False
    """A bias of the logits."""
    embedding_scale: ClassVar[str] = "tokens"
    """See `TransformerConfig.embedding_scale`."""
    dropout: Rate = 0.0
    """On the embeddings, between layers and on the decoder's output; never from one time step to
    the next (Zaremba et al. 2014).
    """
    dropout_generator: Literal["threefry", "hash"] = "threefry"
    """Random bits of dropout: JAX's own, or a faster hash (`transformer/nn/dropout.py`)."""

    def validate(self) -> None:
        """Check that the attention fits the encoder and the options."""
        super().validate()
        if self.encoder_direction == "both":
            must = (
                "'general' or 'concat' with model.encoder_direction='both', whose states are wider"
            )
            self.require(self.attention != "dot", "attention", must)
        if self.attention in ("none", "additive"):
            after = "with model.attention='dot', 'general' or 'concat'"
            self.require(not self.input_feeding, "input_feeding", f"False, except {after}")
            self.require(self.local_window is None, "local_window", f"left out, except {after}")
        self.require_tables(self.tied_embeddings)

    @property
    def memory_width(self) -> int:
        """Width of the encoder's states: that of both directions together."""
        return self.d_model * (2 if self.encoder_direction == "both" else 1)
