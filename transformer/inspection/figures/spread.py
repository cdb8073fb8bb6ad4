# SPDX-License-Identifier: Apache-2.0
"""One number of several models, which differ in their seed for example: how far they lie apart."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import Picture

_WIDTH, _ROW = 4.6, 0.3


@style.styled
def plot_spread(
    values: Mapping[str, ArrayLike],
    *,
    label: str,
    marked: ArrayLike | None = None,
    marked_name: str = "this model",
    limits: ArrayLike | None = None,
    limits_name: str = "limit",
    title: str = "The same number of several models",
) -> Picture:
    """A line for each quantity, on it a dot for each of M models.

    Args:
      values: [M] by the name of the quantity.
      label: what the numbers are, with their unit.
      marked: one more number for each quantity, of a model that stands out.
      marked_name: what that model is called.
      limits: a number for each quantity that its dots are to be compared with.
      limits_name: what these are called.
      title: above the figure.

    Raises:
      InputError: for no quantity, or numbers that do not belong together.
    """
    if not values:
        raise InputError("values is empty: there is nothing to draw; give at least one, by name")
    sizes = Sizes()
    names = sizes.tokens("the names of values", list(values), "R")
    dots = np.array([sizes.array(f"values[{n!r}]", each, "M") for n, each in values.items()])
    marks = None if marked is None else sizes.array("marked", marked, "R")
    bounds = None if limits is None else sizes.array("limits", limits, "R")

    left = max(style.text_width(style.shown(name), 8) for name in names) + 0.15
    top, height = 0.3, _ROW * len(names)
    width = left + _WIDTH + 0.2  # the last tick's number is wider than the axis
    picture = style.sheet(width, top + height + 0.5, title)
    content = style.canvas(picture, width, top + height + 0.5)
    ax = style.axes(picture, left, top, _WIDTH, height)
    ax.set_label("spread")
    rows = np.arange(len(names))
    ax.hlines(rows, 0, 1, transform=ax.get_yaxis_transform(), color=style.FAINT, linewidth=0.6)
    ax.axvline(0, color=style.SOFT, linewidth=0.6)
    # Dots in one place would hide each other: the models lie a little above one another.
    step = 0.5 / max(dots.shape[1], 1)
    lift = (np.arange(dots.shape[1]) - (dots.shape[1] - 1) / 2) * step
    drawn = [
        ax.plot(
            dots, rows[:, None] + lift, "o", color=style.BLUE, markersize=4.5, alpha=0.65, mew=0
        )[0]
    ]
    said = [f"{dots.shape[1]} models"]
    if bounds is not None:
        look = {"color": style.INK, "linestyle": "none", "marker": "|", "markersize": 13}
        drawn += ax.plot(bounds, rows, **look)
        said.append(limits_name)
    if marks is not None:
        look = {"color": style.VERMILION, "linestyle": "none", "marker": "D", "markersize": 5.5}
        drawn += ax.plot(marks, rows, fillstyle="none", mew=1.4, **look)
        said.append(marked_name)
    # Ticks beyond the axis are not drawn, but would count as text beyond the page.
    low, high = ax.get_xlim()
    ax.set_xticks([tick for tick in ax.get_xticks() if low <= tick <= high])
    ax.set_xlim(low, high)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(rows, [style.shown(name) for name in names])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(style.shown(label))
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    at = left
    for line, name in zip(drawn, said, strict=True):
        look = {key: getattr(line, f"get_{key}")() for key in ("color", "marker", "fillstyle")}
        content.plot(at + 0.06, 0.1, markersize=6, mew=line.get_markeredgewidth(), **look)
        parts.unit_text(content, at + 0.17, 0.1, name, ha="left", fontsize=7.5)
        at += style.text_width(style.shown(name), 7.5) + 0.42
    told = [
        _told(name, dots[row], marks, bounds, row, marked_name, limits_name)
        for row, name in enumerate(names)
    ]
    picture.description = (
        f"{title} ({label}), of {dots.shape[1]} models. {parts.list_of(told, 16)}."
    )
    return picture


def _told(name, dots, marks, bounds, row, marked_name, limits_name) -> str:
    """A quantity in words."""
    said = f"{name}: {dots.min():.2f} to {dots.max():.2f}"
    if marks is not None:
        said += f", {marked_name} {marks[row]:.2f}"
    if bounds is not None:
        said += f", {limits_name} {bounds[row]:.2f}"
    return said
