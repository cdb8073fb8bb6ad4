# SPDX-License-Identifier: Apache-2.0
"""Positional encodings, and what the product of two of them says about their distance."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import Picture


@style.styled
def plot_positional_encoding(
    tables: Mapping[str, ArrayLike], *, title: str = "Positional encoding"
) -> Picture:
    """Each table, the products of all pairs of its rows, and these products by distance.

    Args:
      tables: [T,D] by name, for example ``interleaved`` and ``halves`` of `positions.sinusoids`, or
        a learned table; all of one shape.
      title: above the figure.

    Raises:
      InputError: for no table, or for shapes that differ.
    """
    sizes = Sizes()
    if not tables:
        raise InputError("tables is empty: there is nothing to draw; give at least one, by name")
    found = {name: sizes.array(f"tables[{name!r}]", pe, "T D") for name, pe in tables.items()}
    length, width = next(iter(found.values())).shape

    wide, high, square, gap, top = 3.6, 1.9, 1.9, 0.75, 0.3
    step = high + 0.85
    picture = style.sheet(
        0.4 + wide + 2 * (gap + 0.3 + square),
        top + step * len(found) - 0.2,
        f"{title}, {length} positions of {width} numbers",
        "Product of positions p and p + k, divided by its largest: for sinusoids the same at every "
        "p, so the band has no height. It says how far, not which way.",
    )
    told = []
    for number, (name, pe) in enumerate(found.items()):
        here, at = top + step * number, 0.4
        ax = style.axes(picture, at, here, wide, high)
        ax.set_label(f"{name} table")
        image = parts.signed(ax, pe, parts.largest(pe))
        ax.set_title(style.shown(name))
        _count(ax, "dimension", width, "position", length)
        at += wide
        parts.colour_bar(picture, image, "", at + 0.1, here, high)
        at += gap + 0.3

        products = pe @ pe.T
        ax = style.axes(picture, at, here, square, high)
        ax.set_label(f"{name} products")
        image = parts.signed(ax, products, parts.largest(products))
        ax.set_title("product of two positions")
        _count(ax, "position", length, "position", length)
        at += square
        parts.colour_bar(picture, image, "", at + 0.1, here, high)
        at += gap + 0.3

        ax = style.axes(picture, at, here, square, high)
        ax.set_label(f"{name} distances")
        by_distance = [np.diagonal(products, k) / parts.largest(products) for k in range(length)]
        mean, low, up = (
            np.array([reduce(values) for values in by_distance])
            for reduce in (np.mean, np.min, np.max)
        )
        ax.fill_between(np.arange(length), low, up, color=style.SKY, alpha=0.5, linewidth=0)
        ax.plot(np.arange(length), mean, color=style.BLUE, linewidth=1.4)
        ax.axhline(0, color=style.FAINT, linewidth=0.6, zorder=0)
        ax.set_title("by distance k")
        ax.set_xticks(_few(length))
        ax.set_xlabel("k", fontsize=7.5)
        ax.tick_params(labelsize=7)
        told.append(
            f"{name}: the product of neighbours is {mean[min(1, length - 1)]:.2f} of that of a "
            f"position with itself, of the farthest two {mean[-1]:.2f}; over the positions it "
            f"varies by at most {float((up - low).max()):.2g}"
        )
    picture.description = (
        f"{title}, {length} positions of {width} numbers, as heat maps with the products of all "
        f"pairs of positions. {'; '.join(told)}."
    )
    return picture


def _count(ax, across: str, columns: int, down: str, rows: int) -> None:
    """Numbered axes."""
    for axis, size in ((ax.xaxis, columns), (ax.yaxis, rows)):
        axis.set_ticks(_few(size), map(str, _few(size)))
    ax.tick_params(labelsize=7)
    ax.set_xlabel(across, fontsize=7.5, labelpad=1)
    ax.set_ylabel(down, fontsize=7.5, labelpad=1)


def _few(size: int) -> list[int]:
    """The first, the middle and the last of so many places."""
    return sorted({0, size // 2, size - 1})
