# SPDX-License-Identifier: Apache-2.0
"""The residual stream: what each sub-layer adds to it, and what layer norm leaves."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import Picture
from transformer.inspection.residual import ResidualFlow, length


@style.styled
def plot_residual_flow(
    before: ArrayLike,
    added: ArrayLike,
    after: ArrayLike,
    sublayers: Sequence[str],
    tokens: Sequence[str],
    *,
    title: str = "What every sub-layer adds to the residual stream",
) -> Picture:
    """Lengths of x, f(x), x + f(x) and of the stream that goes on, sub-layer by sub-layer.

    With post-norm the stream goes on as LayerNorm(x + f(x)); with pre-norm as x + f(x), and f reads
    LayerNorm(x).

    The arrays and the names are those of `residual.residual_flow`.

    Args:
      before: [U,T,D], x: the stream that enters each of U sub-layers, layer after layer.
      added: [U,T,D], f(x): what the sub-layer computes.
      after: [U,T,D], the stream that leaves it.
      sublayers: U names, such as "1 self-attention".
      tokens: T labels.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together.
    """
    sizes = Sizes()
    before = sizes.array("before", before, "U T D")
    added = sizes.array("added", added, "U T D")
    after = sizes.array("after", after, "U T D")
    names = sizes.tokens("sublayers", sublayers, "U")
    tokens = sizes.tokens("tokens", tokens, "T")
    flow = ResidualFlow(tuple(names), before, added, after)
    vectors = {"x": before, "f(x)": added, "x + f(x)": flow.total, "goes on": after}
    lengths = {name: np.asarray(length(own)) for name, own in vectors.items()}
    share = lengths["f(x)"] / np.maximum(lengths["x"], 1e-30)
    cosine = np.asarray(flow.cosine())

    cell = min(max(3.0 / len(tokens), 0.2), 0.42)
    row = min(max(3.0 / len(names), 0.2), 0.32)
    left = parts.label_width(names) + 0.15
    wide, high = cell * len(tokens), row * len(names)
    heading = parts.label_height(tokens, cell) + 0.3
    beside = len(tokens) <= 12
    panel = wide + parts.COLOUR_BAR_WIDTH
    chart = 3.0
    top = 0.5
    second_left = left if not beside else left + chart + 0.5
    second_top = max(top, heading) if beside else top + high + 0.55 + heading
    third_left = second_left + panel + 0.35 if beside else second_left
    third_top = second_top if beside else second_top + high + 0.3 + heading
    width = max(third_left + panel, left + chart + 2.2)
    note = (
        "x is the stream that comes to a sub-layer, f(x) what it computes. LayerNorm(x + f(x)) "
        "goes on with post-norm; x + f(x) with pre-norm, where f reads LayerNorm(x)."
    )
    picture = style.sheet(width, third_top + high + (0.35 if beside else 0.05), title, note)

    chart_top = second_top if beside else top
    ax = style.axes(picture, left, chart_top, chart, high)
    ax.set_label("lengths")
    looks = (
        ("x", "o", style.BLUE),
        ("f(x)", "^", style.VERMILION),
        ("x + f(x)", "s", style.GREEN),
        ("goes on", "D", style.INK),
    )
    for name, marker, colour in looks:
        ax.plot(
            lengths[name].mean(-1),
            np.arange(len(names)),
            marker=marker,
            color=colour,
            label=name,
            markersize=4,
            linewidth=0.9,
            markerfacecolor="none" if name == "goes on" else colour,
        )
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(left=0)
    parts.row_labels(ax, names)
    ax.grid(axis="y", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.tick_params(axis="x", labelsize=7)
    ax.set_xlabel("length ‖·‖, mean over the tokens", fontsize=7.5)
    if beside:
        ax.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=2,
            frameon=False,
            fontsize=7.5,
            borderaxespad=0.1,
            columnspacing=1.2,
        )
    else:
        ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=8)

    lowest = float(np.floor(cosine.min() * 10) / 10)
    for name, values, at, here, limits in (
        ("‖f(x)‖ / ‖x‖", share, second_left, second_top, (0.0, float(share.max()))),
        ("cosine of x and x + f(x)", cosine, third_left, third_top, (lowest, 1.0)),
    ):
        ax = style.axes(picture, at, here, wide, high)
        ax.set_label(name)
        image = parts.heat(ax, values, limits)
        parts.column_labels(ax, tokens)
        if not beside:
            parts.row_labels(ax, names)
        picture.text(
            (style.MARGIN + at) / picture.get_figwidth(),
            ax.get_position().y1 + (heading - 0.12) / picture.get_figheight(),
            name,
            fontsize=9,
        )
        parts.colour_bar(picture, image, "", at + wide + 0.12, here, high)
    told = [
        f"{name}: {lengths['x'][u].mean():.2f}, {lengths['f(x)'][u].mean():.2f}, "
        f"{lengths['x + f(x)'][u].mean():.2f}, {lengths['goes on'][u].mean():.2f}"
        for u, name in enumerate(names)
    ]
    picture.description = (
        f"{title}, over {len(tokens)} tokens. Mean lengths of x, of f(x), of their sum, and of "
        f"what goes on: {parts.list_of(told, 18)}."
    )
    return picture
