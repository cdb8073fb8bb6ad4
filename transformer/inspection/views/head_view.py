# SPDX-License-Identifier: Apache-2.0
"""The head view: tokens of rows and columns, connected by lines for the weights of each head."""

import numpy as np
from jaxtyping import Float

from transformer.inspection import figures
from transformer.inspection.views.attention_kinds import (
    Focus,
    LabeledAttention,
    label_text,
    opening,
)
from transformer.inspection.views.view import View, figure_labels


def head_view(
    attention: tuple[LabeledAttention, ...],
    *,
    layer: int = -1,
    row: int = 0,
    focus: Focus | None = None,
    title: str = "Attention, head by head",
) -> View:
    """A view of one sentence pair's attention.

    The page can also show shares between heads, as the Illustrated Transformer's figures do: each
    weight divided by the sum over the layer's heads, not a distribution over tokens.

    Args:
      attention: From `attention_kinds` or `trace_attention_kinds`; the first kind is shown first.
      layer: Layer shown first; may be negative.
      row: Row shown first; may be negative.
      focus: The head and the rows shown first instead of `layer` and `row`. Without it, all heads
        are shown.

    Raises:
      InputError: The layer or the row does not exist.
    """
    options = opening(attention, focus, layer=layer, row=row)
    head = options.pop("head")
    options["heads"] = [] if focus is None else [head]
    first, layer = attention[options["kind"]], options["layer"]
    row = options["rows"][options["kind"]]
    labels = figure_labels(first.rows), figure_labels(first.columns)
    return View(
        script="headView",
        title=title,
        description=(
            f"{first.title}, layer {first.first_layer + layer + 1}, row {row + 1} "
            f"({label_text(first.rows[row])}): the weights of all heads."
        ),
        static=figures.plot_token_heads(first.weights[layer], row, *labels),
        options=options,
        attention=(attention,),
        height=min(1600, 640 + 48 * max(len(first.rows), len(first.columns))),
    )


def shares_between_heads(weights: Float[np.ndarray, "N T S"]) -> Float[np.ndarray, "N T S"]:
    """Each weight divided by its sum over the heads; 0 where every head's weight is 0."""
    total = weights.sum(0)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
