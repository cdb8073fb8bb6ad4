# SPDX-License-Identifier: Apache-2.0
"""The parts that figures are put together from: heat maps with labels, numbers and colour bars."""

import textwrap
from collections.abc import Sequence
from numbers import Real

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from transformer.arrays import Bool, Float
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import (
    INK,
    SIGNED,
    SOFT,
    WEIGHTS,
    Picture,
    axes,
    beside_others,
    ink_on,
    shortened,
    shown,
    text_width,
)

LONGEST_LABEL = 1.6
"""Inches beyond which a token is cut."""

Limits = tuple[Real, Real]


def heat(
    ax: Axes,
    values: Float[np.ndarray, "R C"],
    limits: Limits = (0.0, 1.0),
    colours: Colormap = WEIGHTS,
    hidden: Bool[np.ndarray, "R C"] | None = None,
) -> AxesImage:
    """A heat map that fills its axes, one cell a value; hidden cells are white with a cross."""
    shown = np.ma.array(values, mask=np.zeros(values.shape, bool) if hidden is None else hidden)
    image = ax.imshow(
        shown,
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
        aspect="auto",
        interpolation="nearest",
    )
    ax.set_xticks([])
    ax.set_yticks([])
    if hidden is not None and hidden.any():
        rows, columns = np.nonzero(hidden)
        size = 72 * min(cell_size(ax, values.shape)) * 0.3
        ax.plot(columns, rows, "x", color=SOFT, markersize=min(size, 5), markeredgewidth=0.5)
    return image


def cell_size(ax: Axes, shape: tuple[int, ...]) -> tuple[float, float]:
    """Inches that a cell of a heat map in these axes is wide and high."""
    width, height = ax.figure.get_size_inches()
    place = ax.get_position()
    return place.width * width / shape[1], place.height * height / shape[0]


def numbers(image: AxesImage, form: str = "{:.2f}", least: Real = -np.inf) -> None:
    """Writes each cell's value into it, where it is at least so much."""
    values = image.get_array()
    ax = image.axes
    width, height = cell_size(ax, values.shape)
    longest = max((_written(v, form) for v in values.compressed()), key=len, default="")
    size = max(min(8.0, 72 * height * 0.6, 8 * 0.9 * width / text_width(longest or "0", 8)), 3.5)
    for (row, column), value in np.ndenumerate(values):
        if np.ma.is_masked(values[row, column]) or value < least:
            continue
        ink = ink_on(image.cmap(image.norm(value)))
        ax.text(
            column,
            row,
            _written(value, form),
            ha="center",
            va="center",
            fontsize=size,
            color=ink,
        )


def _written(value: Real, form: str) -> str:
    """The value in this form; what rounds to 0 has no sign."""
    text = form.format(value)
    return text if any(digit in text for digit in "123456789") else text.replace("-", "")


def words(image: AxesImage, tokens: Sequence[Sequence[str]]) -> None:
    """Writes a token and the cell's value into each cell, the token cut to what has room."""
    values, ax = image.get_array(), image.axes
    width, height = cell_size(ax, values.shape)
    size = min(7.5, 72 * height * 0.5)
    room = width - text_width("0.00", size * 0.85) - 0.14
    for (row, column), value in np.ndenumerate(values):
        ink = ink_on(image.cmap(image.norm(value)))
        look = {"va": "center_baseline", "color": ink}
        token = shortened(tokens[row][column], room, size)
        ax.text(column - 0.5 + 0.04 / width, row, token, ha="left", fontsize=size, **look)
        x = column + 0.5 - 0.04 / width
        ax.text(x, row, f"{value:.2f}", ha="right", fontsize=size * 0.85, **look)


def row_labels(ax: Axes, labels: Sequence[str], size: Real = 8) -> None:
    """One label a row, left of the axes."""
    size = min(size, 72 * cell_size(ax, (len(labels), 1))[1] * 0.85)
    ax.set_yticks(range(len(labels)), [shortened(label, LONGEST_LABEL, size) for label in labels])
    ax.tick_params(axis="y", length=0, labelsize=size, pad=3)


