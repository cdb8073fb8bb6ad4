# SPDX-License-Identifier: Apache-2.0
"""The vectors of every token side by side: embeddings, positions, keys, a memory."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import Picture

_ABREAST = 3
"""Tables beside each other; more go below."""


@style.styled
def plot_vectors(
    vectors: Mapping[str, ArrayLike],
    tokens: Sequence[str],
    *,
    title: str = "The vector of every token",
) -> Picture:
    """Tables of numbers, a row for each token, in colours that are the same in all of them.

    Args:
      vectors: [T,D] by name; the tables may differ in D.
      tokens: T labels.
      title: above the figure.

    Raises:
      InputError: for no table, or for shapes that do not belong together.
    """
    if not vectors:
        raise InputError("vectors is empty: there is nothing to draw; give at least one, by name")
    tables = []
    for name, values in vectors.items():
        # Tables may differ in width, so each has sizes of its own.
        sizes = Sizes()
        tables.append(sizes.array(f"vectors[{name!r}]", values, "T D"))
        labels = sizes.tokens("tokens", tokens, "T")
    most = parts.largest(*tables)

    cell = min(max(3.6 / len(labels), 0.13), 0.24)
    size = min(8, 72 * cell * 0.8)
    wide, high = 2.9, cell * len(labels)
    left, gap, top = parts.label_width(labels, size) + 0.1, 0.25, 0.25
    step = high + 0.6
    columns = min(len(tables), _ABREAST)
    rows = -(-len(tables) // _ABREAST)
    picture = style.sheet(
        left + columns * (wide + gap) + 0.45,
        top + rows * step - 0.3,
        title,
        "Each row is a token's vector, each column one of its numbers; the colours mean the same "
        "in all tables.",
    )
    for number, (name, table) in enumerate(zip(vectors, tables, strict=True)):
        row, column = divmod(number, _ABREAST)
        at, here = left + column * (wide + gap), top + row * step
        ax = style.axes(picture, at, here, wide, high)
        ax.set_label(style.shown(name))
        image = parts.signed(ax, table, most)
        if column == 0:
            parts.row_labels(ax, labels, size)
        ax.set_title(style.shown(name))
        ax.set_xlabel(f"{table.shape[1]} numbers", fontsize=7.5, labelpad=2)
    parts.colour_bar(picture, image, "", left + columns * (wide + gap) - 0.1, top, high)
    told = [
        f"{style.shown(name)}: {table.shape[1]} numbers a token, lengths from "
        f"{np.linalg.norm(table, axis=-1).min():.2f} to {np.linalg.norm(table, axis=-1).max():.2f}"
        for name, table in zip(vectors, tables, strict=True)
    ]
    picture.description = f"{title}, for {len(labels)} tokens. {'; '.join(told)}."
    return picture
