# SPDX-License-Identifier: Apache-2.0
"""Building blocks of figures: the sheet with its title, labeled heat maps, and color bars.

Positions and sizes are in inches from the top left corner and are computed from what is drawn, so
nothing overlaps whatever the number of tokens.
"""

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.image import AxesImage
from matplotlib.patches import FancyBboxPatch, Rectangle

from transformer.arrays import Bool, Float
from transformer.inspection.argument_checks import Sizes
from transformer.inspection.figures import style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import (
    isolated,
    printable,
    shortened,
    text_width,
    wrapped,
)

MARGIN = 0.25
HEADER = 0.62
"""Height of a title of one line, with the space below it."""
LONGEST_LABEL = 1.6
"""Width beyond which a token is cut."""
COLOR_BAR_WIDTH = 0.85
"""Width of a color bar with its numbers, its label and the space before it."""
SHORTEST_BAR = 0.9
"""Least height of a color bar."""
GAP = 0.25
"""Space between heat maps."""

Limits = tuple[Real, Real]


# The sheet.


def sheet(width: Real, height: Real, title: str, note: str = "") -> DescribedFigure:
    """An empty figure with a title above the content and a note below it.

    The content has the given size. A title or note wider than that is broken into lines.
    `figure.content` are axes without a frame, in inches from the top left of the content.
    """
    width = max(width + 2 * MARGIN, 4.2)
    titles = wrapped(title, width - 2 * MARGIN, style.TITLE)
    notes = wrapped(note, width - 2 * MARGIN, style.TEXT)
    header = HEADER + 0.2 * max(len(titles) - 1, 0)
    footer = MARGIN * 0.6 + (0.17 * len(notes) + 0.1 if notes else 0.0)
    figure = DescribedFigure(figsize=(width, header + height + footer), dpi=style.DPI)
    full = header + height + footer
    figure.content = figure.add_axes((0, 0, 1, 1), label="content")
    figure.content.set_xlim(-MARGIN, width - MARGIN)
    figure.content.set_ylim(full - header, -header)
    figure.content.set_axis_off()
    for i, line in enumerate(titles):
        y = 1 - (0.3 + 0.2 * i) / full
        figure.text(MARGIN / width, y, line, fontsize=style.TITLE, va="center")
    for i, line in enumerate(notes):
        y = (footer - 0.1 - 0.17 * i) / full
        figure.text(MARGIN / width, y, line, fontsize=style.TEXT, color=style.SOFT, va="top")
    return figure


def axes(
    figure: DescribedFigure, left: Real, top: Real, width: Real, height: Real, name: str = ""
) -> Axes:
    """Axes at a position of the content."""
    full_width, full_height = figure.get_size_inches()
    lowest, _ = figure.content.get_ylim()
    left, bottom = MARGIN + left, lowest - (top + height)
    box = (left / full_width, bottom / full_height, width / full_width, height / full_height)
    return figure.add_axes(box, label=name)


def put_text(ax: Axes, x: Real, y: Real, text: str, **options) -> None:
    """Printable text, centered unless the options say otherwise."""
    text = "\n".join(map(printable, text.split("\n"))) if text else ""
    ax.text(x, y, text, **({"ha": "center", "va": "center", "color": style.INK} | options))


def put_box(ax: Axes, left: Real, top: Real, width: Real, height: Real, **options) -> None:
    """A box with rounded corners."""
    shape = {"boxstyle": "round,pad=0,rounding_size=0.05", "edgecolor": style.SOFT}
    box = FancyBboxPatch((left, top), width, height, **(shape | {"linewidth": 0.6} | options))
    ax.add_patch(box)


