# SPDX-License-Identifier: Apache-2.0
"""Building blocks of figures: the sheet with its title, labeled heat maps, and color legends.

Positions and sizes are in inches from the top left corner and are computed from what is drawn, so
nothing overlaps whatever the number of tokens.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.image import AxesImage
from matplotlib.patches import FancyBboxPatch, Rectangle

from transformer.arrays import Bool, Float
from transformer.inspection.argument_checks import checked
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
LEGEND = 0.32
"""Height of the legend of a color scale, with the space above it."""
STRIP = 1.0
"""Length of the strip of colors in a legend."""
SMALLEST_CELL = 0.175
"""Least width of a cell with a column label, so that slanted labels do not touch."""
SMALLEST_ROW = 0.15
"""Least height of a row with a label."""
SMALLEST_GRID = 0.12
"""Least side of cells that are separated by lines."""
GAP = 0.25
"""Space between heat maps."""
MANY = 500
"""Number of values from which a color scale need not distinguish the largest."""
SLANT = math.sqrt(0.5)
"""Sine and cosine of the angle of slanted labels."""

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


def draw_arrow(
    ax: Axes, start: tuple[Real, Real], end: tuple[Real, Real], color: str = style.INK
) -> None:
    """An arrow between two positions."""
    look = {"arrowstyle": "-|>,head_width=0.12,head_length=0.25", "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops={**look, "color": color, "linewidth": 0.8})


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
    hidden: Bool[np.ndarray, "rows columns"] | None = None
    limits: Limits = (0.0, 1.0)
    colors: Colormap = dataclasses.field(default_factory=lambda: style.WEIGHTS)
    legend: str | None = None
    """Name of the values in the legend of the color scale; None for no legend."""
    axis: Real = 0.0
    """Height of what the caller draws between the map and its legend."""
    beside: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Columns of text right of the map: heading and one text a row."""

    @property
    def width(self) -> float:
        """Width of the map."""
        return self.cell[0] * self.values.shape[1]

    @property
    def height(self) -> float:
        """Height of the map."""
        return self.cell[1] * self.values.shape[0]

    @property
    def left(self) -> float:
        """Width of the row labels."""
        return label_width(self.rows) + 0.12 if self.rows else 0.0

    @property
    def above(self) -> float:
        """Height of the column labels and headings."""
        labels = max(self._labels[0], 0.05)
        lines = max(heading.count("\n") + 1 for heading in (*self.beside, ""))
        heading = 0.1 + 0.15 * (self.heading.count("\n") + 1) if self.heading else 0.0
        return max(labels + heading, 0.16 * lines if self.beside else 0.0)

    @property
    def below(self) -> float:
        """Height of the legend, and of what is above it."""
        return self.axis + (0.0 if self.legend is None else LEGEND)

    @property
    def right(self) -> float:
        """Width of all that follows the map, except the legend."""
        texts = sum(map(self._text_width, self.beside), 0.0)
        lines = map(printable, self.heading.split("\n") if self.heading else [])
        wide = [text_width(line, style.HEADING) - self.width for line in lines]
        return max(texts, *wide, self._labels[1], 0.0)

    @property
    def _labels(self) -> tuple[float, float]:
        """Height of the column labels, and their width beyond the map."""
        return label_extent(self.columns, self.cell[0]) if self.columns else (0.0, 0.0)

    def _text_width(self, heading: str) -> float:
        texts = [*heading.split("\n"), *self.beside[heading]]
        return 0.14 + max(text_width(printable(text), style.TEXT) for text in texts)

    def draw(self, figure: DescribedFigure, left: Real, top: Real) -> AxesImage:
        """Draw the map with its top left corner at this position of the content."""
        ax = axes(figure, left, top, self.width, self.height, self.name)
        image = heat(ax, self.values, self.limits, self.colors, self.hidden)
        if self.rows:
            row_labels(ax, self.rows)
        if self.columns:
            column_labels(ax, self.columns)
        if self.heading:
            y, look = top - self._labels[0] - 0.05, {"ha": "left", "va": "bottom"}
            put_text(figure.content, left, y, self.heading, fontsize=style.HEADING, **look)
        x, look = left + self.width, {"ha": "right"}
        for heading, texts in self.beside.items():
            x += self._text_width(heading)
            put_text(figure.content, x, top - 0.05, heading, va="bottom", **look)
            for row, text in enumerate(texts):
                put_text(figure.content, x, top + self.cell[1] * (row + 0.5), text, **look)
        if self.legend is not None:
            draw_legend(figure, image, self.legend, left, top + self.height + self.axis + 0.12)
        return image


