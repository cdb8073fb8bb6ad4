# SPDX-License-Identifier: Apache-2.0
"""Curves over a common axis, such as a loss."""

from collections.abc import Mapping
from numbers import Real

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from transformer.arrays import Float
from transformer.errors import InputError
from transformer.inspection.argument_checks import Sizes, check_not_empty
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import printable, text_width

WIDTH, HEIGHT = 5.2, 2.7
"""Size of the plot area of curves."""
LEFT, BELOW = 0.68, 0.5
"""Space for the numbers and the name of each axis."""
LINE = 0.24
"""Line height of the legend."""


@style.styled
def plot_curves(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    x_label: str,
    y_label: str,
    levels: Mapping[str, Real] | None = None,
    title: str = "Curves",
) -> DescribedFigure:
    """Curves with a legend beside them, in the order of their ends.

    Args:
      curves: x and y of each curve by name: two arrays [P], x ascending. A y that is not finite
        leaves a gap.
      x_label: what x is, with its unit.
      y_label: what y is, with its unit.
      levels: y of horizontal lines by name.
    """
    check_not_empty("curves", curves)
    levels = dict(levels or {})
    points = {name: _checked_points(name, *curve) for name, curve in curves.items()}
    ends = {name: ys[np.isfinite(ys)][-1] for name, (_, ys) in points.items()} | levels
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
    _format_axes(ax)
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


def _format_axes(ax: Axes) -> None:
    """Round numbers along both axes and a faint grid."""
    ax.margins(x=0.01)
    locator = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        axis.set_ticks(ticks, [f"{tick:,.6g}".replace("-", "−") for tick in ticks])
    ax.grid(color=style.FAINT, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)


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
