# SPDX-License-Identifier: Apache-2.0
"""Curves over a common axis, such as a loss, and one quantity compared between models."""

from collections.abc import Mapping
from numbers import Real

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import Locator, LogLocator, MaxNLocator
from numpy.typing import ArrayLike

from transformer.arrays import Float
from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes, check_not_empty
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, printable, text_width

WIDTH, HEIGHT = 5.2, 2.7
"""Size of the plot area of curves."""
LEFT, BELOW = 0.68, 0.5
"""Space for the numbers and the name of each axis."""
LINE = 0.24
"""Line height of the legend."""

DOT = {"color": style.BLUE, "marker": "o", "markersize": 4.5, "alpha": 0.65, "mew": 0}
LIMIT = {"color": style.INK, "marker": "|", "markersize": 13}
MARK = {"color": style.VERMILION, "marker": "D", "markersize": 5.5, "fillstyle": "none", "mew": 1.4}


@style.styled
def plot_curves(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    x_label: str,
    y_label: str,
    levels: Mapping[str, Real] | None = None,
    logarithmic: bool = False,
    title: str = "Curves",
) -> DescribedFigure:
    """Curves with a legend beside them, in the order of their ends.

    Args:
      curves: x and y of each curve by name: two arrays [P], x ascending. A y that is not finite
        leaves a gap.
      x_label: what x is, with its unit.
      y_label: what y is, with its unit.
      levels: y of horizontal lines by name.
      logarithmic: whether y is on a logarithmic scale.
      title: above the figure.
    """
    check_not_empty("curves", curves)
    levels = dict(levels or {})
    points = {name: _checked_points(name, *curve) for name, curve in curves.items()}
    ends = {name: ys[np.isfinite(ys)][-1] for name, (_, ys) in points.items()} | levels
    if logarithmic:
        _check_positive({name: ys for name, (_, ys) in points.items()} | levels)
    legend = max(text_width(printable(name), style.TEXT) for name in ends) + 0.6
    height = max(HEIGHT + BELOW, LINE * (len(ends) + 0.5))
    figure = parts.sheet(LEFT + WIDTH + legend, height, title)
    ax = parts.axes(figure, LEFT, 0.0, WIDTH, HEIGHT, "curves")
    line_styles = _line_styles(points, levels)
    for name, (xs, ys) in points.items():
        look = {"marker": "o", "markersize": 3, "markevery": _isolated_points(ys)}
        ax.plot(xs, ys, gid=f"curve {name}", **look, **line_styles[name])
    for name, level in levels.items():
        ax.axhline(level, gid=f"level {name}", **line_styles[name])
    _format_axes(ax, logarithmic)
    ax.set_xlabel(printable(x_label))
    ax.set_ylabel(printable(y_label))
    for i, name in enumerate(sorted(ends, key=ends.get, reverse=True)):
        x, y = LEFT + WIDTH + 0.15, 0.15 + LINE * i
        figure.content.plot([x, x + 0.35], [y, y], **line_styles[name])
        parts.put_text(figure.content, x + 0.42, y, name, ha="left")
    items = [_describe_curve(name, xs, ys) for name, (xs, ys) in points.items()]
    items += [f"a line at {level:.4g}: {name}" for name, level in levels.items()]
    figure.description = f"{title}: {y_label} over {x_label}. {'; '.join(items)}."
    return figure


