# SPDX-License-Identifier: Apache-2.0
"""Static figures of a model's inside, drawn with matplotlib."""

from transformer.inspection.figures.attention import (
    plot_alignment,
    plot_attention,
    plot_attention_grid,
    plot_token_heads,
)
from transformer.inspection.figures.parts import read_predict
from transformer.inspection.figures.style import Picture, describe, save
