# SPDX-License-Identifier: Apache-2.0
"""The residual connection around every sub-layer (paper 3.1, 5.4)."""

import flax.linen as nn

from transformer.arrays import Array, Float, Int
from transformer.config import TransformerConfig
from transformer.nn.dropout import apply_dropout
from transformer.nn.norm import NORMS
from transformer.nn.taps import tap


class Residual(nn.Module):
    """The residual connection and layer norm around one sub-layer.

    post: LayerNorm(x + Dropout(Sublayer(x))), as in the paper.
    pre: x + Dropout(Sublayer(LayerNorm(x))).

    A layer calls ``y = residual.prepare(x)``, then ``x = residual(x, sublayer(y))``.
    """

    config: TransformerConfig

    def setup(self) -> None:
        """The norm of `model.norm_kind`."""
        self.norm = NORMS[self.config.norm_kind](self.config.norm_epsilon)

    def prepare(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The input of the sub-layer: x, which pre-norm normalizes."""
        return self.norm(x) if self.config.norm == "pre" else x

    def __call__(
        self,
        x: Float[Array, "B T D"],
        output: Float[Array, "B T D"],
        dropout: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Add the sub-layer's output to x; post-norm normalizes the sum."""
        x = x + apply_dropout(self, output, self.config.dropout, dropout)
        return tap(self, "output", self.norm(x) if self.config.norm == "post" else x)
