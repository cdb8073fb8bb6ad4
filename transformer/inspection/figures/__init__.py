# SPDX-License-Identifier: Apache-2.0
"""Figures of a model's inner workings, drawn with matplotlib. Only this package imports it.

figure = plot_attention(weights, query_tokens, key_tokens)
save(figure, "attention.svg")
print(figure.description)

A figure takes arrays without a batch axis, one label a token, and the vocabulary in the order of
its ids. Arguments that do not match (shapes, attention weights that do not sum to 1, the number of
tokens, indices) raise `InputError`. A figure is not shown and not in pyplot's list of open figures;
a notebook shows a figure that is the last value of a cell, with its description as alternative
text. Layers, heads and positions are counted from 0 in arguments and from 1 in figures.
"""

from transformer.inspection.figures.architecture import plot_architecture, plot_black_box
from transformer.inspection.figures.attention_maps import (
    plot_alignment,
    plot_attention,
    plot_attention_grid,
    plot_token_heads,
)
from transformer.inspection.figures.curves import plot_curves
from transformer.inspection.figures.memory_plots import plot_memory
from transformer.inspection.figures.parts import read_predict
from transformer.inspection.figures.position_plots import plot_positional_encoding
from transformer.inspection.figures.prediction_plots import (
    plot_logit_lens,
    plot_output_distribution,
    plot_output_layer,
    plot_target_distributions,
)
from transformer.inspection.figures.residual_plots import (
    plot_residual_flow,
    plot_residual_norm,
    plot_vector_flow,
)
from transformer.inspection.figures.search_plots import plot_beam_tree, plot_decoding
from transformer.inspection.figures.step_plots import (
    plot_attention_matrices,
    plot_attention_steps,
    plot_head_assembly,
    plot_multi_head,
)
from transformer.inspection.figures.style import DescribedFigure, save, to_svg
from transformer.inspection.figures.table_plots import (
    plot_attribution,
    plot_head_table,
    plot_masks,
    plot_patch_map,
    plot_vectors,
)

__all__ = [
    "DescribedFigure",
    "plot_alignment",
    "plot_architecture",
    "plot_attention",
    "plot_attention_grid",
    "plot_attention_matrices",
    "plot_attention_steps",
    "plot_attribution",
    "plot_beam_tree",
    "plot_black_box",
    "plot_curves",
    "plot_decoding",
    "plot_head_assembly",
    "plot_head_table",
    "plot_logit_lens",
    "plot_masks",
    "plot_memory",
    "plot_multi_head",
    "plot_output_distribution",
    "plot_output_layer",
    "plot_patch_map",
    "plot_positional_encoding",
    "plot_residual_flow",
    "plot_residual_norm",
    "plot_target_distributions",
    "plot_token_heads",
    "plot_vector_flow",
    "plot_vectors",
    "read_predict",
    "save",
    "to_svg",
]
