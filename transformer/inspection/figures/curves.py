# SPDX-License-Identifier: Apache-2.0
"""Lines over a common axis: a loss while it falls, a learning rate, what a penalty is."""

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
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import Picture

WIDE, HIGH = 5.2, 2.7
"""Inches of the plane that the lines are drawn in."""
LEFT, BELOW = 0.68, 0.5
"""Inches for the numbers and the name of each axis."""
LINE = 0.24
"""Inches from name to name in the key."""


@style.styled
def plot_curves(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    x_label: str,
    y_label: str,
    levels: Mapping[str, Real] | None = None,
    logarithmic: bool = False,
    title: str = "Curves",
) -> Picture:
    """Lines, each with its name in a key beside them, in the order in which they end.

    Args:
      curves: by name, where each is along x and how high: two arrays [P], x ascending.
      x_label: what x is, with its unit.
      y_label: what the height is, with its unit.
      levels: by name, heights at which a thin line is drawn from side to side.
      logarithmic: whether the heights are on a logarithmic scale.
      title: above the figure.

    Raises:
      InputError: for no curve, arrays that do not belong together, an x that falls, or on a
        logarithmic scale a height that is not positive.
    """
    if not curves:
        raise InputError("curves is empty: there is nothing to draw; give at least one, by name")
    levels = dict(levels or {})
    lines = {name: _checked(name, *curve) for name, curve in curves.items()}
    heights = {name: ys[-1] for name, (_, ys) in lines.items()} | levels
    if logarithmic:
        _check_positive({name: ys for name, (_, ys) in lines.items()} | levels)
    key = max(style.text_width(style.shown(name), 8) for name in heights) + 0.6
    width, height = LEFT + WIDE + key, max(HIGH + BELOW, LINE * (len(heights) + 0.5))
    picture = style.sheet(width, height, title)
    ax = style.axes(picture, LEFT, 0.0, WIDE, HIGH)
    looks = _looks(lines, levels)
    for name, (xs, ys) in lines.items():
        marker = "o" if len(xs) == 1 else None
        ax.plot(xs, ys, **looks[name], marker=marker, markersize=3).pop().set_gid(f"curve {name}")
    for name, level in levels.items():
        ax.axhline(level, **looks[name]).set_gid(f"level {name}")
    ax.set_yscale("log" if logarithmic else "linear")
    ax.margins(x=0.01)
    even = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
    _ticks(ax.xaxis, *ax.get_xlim(), even)
    _ticks(ax.yaxis, *ax.get_ylim(), LogLocator(10, (1, 2, 5)) if logarithmic else even)
    ax.set_xlabel(style.shown(x_label))
    ax.set_ylabel(style.shown(y_label))
    ax.grid(color=style.FAINT, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)
    _key(style.canvas(picture, width, height), heights, looks)
    told = [_told(name, xs, ys) for name, (xs, ys) in lines.items()]
    told += [f"a line at {level:.4g}: {name}" for name, level in levels.items()]
    picture.description = f"{title}: {y_label} over {x_label}. {'; '.join(told)}."
    return picture


def _checked(
    name: str, xs: ArrayLike, ys: ArrayLike
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
    sizes = Sizes()
    xs = sizes.array(f"the x of curve {name!r}", xs, "P")
    ys = sizes.array(f"the heights of curve {name!r}", ys, "P")
    if (np.diff(xs) < 0).any():
        place = int(np.argmax(np.diff(xs) < 0))
        raise InputError(
            f"the x of curve {name!r} falls from {xs[place]:.6g} to {xs[place + 1]:.6g}, but must "
            "ascend; sort the points"
        )
    return xs, ys


def _check_positive(heights: Mapping[str, ArrayLike]) -> None:
    for name, values in heights.items():
        if np.min(values) <= 0:
            raise InputError(
                f"{name!r} has the height {np.min(values):.6g}, which a logarithmic scale cannot "
                "show; give logarithmic=False"
            )


def _ticks(axis: Axis, low: Real, high: Real, locator: Locator) -> None:
    """Round numbers along an axis, as far as it goes."""
    ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
    axis.set_ticks([], minor=True)
    axis.set_ticks(ticks, [f"{tick:,.6g}".replace("-", "−") for tick in ticks])


def _looks(curves: Mapping, levels: Mapping) -> dict[str, dict]:
    """How each line is drawn: no two curves alike, whoever cannot see colours included."""
    colours, dashes = style.HEAD_COLOURS, style.DASHES
    looks = {
        name: {
            "color": colours[number % len(colours)],
            "linestyle": dashes[number % len(dashes)],
            "linewidth": 1.4,
        }
        for number, name in enumerate(curves)
    }
    return looks | {
        name: {
            "color": style.SOFT,
            "linestyle": (0, (1 + 3 * number, 2)),
            "linewidth": 0.9,
        }
        for number, name in enumerate(levels)
    }


def _key(content: Axes, heights: Mapping[str, Real], looks: Mapping[str, dict]) -> None:
    """What each line is called, the highest end first."""
    for number, name in enumerate(sorted(heights, key=heights.get, reverse=True)):
        y, x = 0.15 + LINE * number, LEFT + WIDE + 0.15
        content.plot([x, x + 0.35], [y, y], **looks[name])
        parts.unit_text(content, x + 0.42, y, name, ha="left", fontsize=8)


def _told(name: str, xs: Float[np.ndarray, " P"], ys: Float[np.ndarray, " P"]) -> str:
    """A curve in words."""
    least, most = int(ys.argmin()), int(ys.argmax())
    return (
        f"{name}: from {ys[0]:.4g} at {xs[0]:g} to {ys[-1]:.4g} at {xs[-1]:g}, lowest "
        f"{ys[least]:.4g} at {xs[least]:g}, highest {ys[most]:.4g} at {xs[most]:g}"
    )
