# SPDX-License-Identifier: Apache-2.0
"""Positional encodings, and the dot products of positions by their distance."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from transformer.arrays import Float
from transformer.inspection.argument_checks import Sizes, check_not_empty
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import printable

WIDTH, SIDE = 3.6, 1.9
"""Width of a table, and its height, which is the side of the other two plots."""
BETWEEN, AXIS = 0.6, 0.35
"""Distance between plots, and height of the numbers and name of a horizontal axis."""


@style.styled
def plot_positional_encoding(
    tables: Mapping[str, ArrayLike], *, title: str = "Positional encoding"
) -> DescribedFigure:
    """Each table, the dot products of all pairs of its rows, and these products by distance.

    Args:
      tables: [T,D] by name, for example ``interleaved`` and ``halves`` of `positions.sinusoids`, or
        a learned table; all of one shape.
    """
    check_not_empty("tables", tables)
    sizes = Sizes()
    tables = {name: sizes.array(f"tables[{name!r}]", pe, "T D") for name, pe in tables.items()}
    length, width = next(iter(tables.values())).shape
    rows, heading = [], "dot product of two positions"
    values, products = ({"legend": each, "axis": AXIS} for each in ("value", "product"))
    for name, table in tables.items():
        left = f"{name} table", printable(name), table, (WIDTH, SIDE)
        right = f"{name} products", heading, table @ table.T, (SIDE, SIDE)
        rows.append([parts.signed_panel(*left, **values), parts.signed_panel(*right, **products)])
    title = f"{title}, {length} positions of {width} numbers"
    note = (
        "Dot product of positions p and p + k, divided by the largest: for sinusoids the same at "
        "every p, so the band has no height. It shows the distance, not the direction."
    )
    figure, images = parts.draw_panels(
        rows, title=title, note=note, left=0.4, right=BETWEEN + SIDE, gap=0.3, apart=BETWEEN
    )
    items = []
    for i, (name, table) in enumerate(tables.items()):
        table_axes, product_axes = (image.axes for image in images[2 * i : 2 * i + 2])
        _number_axes(table_axes, "dimension", width, length)
        _number_axes(product_axes, "position", length, length)
        items.append(f"{name}: " + _draw_by_distance(figure, product_axes, name, table @ table.T))
    figure.description = (
        f"{title}, as heat maps with the dot products of all pairs of positions. "
        f"{'; '.join(items)}."
    )
    return figure


def _draw_by_distance(
    figure: DescribedFigure, beside: Axes, name: str, products: Float[np.ndarray, "T T"]
) -> str:
    """Draw mean and range of the products by distance; return a description."""
    length = len(products)
    diagonals = [np.diagonal(products, k) / parts.largest(products) for k in range(length)]
    mean, low, high = np.array([(each.mean(), each.min(), each.max()) for each in diagonals]).T
    box = beside.get_position()
    left = box.x1 + BETWEEN / figure.get_figwidth()
    ax = figure.add_axes((left, box.y0, SIDE / figure.get_figwidth(), box.height))
    ax.set_label(f"{name} distances")
    ax.fill_between(np.arange(length), low, high, color=style.SKY, alpha=0.5, linewidth=0)
    ax.plot(np.arange(length), mean, color=style.BLUE, linewidth=1.4)
    ax.axhline(0, color=style.FAINT, linewidth=0.6, zorder=0)
    ax.set_title("by distance k", loc="left")
    ax.set_xticks(_ticks(length))
    ax.set_xlabel("k", fontsize=style.TEXT)
    ax.tick_params(labelsize=style.TEXT)
    return (
        f"the product of neighbors is {mean[min(1, length - 1)]:.2f} of that of a position with "
        f"itself, of the farthest two {mean[-1]:.2f}; over the positions it varies by at most "
        f"{float((high - low).max()):.2g}"
    )


def _number_axes(ax: Axes, label: str, columns: int, rows: int) -> None:
    for axis, size in ((ax.xaxis, columns), (ax.yaxis, rows)):
        axis.set_ticks(_ticks(size), map(str, _ticks(size)))
    ax.tick_params(labelsize=style.TEXT)
    ax.set_xlabel(label, fontsize=style.TEXT, labelpad=1)
    ax.set_ylabel("position", fontsize=style.TEXT, labelpad=1)


def _ticks(size: int) -> list[int]:
    """First, middle and last index."""
    return sorted({0, size // 2, size - 1})
