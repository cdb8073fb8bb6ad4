# SPDX-License-Identifier: Apache-2.0
"""Static figures of a model's inside, drawn with matplotlib, which only this package imports.

figure = plot_attention(weights, query_tokens, key_tokens)
save(figure, "attention.svg")
print(describe(figure))

Every function takes arrays that NumPy can convert, without a batch axis, and returns a figure that
is in nobody's list of open figures; nothing is shown, and nobody's style is changed. A notebook
shows a figure that is the last value of a cell, with its description as alternative text. What the
arrays must hold is checked: shapes that belong together, weights that sum to 1, as many tokens as
positions. Layers, heads and positions are counted from 0 in arguments and from 1 in figures.
"""

from transformer.inspection.figures.animation import animate_decoding
from transformer.inspection.figures.architecture import plot_architecture
from transformer.inspection.figures.attention_maps import (
    plot_alignment,
    plot_attention,
    plot_attention_grid,
    plot_token_heads,
)
from transformer.inspection.figures.beam_tree import plot_beam_tree
from transformer.inspection.figures.curves import plot_curves
from transformer.inspection.figures.decoding_plots import plot_decoding
from transformer.inspection.figures.output import plot_logit_lens, plot_output_distribution
from transformer.inspection.figures.parts import read_predict
from transformer.inspection.figures.position_plots import plot_positional_encoding
from transformer.inspection.figures.residual_plots import plot_residual_flow
from transformer.inspection.figures.spread import plot_spread
from transformer.inspection.figures.step_plots import (
    plot_attention_matrices,
    plot_attention_steps,
    plot_head_assembly,
)
from transformer.inspection.figures.style import Picture, describe, save
from transformer.inspection.figures.table_plots import (
    plot_attribution,
    plot_head_table,
    plot_masks,
    plot_patch_map,
)
from transformer.inspection.figures.vectors import plot_vectors

__all__ = [
    "Picture",
    "animate_decoding",
    "describe",
    "plot_alignment",
    "plot_architecture",
    "plot_attention",
    "plot_attention_grid",
    "plot_attention_matrices",
    "plot_attention_steps",
    "plot_attribution",
    "plot_beam_tree",
    "plot_curves",
    "plot_decoding",
    "plot_head_assembly",
    "plot_head_table",
    "plot_logit_lens",
    "plot_masks",
    "plot_output_distribution",
    "plot_patch_map",
    "plot_positional_encoding",
    "plot_residual_flow",
    "plot_spread",
    "plot_token_heads",
    "plot_vectors",
    "read_predict",
    "save",
]