def draw_panels(
    rows: Sequence[Sequence[Panel]],
    *,
    title: str,
    note: str = "",
    left: Real = 0.0,
    right: Real = 0.0,
    below: Real = 0.0,
    gap: Real = GAP,
    apart: Real = GAP,
) -> tuple[DescribedFigure, list[AxesImage]]:
    """A figure of rows of labeled heat maps, and the image of each in reading order.

    The first maps of all rows are aligned.

    Args:
      left, right, below: free space for other drawings.
      gap: space below a row of panels.
      apart: space between the panels of a row.
    """
    corners, width, y, bottom = [], 0.0, 0.0, 0.0
    first = max(row[0].left for row in rows)
    for row in rows:
        x, y = left + first - row[0].left, y + max(panel.above for panel in row)
        free = 0.0  # where the next legend can begin
        for panel in row:
            x += panel.left
            if panel.legend is not None:
                x = max(x, free)
                free = x + legend_width(panel.legend, panel.limits) + 0.1
                width = max(width, free)
            corners.append((x, y))
            x += panel.width + panel.right + apart
        width = max(width, x - apart + right)
        y += max(panel.height + panel.below for panel in row)
        bottom, y = y, y + gap
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
    marked: bool = True,
) -> AxesImage:
    """A heat map that fills its axes; hidden cells are gray with a cross, or not marked at all."""
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
    ax.set_facecolor(style.PALE if marked else style.PAPER)
    smallest = min(cell_size(ax, values.shape))
    if marked and smallest >= SMALLEST_GRID:
        # Faint lines between the cells, since cells of zero have the color of the paper.
        (rows, columns), look = values.shape, {"color": style.FAINT, "linewidth": 0.4}
        ax.hlines(np.arange(rows - 1) + 0.5, -0.5, columns - 0.5, **look)
        ax.vlines(np.arange(columns - 1) + 0.5, -0.5, rows - 0.5, **look)
    if marked and hidden.any():
        y, x = np.nonzero(hidden)
        look = {"markersize": min(72 * smallest * 0.3, 5), "markeredgewidth": 0.5}
        ax.plot(x, y, "x", color=style.SOFT, **look)
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
    """Write values of at least `lowest` into their cells, if the cells are large enough."""
    values, ax = image.get_array(), image.axes
    width, height = cell_size(ax, values.shape)
    longest = max((formatted(value, form) for value in values.compressed()), key=len, default="0")
    if text_width(longest, style.TEXT) > 0.97 * width or 72 * height * 0.9 < style.TEXT:
        return
    for (row, column), value in np.ndenumerate(values):
        if not np.ma.is_masked(values[row, column]) and value >= lowest:
            ink = style.ink_on(image.cmap(image.norm(value)))
            put_text(ax, column, row, formatted(value, form), color=ink)


def formatted(value: Real, form: str) -> str:
    """The value without the sign of a number that is rounded to 0."""
    text = form.format(value)
    return text if any(digit in text for digit in "123456789") else text.replace("-", "")


def write_tokens(image: AxesImage, tokens: Sequence[Sequence[str]]) -> None:
    """Write a token and the value into each cell; tokens are cut to fit."""
    values, ax = image.get_array(), image.axes
    width, _ = cell_size(ax, values.shape)
    free = width - text_width("0.00", style.TEXT) - 0.14
    for (row, column), value in np.ndenumerate(values):
        ink = style.ink_on(image.cmap(image.norm(value)))
        look = {"va": "center_baseline", "color": ink}
        token = shortened(tokens[row][column], free, style.TEXT)
        ax.text(column - 0.5 + 0.04 / width, row, token, ha="left", **look)
        ax.text(column + 0.5 - 0.04 / width, row, f"{value:.2f}", ha="right", **look)


def row_labels(ax: Axes, labels: Sequence[str]) -> None:
    """Labels left of the rows; of low rows every second one, or fewer."""
    step = math.ceil(SMALLEST_ROW / cell_size(ax, (len(labels), 1))[1] - 0.01)
    texts = [shortened(label, LONGEST_LABEL, style.TEXT) for label in labels[::step]]
    ax.set_yticks(range(0, len(labels), step), texts)
    ax.tick_params(axis="y", length=0, pad=3)


