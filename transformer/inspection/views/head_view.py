# SPDX-License-Identifier: Apache-2.0
"""The head view: the tokens of rows and columns, and lines for the weights of each head."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from transformer.errors import InputError
from transformer.inspection.views import picture
from transformer.inspection.views.attention_data import Family
from transformer.inspection.views.view import HEAD_COLOURS, View


def head_view(
    families: tuple[Family, ...],
    *,
    layer: int = -1,
    heads: Sequence[int] | None = None,
    row: int = 0,
    normalize: str = "keys",
    title: str = "Attention, head by head",
) -> View:
    """A view of one sentence pair's attention, in which everything below can be changed.

    Args:
      families: from `families` or `families_of`; the first is shown first.
      layer: shown first, from 0, or from -1 backwards.
      heads: shown first; all if None.
      row: chosen first.
      normalize: ``keys`` shows attention, whose rows sum to one. ``heads`` shows each head's share
        of the weights that all heads of the layer have at a place, as the well-known figures of
        "it" and "animal" do: shares between heads, no distribution over words.
      title: of the page.

    Raises:
      InputError: when there is no such layer, head or row.
    """
    if normalize not in ("keys", "heads"):
        raise InputError(f"normalize is {normalize!r}; choose 'keys' or 'heads'")
    first = families[0]
    layer, row, chosen = first.layer(layer), first.row(row), first.heads(heads)
    weights = first.weights[layer]
    if normalize == "heads":
        weights = shares_between_heads(weights)
    what = "attention" if normalize == "keys" else "shares between heads, not attention"
    of = picture.joined(first.rows[row])
    numbers = ", ".join(str(head + 1) for head in chosen)
    told = (
        f"{first.title}, layer {first.since + layer + 1}, row {row + 1} ({of}), "
        f"{'head' if len(chosen) == 1 else 'heads'} {numbers}: {what}."
    )
    drawn = {str(head + 1): weights[head] for head in chosen}
    colours = [HEAD_COLOURS[head % len(HEAD_COLOURS)] for head in chosen]
    return View(
        kind="heads",
        title=title,
        told=told,
        picture=picture.token_lines(told, drawn, first.rows, first.columns, row, colours),
        options={
            "family": 0,
            "layer": layer,
            "heads": chosen,
            "row": row,
            "shares": int(normalize == "heads"),
        },
        families=(families,),
        height=min(1000, 400 + 48 * max(len(first.rows), len(first.columns))),
    )


def shares_between_heads(weights: Float[np.ndarray, "N T S"]) -> Float[np.ndarray, "N T S"]:
    """Each head's share of the weights that all heads have at a place; 0 where none has any."""
    total = weights.sum(0)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