def _checked_points(
    name: str, xs: ArrayLike, ys: ArrayLike
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    sizes = Sizes()
    xs = sizes.array(f"x of curve {name!r}", xs, "P")
    ys = sizes.array(f"y of curve {name!r}", ys, "P", finite=False)
    if not np.isfinite(ys).any():
        raise InputError(f"curve {name!r} has no finite y, so there is nothing to draw")
    if (np.diff(xs) < 0).any():
        at = int(np.argmax(np.diff(xs) < 0))
        raise InputError(
            f"x of curve {name!r} falls from {xs[at]:.6g} to {xs[at + 1]:.6g}, but must ascend; "
            "sort the points"
        )
    return xs, ys


def _isolated_points(ys: Float[np.ndarray, " points"]) -> list[int]:
    """Points between gaps, which a line does not show."""
    gaps = ~np.isfinite(np.concatenate([[np.nan], ys, [np.nan]]))
    return np.flatnonzero(gaps[:-2] & ~gaps[1:-1] & gaps[2:]).tolist()


def _check_positive(values: Mapping[str, ArrayLike]) -> None:
    for name, ys in values.items():
        if np.nanmin(ys) <= 0:
            raise InputError(
                f"{name!r} has the value {np.nanmin(ys):.6g}, which a logarithmic scale cannot "
                "show; give logarithmic=False"
            )


def _format_axes(ax: Axes, logarithmic: bool) -> None:
    """Round numbers along both axes and a faint grid."""
    ax.set_yscale("log" if logarithmic else "linear")
    ax.margins(x=0.01)
    even = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
    _set_ticks(ax.xaxis, *ax.get_xlim(), even)
    _set_ticks(ax.yaxis, *ax.get_ylim(), LogLocator(10, (1, 2, 5)) if logarithmic else even)
    ax.grid(color=style.FAINT, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)


def _set_ticks(axis: Axis, low: Real, high: Real, locator: Locator) -> None:
    ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
    axis.set_ticks([], minor=True)
    axis.set_ticks(ticks, [f"{tick:,.6g}".replace("-", "−") for tick in ticks])


def _line_styles(curves: Mapping, levels: Mapping) -> dict[str, dict]:
    """A distinct color and dash pattern for each line, readable without colors too."""
    styles = {}
    for i, name in enumerate(curves):
        color, dashes = style.LINE_COLORS[i % len(style.LINE_COLORS)], style.DASHES[i % 4]
        styles[name] = {"color": color, "linestyle": dashes, "linewidth": 1.4}
    for i, name in enumerate(levels):
        styles[name] = {"color": style.SOFT, "linestyle": (0, (1 + 3 * i, 2)), "linewidth": 0.9}
    return styles


def _describe_curve(
    name: str, xs: Float[np.ndarray, " points"], ys: Float[np.ndarray, " points"]
) -> str:
    xs, ys = xs[np.isfinite(ys)], ys[np.isfinite(ys)]
    low, high = int(ys.argmin()), int(ys.argmax())
    return (
        f"{name}: from {ys[0]:.4g} at {xs[0]:g} to {ys[-1]:.4g} at {xs[-1]:g}, lowest "
        f"{ys[low]:.4g} at {xs[low]:g}, highest {ys[high]:.4g} at {xs[high]:g}"
    )


@style.styled
def plot_spread(
    values: Mapping[str, ArrayLike],
    *,
    label: str,
    marked: ArrayLike | None = None,
    marked_name: str = "this model",
    limits: ArrayLike | None = None,
    limits_name: str = "limit",
    title: str = "One quantity of several models",
) -> DescribedFigure:
    """Quantities of several models, for example of several seeds: a dot for each model.

    Args:
      values: [M] by the name of the quantity, for M models.
      label: what the numbers are, with their unit.
      marked: one more number for each quantity, of a highlighted model.
      marked_name: name of that model.
      limits: a number for each quantity to compare its dots with.
      limits_name: name of the limits.
      title: above the figure.
    """
    check_not_empty("values", values)
    sizes = Sizes()
    names = sizes.tokens("the names of values", list(values), "R")
    dots = np.array([sizes.array(f"values[{n!r}]", each, "M") for n, each in values.items()])
    models, rows = dots.shape[1], np.arange(len(names))
    # Dots of different models are drawn at slightly different heights, so that none hides another.
    lift = (np.arange(models) - (models - 1) / 2) * 0.5 / models
    series = [(f"{models} models", dots, rows[:, None] + lift, DOT)]
    if limits is not None:
        limits = sizes.array("limits", limits, "R")
        series.append((limits_name, limits, rows, LIMIT))
    if marked is not None:
        marked = sizes.array("marked", marked, "R")
        series.append((marked_name, marked, rows, MARK))

    left = max(text_width(printable(name), style.TEXT) for name in names) + 0.15
    figure = parts.sheet(left + 4.8, 0.3 * len(names) + 0.8, title)
    ax = parts.axes(figure, left, 0.3, 4.6, 0.3 * len(names), "spread")
    ax.hlines(rows, 0, 1, transform=ax.get_yaxis_transform(), color=style.FAINT, linewidth=0.6)
    ax.axvline(0, color=style.SOFT, linewidth=0.6)
    x = left
    for name, xs, ys, look in series:
        ax.plot(xs, ys, linestyle="none", **look)
        figure.content.plot(x + 0.06, 0.1, linestyle="none", **look)
        parts.put_text(figure.content, x + 0.17, 0.1, name, ha="left", fontsize=style.SMALL)
        x += text_width(printable(name), style.SMALL) + 0.42
    _format_rows(ax, names, label)
    items = [
        f"{name}: {dots[row].min():.2f} to {dots[row].max():.2f}"
        + ("" if marked is None else f", {marked_name} {marked[row]:.2f}")
        + ("" if limits is None else f", {limits_name} {limits[row]:.2f}")
        for row, name in enumerate(names)
    ]
    figure.description = f"{title} ({label}), of {models} models. {listed(items, 16)}."
    return figure


def _format_rows(ax: Axes, names: list[str], label: str) -> None:
    """One row a quantity, and ticks within the axis."""
    low, high = ax.get_xlim()
    # Ticks beyond the axis are not drawn, but their text has an extent.
    ax.set_xticks([tick for tick in ax.get_xticks() if low <= tick <= high])
    ax.set_xlim(low, high)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(range(len(names)), [printable(name) for name in names])
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(printable(label))
    ax.spines[["top", "right", "left"]].set_visible(False)
