# SPDX-License-Identifier: Apache-2.0
"""The head view: tokens of rows and columns, connected by lines for the weights of each head."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.views.attention_kinds import LabeledAttention, label_text
from transformer.inspection.views.view import View, figure_labels


def head_view(
    attention: tuple[LabeledAttention, ...],
    *,
    layer: int = -1,
    heads: Sequence[int] | None = None,
    row: int = 0,
    normalize: str = "keys",
    title: str = "Attention, head by head",
) -> View:
    """A view of one sentence pair's attention; the arguments are what it shows first.

    Args:
      attention: From `attention_kinds` or `trace_attention_kinds`; the first kind is shown first.
      layer: Layer index, which may be negative.
      heads: Head indices; None for all.
      row: Row index.
      normalize: ``keys`` shows attention, whose rows sum to one over the keys. ``heads`` shows
        each weight divided by the sum over the layer's heads, as the Illustrated Transformer's
        figures do: shares between heads, not a distribution over tokens.
      title: Title of the page.

    Raises:
      InputError: The layer, a head or the row does not exist.
    """
    if normalize not in ("keys", "heads"):
        raise InputError(f"normalize is {normalize!r}; choose 'keys' or 'heads'")
    first = attention[0]
    layer, row, chosen = first.layer_index(layer), first.row_index(row), first.head_indices(heads)
    shows = "attention" if normalize == "keys" else "shares between heads, not attention"
    return View(
        script="headView",
        title=title,
        description=(
            f"{first.title}, layer {first.first_layer + layer + 1}, row {row + 1} "
            f"({label_text(first.rows[row])}), all heads: {shows}."
        ),
        static=figures.plot_token_heads(
            first.weights[layer],
            row,
            figure_labels(first.rows),
            figure_labels(first.columns),
            normalize=normalize,
        ),
        options={
            "layer": layer,
            "heads": chosen,
            "row": row,
            "sharesBetweenHeads": normalize == "heads",
        },
        attention=(attention,),
        height=min(1000, 400 + 48 * max(len(first.rows), len(first.columns))),
    )


def shares_between_heads(weights: Float[np.ndarray, "N T S"]) -> Float[np.ndarray, "N T S"]:
    """Each weight divided by its sum over the heads; 0 where every head's weight is 0."""
    total = weights.sum(0)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