# Heat maps with labels.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """A heat map with its labels."""

    values: Float[np.ndarray, "rows columns"]
    cell: tuple[Real, Real]
    """Width and height of a cell."""
    name: str = ""
    """Label of the axes, by which tests and callers find them."""
    heading: str = ""
    """Above the map; may have several lines."""
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    size: Real = style.TEXT
    """Font size of the labels."""
    hidden: Bool[np.ndarray, "rows columns"] | None = None
    limits: Limits = (0.0, 1.0)
    colors: Colormap = dataclasses.field(default_factory=lambda: style.WEIGHTS)
    color_bar: str | None = None
    """Label of the color bar; None for none."""
    beside: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Columns of text right of the map: heading and one text a row."""

    @property
    def width(self) -> float:
        """Of the map alone."""
        return self.cell[0] * self.values.shape[1]

    @property
    def height(self) -> float:
        """Of the map alone."""
        return self.cell[1] * self.values.shape[0]

    @property
    def left(self) -> float:
        """Width of the row labels."""
        return label_width(self.rows, self.size) + 0.12 if self.rows else 0.0

    @property
    def above(self) -> float:
        """Height of the column labels and headings."""
        labels = label_height(self.columns, self.cell[0], self.size) if self.columns else 0.05
        lines = max(heading.count("\n") + 1 for heading in (*self.beside, ""))
        heading = 0.1 + 0.15 * (self.heading.count("\n") + 1) if self.heading else 0.0
        return max(labels + heading, 0.16 * lines if self.beside else 0.0)

    @property
    def right(self) -> float:
        """Width of all that follows the map."""
        texts = sum(map(self._text_width, self.beside))
        lines = map(printable, self.heading.split("\n") if self.heading else [])
        heading = max((text_width(line, style.HEADING) for line in lines), default=0.0)
        after = texts + (GAP if self.color_bar is None else COLOR_BAR_WIDTH)
        return max(after, heading - self.width + GAP)

    def _text_width(self, heading: str) -> float:
        texts = [*heading.split("\n"), *self.beside[heading]]
        return 0.14 + max(text_width(printable(text), style.SMALL) for text in texts)

    def draw(self, figure: DescribedFigure, left: Real, top: Real) -> AxesImage:
        """Draw the map with its top left corner at this position of the content."""
        ax = axes(figure, left, top, self.width, self.height, self.name)
        image = heat(ax, self.values, self.limits, self.colors, self.hidden)
        if self.rows:
            row_labels(ax, self.rows, self.size)
        if self.columns:
            column_labels(ax, self.columns, self.size)
        if self.heading:
            labels = label_height(self.columns, self.cell[0], self.size) if self.columns else 0.0
            look = {"ha": "left", "va": "bottom", "fontsize": style.HEADING}
            put_text(figure.content, left, top - labels - 0.05, self.heading, **look)
        x, look = left + self.width, {"ha": "right", "fontsize": style.SMALL}
        for heading, texts in self.beside.items():
            x += self._text_width(heading)
            put_text(figure.content, x, top - 0.05, heading, va="bottom", **look)
            for row, text in enumerate(texts):
                put_text(figure.content, x, top + self.cell[1] * (row + 0.5), text, **look)
        if self.color_bar is not None:
            height = max(min(self.height, 2.0), SHORTEST_BAR)
            color_bar(figure, image, self.color_bar, x + 0.12, top, height)
        return image


def draw_panels(
    rows: Sequence[Sequence[Panel]],
    *,
    title: str,
    note: str = "",
    left: Real = 0.0,
    top: Real = 0.0,
    right: Real = 0.0,
    below: Real = 0.0,
    gap: Real = GAP,
    least_width: Real = 0.0,
) -> tuple[DescribedFigure, list[AxesImage]]:
    """A figure of rows of labeled heat maps, and the image of each in reading order.

    Args:
      rows: panels from the top left.
      title: above the panels.
      note: below them.
      left, top, right, below: free space for other drawings.
      gap: space below a row of panels.
      least_width: of the content.
    """
    corners, width, y, bottom = [], least_width, top, top
    for row in rows:
        x, y = left, y + max(panel.above for panel in row)
        for panel in row:
            corners.append((x + panel.left, y))
            x += panel.left + panel.width + panel.right
            bar = 0.0 if panel.color_bar is None else SHORTEST_BAR
            bottom = max(bottom, y + max(panel.height, bar))
        width = max(width, x + right)
        y += max(panel.height for panel in row) + gap
    figure = sheet(width, bottom + below + 0.05, title, note)
    panels = [panel for row in rows for panel in row]
    return figure, [
        panel.draw(figure, *corner) for panel, corner in zip(panels, corners, strict=True)
    ]


def heat(
    ax: Axes,
    values: Float[np.ndarray, "rows columns"],
    limits: Limits = (0.0, 1.0),
    colors: Colormap = style.WEIGHTS,
    hidden: Bool[np.ndarray, "rows columns"] | None = None,
) -> AxesImage:
    """A heat map that fills its axes; hidden cells are white with a cross."""
    hidden = np.zeros(values.shape, bool) if hidden is None else hidden
    low, high = limits
    image = ax.imshow(
        np.ma.array(values, mask=hidden),
        cmap=colors,
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
    )
    ax.set_xticks([])
    ax.set_yticks([])
    if hidden.any():
        rows, columns = np.nonzero(hidden)
        size = min(72 * min(cell_size(ax, values.shape)) * 0.3, 5)
        ax.plot(columns, rows, "x", color=style.SOFT, markersize=size, markeredgewidth=0.5)
    return image


def signed(limit: Real) -> dict:
    """Options of a `Panel` of values from -limit to limit, white at 0."""
    return {"limits": (-limit, limit), "colors": style.SIGNED}


def signed_panel(
    name: str,
    heading: str,
    values: Float[np.ndarray, "rows columns"],
    extent: tuple[Real, Real],
    *,
    limit: Real | None = None,
    **options: Any,
) -> Panel:
    """A panel of this width and height, white at 0, with colors up to the largest magnitude."""
    cell = (extent[0] / values.shape[1], extent[1] / values.shape[0])
    options |= signed(largest(values) if limit is None else limit)
    return Panel(values=values, cell=cell, name=name, heading=heading, **options)


def cell_size(ax: Axes, shape: tuple[int, ...]) -> tuple[float, float]:
    """Width and height of a cell of a heat map in these axes."""
    width, height = ax.figure.get_size_inches()
    box = ax.get_position()
    return box.width * width / shape[1], box.height * height / shape[0]


def write_numbers(image: AxesImage, form: str = "{:.2f}", lowest: Real = -np.inf) -> None:
    """Write values of at least `lowest` into their cells."""
    values, ax = image.get_array(), image.axes
    width, height = cell_size(ax, values.shape)
    longest = max((_formatted(value, form) for value in values.compressed()), key=len, default="0")
    size = max(min(8.0, 72 * height * 0.6, 8 * 0.9 * width / text_width(longest, 8)), 3.5)
    for (row, column), value in np.ndenumerate(values):
        if not np.ma.is_masked(values[row, column]) and value >= lowest:
            ink = style.ink_on(image.cmap(image.norm(value)))
            put_text(ax, column, row, _formatted(value, form), fontsize=size, color=ink)


def _formatted(value: Real, form: str) -> str:
    """The value without the sign of a number that is rounded to 0."""
    text = form.format(value)
    return text if any(digit in text for digit in "123456789") else text.replace("-", "")


def write_tokens(image: AxesImage, tokens: Sequence[Sequence[str]]) -> None:
    """Write a token and the value into each cell; tokens are cut to fit."""
    values, ax = image.get_array(), image.axes
    width, height = cell_size(ax, values.shape)
    size = min(style.SMALL, 72 * height * 0.5)
    free = width - text_width("0.00", size * 0.85) - 0.14
    for (row, column), value in np.ndenumerate(values):
        ink = style.ink_on(image.cmap(image.norm(value)))
        look = {"va": "center_baseline", "color": ink}
        token = shortened(tokens[row][column], free, size)
        ax.text(column - 0.5 + 0.04 / width, row, token, ha="left", fontsize=size, **look)
        x = column + 0.5 - 0.04 / width
        ax.text(x, row, f"{value:.2f}", ha="right", fontsize=size * 0.85, **look)


def row_labels(ax: Axes, labels: Sequence[str], size: Real = style.TEXT) -> None:
    """Labels left of the rows."""
    size = min(size, 72 * cell_size(ax, (len(labels), 1))[1] * 0.85)
    ax.set_yticks(range(len(labels)), [shortened(label, LONGEST_LABEL, size) for label in labels])
    ax.tick_params(axis="y", length=0, labelsize=size, pad=3)


def column_labels(ax: Axes, labels: Sequence[str], size: Real = style.TEXT) -> None:
    """Labels above the columns, upright where they do not fit beside each other."""
    size, upright = _column_label_form(labels, cell_size(ax, (1, len(labels)))[0], size)
    texts = [shortened(label, LONGEST_LABEL, size) for label in labels]
    ax.set_xticks(range(len(labels)), texts, rotation=90 if upright else 0)
    ax.tick_params(axis="x", length=0, labelsize=size, pad=3)
    ax.xaxis.tick_top()


def _column_label_form(labels: Sequence[str], cell: Real, size: Real) -> tuple[Real, bool]:
    """Font size of column labels, and whether they are upright."""
    upright = bool(label_width(labels, size) > cell * 0.95)
    return (min(size, 72 * cell * 0.85) if upright else size), upright


def label_width(labels: Sequence[str], size: Real = style.TEXT) -> float:
    """Width of row labels."""
    return max(text_width(shortened(label, LONGEST_LABEL, size), size) for label in labels)


def label_height(labels: Sequence[str], cell: Real, size: Real = style.TEXT) -> float:
    """Height of the labels of columns of width `cell`."""
    size, upright = _column_label_form(labels, cell, size)
    return (label_width(labels, size) if upright else size / 72) + 0.08


def color_bar(
    figure: DescribedFigure, image: AxesImage, label: str, left: Real, top: Real, height: Real
) -> None:
    """The scale of a heat map, with its label."""
    ax = axes(figure, left, top, 0.12, height)
    bar = figure.colorbar(image, cax=ax)
    bar.outline.set_linewidth(0.5)
    ax.tick_params(labelsize=style.TINY)
    if label:
        label = printable(label)
        characters = max(int(len(label) * height / text_width(label, style.SMALL)), 8)
        ax.set_ylabel("\n".join(textwrap.wrap(label, characters)), fontsize=style.SMALL)
    low, high = image.get_clim()
    ticks = np.linspace(low, high, 3 if height < 1.5 or (low, high) != (0.0, 1.0) else 5)
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])


def outline(ax: Axes, row: Real, column: Real, color: str, name: str) -> None:
    """A frame around one cell of a heat map."""
    look = {"fill": False, "edgecolor": color, "linewidth": 1.6, "clip_on": False, "zorder": 3}
    ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, gid=name, **look))


def separate_rows(ax: Axes, rows: int) -> None:
    """White lines between the rows of a heat map."""
    ax.hlines(np.arange(rows - 1) + 0.5, *ax.get_xlim(), color=style.PAPER, linewidth=1.5)


def largest(*arrays: Float[np.ndarray, "..."]) -> float:
    """The largest magnitude, the limit of a signed color scale; 1 where all values are 0."""
    return max((float(np.abs(array).max()) for array in arrays), default=0.0) or 1.0


def read_predict(target_in: Sequence[str], target_out: Sequence[str]) -> list[str]:
    """Labels of decoder rows: the token that is read and the token that is predicted.

    Raises:
      InputError: when their numbers differ.
    """
    sizes = Sizes()
    both = zip(
        sizes.tokens("target_in", target_in, "T"),
        sizes.tokens("target_out", target_out, "T"),
        strict=True,
    )
    return [f"{isolated(read)} → {isolated(predicted)}" for read, predicted in both]