def column_labels(ax: Axes, labels: Sequence[str], size: Real = 8) -> None:
    """One label a column, above the axes; upright where they do not fit beside each other."""
    size, upright = column_label_form(labels, cell_size(ax, (1, len(labels)))[0], size)
    ax.set_xticks(
        range(len(labels)),
        [shortened(label, LONGEST_LABEL, size) for label in labels],
        rotation=90 if upright else 0,
    )
    ax.tick_params(axis="x", length=0, labelsize=size, pad=3)
    ax.xaxis.tick_top()


def column_label_form(labels: Sequence[str], cell: Real, size: Real = 8) -> tuple[Real, bool]:
    """The size of the labels of columns that are so many inches wide, and whether they stand."""
    upright = bool(label_width(labels, size) > cell * 0.95)
    return (min(size, 72 * cell * 0.85) if upright else size), upright


def label_width(labels: Sequence[str], size: Real = 8) -> float:
    """Inches that the labels of rows take."""
    return max(text_width(shortened(label, LONGEST_LABEL, size), size) for label in labels)


def label_height(labels: Sequence[str], cell: Real, size: Real = 8) -> float:
    """Inches that the labels of columns so wide take."""
    size, upright = column_label_form(labels, cell, size)
    return (label_width(labels, size) if upright else size / 72) + 0.08


def colour_bar(
    picture: Picture, image: AxesImage, label: str, left: Real, top: Real, height: Real
) -> Axes:
    """A scale for the colours of a heat map, 0.12 inches wide with its numbers beside it."""
    ax = axes(picture, left, top, 0.12, height)
    bar = picture.colorbar(image, cax=ax)
    bar.outline.set_linewidth(0.5)
    ax.tick_params(labelsize=7)
    if label:
        label = shown(label)
        at_once = max(int(len(label) * height / text_width(label, 7.5)), 8)
        ax.set_ylabel("\n".join(textwrap.wrap(label, at_once)), fontsize=7.5)
    low, high = image.get_clim()
    ticks = np.linspace(low, high, 3 if height < 1.5 or (low, high) != (0.0, 1.0) else 5)
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    return ax


COLOUR_BAR_WIDTH = 0.85
"""Inches that a colour bar takes with its numbers, its label and the space before it."""


def outline(ax: Axes, row: Real, column: Real, colour: str, *, width: Real = 1.6) -> Rectangle:
    """A frame around one cell of a heat map."""
    return ax.add_patch(
        Rectangle(
            (column - 0.5, row - 0.5),
            1,
            1,
            fill=False,
            edgecolor=colour,
            linewidth=width,
            clip_on=False,
            zorder=3,
        )
    )


def largest(*arrays: Float[np.ndarray, "..."]) -> float:
    """The largest magnitude, for colours that are white at 0; never 0 itself."""
    return max((float(np.abs(array).max()) for array in arrays), default=0.0) or 1.0


def signed(ax: Axes, values: Float[np.ndarray, "R C"], most: Real) -> AxesImage:
    """A heat map of values of both signs, white at 0."""
    return heat(ax, values, (-most, most), SIGNED)


def lines_between_rows(ax: Axes, rows: int) -> None:
    """White lines that keep the rows of a heat map apart."""
    ax.hlines(np.arange(rows - 1) + 0.5, *ax.get_xlim(), color="white", linewidth=1.5)


def list_of(things: Sequence[str], most: int = 8) -> str:
    """The first of them in words, and how many more there are."""
    listed = ", ".join(things[:most])
    return listed + (f" and {len(things) - most} more" if len(things) > most else "")


def read_predict(target_in: Sequence[str], target_out: Sequence[str]) -> list[str]:
    """What the rows of a decoder are called: the token that is read, and the one it predicts.

    Raises:
      InputError: when there are not equally many of both.
    """
    sizes = Sizes()
    both = zip(
        sizes.tokens("target_in", target_in, "T"),
        sizes.tokens("target_out", target_out, "T"),
        strict=True,
    )
    return [f"{beside_others(read)} → {beside_others(predicted)}" for read, predicted in both]


def unit_text(ax: Axes, x: Real, y: Real, text: str, **options) -> None:
    """Text on a `canvas`, centred unless said otherwise."""
    visible = "\n".join(map(shown, text.split("\n"))) if text else ""
    ax.text(x, y, visible, **({"ha": "center", "va": "center", "color": INK} | options))