def column_labels(ax: Axes, labels: Sequence[str]) -> None:
    """Labels above the columns, slanted where they do not fit beside each other.

    Of narrow columns every second one has a label, or fewer.
    """
    cell, _ = cell_size(ax, (1, len(labels)))
    step = math.ceil(SMALLEST_CELL / cell - 0.01)
    texts = [shortened(label, LONGEST_LABEL, style.TEXT) for label in labels[::step]]
    look = {}
    if _are_slanted(labels, cell):
        look = {"rotation": 45, "ha": "left", "va": "baseline", "rotation_mode": "anchor"}
    ax.set_xticks(range(0, len(labels), step), texts, **look)
    ax.tick_params(axis="x", length=0, pad=3)
    ax.xaxis.tick_top()


def _are_slanted(labels: Sequence[str], cell: Real) -> bool:
    return bool(label_width(labels) > cell * 0.95)


def label_width(labels: Sequence[str]) -> float:
    """Width of row labels."""
    texts = (shortened(label, LONGEST_LABEL, style.TEXT) for label in labels)
    return max(text_width(text, style.TEXT) for text in texts)


def label_extent(labels: Sequence[str], cell: Real) -> tuple[float, float]:
    """Height of the labels of columns of width `cell`, and their width beyond the last column."""
    if not _are_slanted(labels, cell):
        return style.TEXT / 72 + 0.08, 0.0
    height = (label_width(labels) + style.TEXT / 72) * SLANT + 0.06
    ends = [
        label_width([label]) * SLANT - cell * (len(labels) - i - 0.5)
        for i, label in enumerate(labels)
    ]
    return height, max(*ends, 0.0)


def legend_width(label: str, limits: Limits) -> float:
    """Width of a legend, as `draw_legend` draws it."""
    texts = " ".join([printable(label) if label else "", *map(_end_of_scale, limits)])
    return text_width(texts, style.TEXT) + _strip_length(label) + 0.3


def _strip_length(label: str) -> float:
    """A legend without a name is below a map that is too narrow for one."""
    return STRIP if label else 0.24


def draw_legend(
    figure: DescribedFigure, image: AxesImage, label: str, left: Real, top: Real
) -> None:
    """A strip of the colors of a heat map between its end values, after its name."""
    low, high = map(_end_of_scale, image.get_clim())
    x, middle, look = left, top + 0.07, {"ha": "left", "color": style.SOFT}
    for text in (label, low):
        if text:
            put_text(figure.content, x, middle, text, **look)
            x += text_width(printable(text), style.TEXT) + 0.08
    length = _strip_length(label)
    ax = axes(figure, x, top, length, 0.14)
    bar = figure.colorbar(image, cax=ax, orientation="horizontal", ticks=[])
    bar.outline.set_linewidth(0.5)
    put_text(figure.content, x + length + 0.06, middle, high, **look)


def _end_of_scale(value: Real) -> str:
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def outline(ax: Axes, row: Real, column: Real, color: str, name: str) -> None:
    """A frame around one cell of a heat map."""
    look = {"fill": False, "edgecolor": color, "linewidth": 1.6, "clip_on": False, "zorder": 3}
    ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, gid=name, **look))


def separate_heads(draw_line: Callable[..., Any], heads: int, size: int) -> None:
    """Lines between the columns (`Axes.axvline`) or the rows (`Axes.axhline`) of N heads."""
    for border in np.arange(1, heads) * size - 0.5:
        draw_line(border, color=style.INK, linewidth=0.8)


def largest(*arrays: Float[np.ndarray, "..."]) -> float:
    """The largest magnitude, the limit of a signed color scale; 1 where all values are 0."""
    return max((float(np.abs(array).max()) for array in arrays), default=0.0) or 1.0


def common(*arrays: Float[np.ndarray, "..."]) -> tuple[float, str]:
    """A limit of a signed color scale that few of many values exceed, and what the legend says."""
    magnitudes = np.abs(np.concatenate([array.ravel() for array in arrays]))
    if magnitudes.size < MANY:
        return largest(magnitudes), ""
    limit = float(np.quantile(magnitudes, 0.99)) or 1.0
    return limit, f" ({(magnitudes > limit).mean():.0%} beyond)"


@checked
def read_predict(
    target_in: Annotated[list[str], "T"], target_out: Annotated[list[str], "T"]
) -> list[str]:
    """Labels of decoder rows: the token that is read and the token that is predicted."""
    both = zip(target_in, target_out, strict=True)
    return [f"{isolated(read)} → {isolated(predicted)}" for read, predicted in both]
