# SPDX-License-Identifier: Apache-2.0
"""The residual stream: the paths of all tokens, every sublayer's output, vectors around one."""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from matplotlib.axes import Axes

from transformer.arrays import Float
from transformer.errors import InputError
from transformer.inspection.activations import StackTrace
from transformer.inspection.argument_checks import Sizes, check_weights, checked, checked_index
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, text_width
from transformer.inspection.residual import ResidualFlow

CHART, MAP = 2.3, 2.7
"""Width of the chart of norms, and of each map."""
MARKERS = {
    "x": ("o", style.BLUE),
    "f(x)": ("^", style.VERMILION),
    "x + f(x)": ("s", style.GREEN),
    "output": ("D", style.INK),
}

WIDTH = 8.2
"""Width of all paths."""
BETWEEN = 0.18
"""Share of a path's width that is between two tiles."""
LEAST = 0.01
"""Least weight that is drawn."""
LEFT = 1.35
"""Width of the names of the steps."""
INSIDE = {
    "cross-attention": "each path reads the memory, the output of the encoder",
    "feed-forward": "the same network for every token, each alone",
}
"""What is written into a sublayer that connects no paths."""
BAND = {"self-attention": 1.1, "cross-attention": 0.46, "feed-forward": 0.46}
"""Height between two rows of vectors."""


@style.styled
def plot_residual_flow(
    flow: ResidualFlow,
    tokens: Sequence[str],
    *,
    title: str = "Contribution of every sublayer to the residual stream",
) -> DescribedFigure:
    """Norms of x, f(x), x + f(x) and of the output, and the angle that f(x) turns x by.

    With post-norm the output is LayerNorm(x + f(x)). With pre-norm it is x + f(x), and f reads
    LayerNorm(x).
    """
    flow, names, tokens = _checked(flow.before, flow.added, flow.after, flow.names, tokens)
    norms, angle = flow.norms(), np.degrees(np.arccos(flow.cosine().clip(-1, 1)))
    share = norms["f(x)"] / np.maximum(norms["x"], 1e-30)

    cell = (min(MAP / len(tokens), 0.42), min(max(2.4 / len(names), 0.18), 0.32))
    panels = [
        parts.Panel(
            values=values,
            cell=cell,
            name=name,
            heading=name,
            columns=tokens,
            limits=(0.0, float(np.ceil(values.max() * 100) / 100) or 1.0),
            legend=unit,
        )
        for name, unit, values in (
            ("‖f(x)‖ / ‖x‖", "ratio", share),
            ("angle between x and x + f(x)", "degrees", angle),
        )
    ]
    left = parts.label_width(names) + 0.15
    note = (
        "x is the input of a sublayer, f(x) what it adds. The output is LayerNorm(x + f(x)) with "
        "post-norm, and x + f(x) with pre-norm, where f reads LayerNorm(x)."
    )
    figure, _ = parts.draw_panels([panels], title=title, note=note, left=left + CHART + 0.45)
    ax = parts.axes(figure, left, panels[0].above, CHART, cell[1] * len(names), "norms")
    _draw_norms(ax, norms, names)
    items = [
        f"{name}: " + ", ".join(f"{values[u].mean():.2f}" for values in norms.values())
        for u, name in enumerate(names)
    ]
    figure.description = (
        f"{title}, over {len(tokens)} tokens. Mean norms of x, of f(x), of their sum, and of the "
        f"output: {listed(items, 18)}."
    )
    return figure


@style.styled
def plot_residual_norm(
    flow: ResidualFlow, sublayer: int, tokens: Sequence[str], *, title: str | None = None
) -> DescribedFigure:
    """The vectors around one sublayer: x, f(x), their sum and, with post-norm, LayerNorm of it.

    Args:
      sublayer: index into `flow.names`.
    """
    flow, names, tokens = _checked(flow.before, flow.added, flow.after, flow.names, tokens)
    sublayer = checked_index("sublayer", sublayer, len(names))
    x, added, after = flow.before[sublayer], flow.added[sublayer], flow.after[sublayer]
    total = x + added
    pre_norm = bool(np.allclose(total, after, atol=1e-5 * parts.largest(after)))
    steps = {"x": x, "+ f(x)": added, "= x + f(x)": total}
    if not pre_norm:
        steps["LayerNorm(x + f(x))"] = after

    width, height = 1.75, max(min(3.6 / len(tokens), 0.24), 0.16)
    limit, beyond = parts.common(*steps.values())
    shown = ("= x + f(x)", "LayerNorm(x + f(x))")
    panels = [
        parts.Panel(
            values=vectors,
            cell=(width / vectors.shape[1], height),
            name=name,
            heading=name,
            rows=tokens if i == 0 else None,
            legend=f"value{beyond}" if i == 0 else None,
            beside=_mean_and_deviation(vectors) if name in shown else {},
            **parts.signed(limit),
        )
        for i, (name, vectors) in enumerate(steps.items())
    ]
    title = title or f"Residual connection and layer norm around {names[sublayer]}"
    note = "Rows: tokens; columns: dimensions. σ: standard deviation over the dimensions. " + (
        "With pre-norm the sum is the output, and f reads LayerNorm(x)."
        if pre_norm
        else "The layer norm ends with a learned scale and shift of each dimension."
    )
    figure, _ = parts.draw_panels([panels], title=title, note=note, apart=0.16)
    items = [
        f"{name} has a mean of {vectors.mean():.2f} and standard deviations over the dimensions "
        f"from {vectors.std(-1).min():.2f} to {vectors.std(-1).max():.2f}"
        for name, vectors in steps.items()
    ]
    figure.description = f"{title}, for {len(tokens)} tokens. {'; '.join(items)}."
    return figure


@checked
def _checked(
    before: Float[np.ndarray, "U T D"],
    added: Float[np.ndarray, "U T D"],
    after: Float[np.ndarray, "U T D"],
    names: Annotated[list[str], "U"],
    tokens: Annotated[list[str], "T"],
) -> tuple[ResidualFlow, list[str], list[str]]:
    """The flow in NumPy, the names of its sublayers, and the labels of its tokens."""
    return ResidualFlow(tuple(names), before, added, after), names, tokens


def _mean_and_deviation(vectors: Float[np.ndarray, "T D"]) -> dict[str, list[str]]:
    """Columns of text: mean and standard deviation of each vector."""
    return {
        "mean": [parts.formatted(value, "{:.2f}") for value in vectors.mean(-1)],
        "σ": [f"{value:.2f}" for value in vectors.std(-1)],
    }


def _draw_norms(ax: Axes, norms: dict[str, Float[np.ndarray, "U T"]], names: list[str]) -> None:
    """Mean norms over the tokens, one line a kind of vector."""
    for name, (marker, color) in MARKERS.items():
        ax.plot(
            norms[name].mean(-1),
            np.arange(len(names)),
            marker=marker,
            color=color,
            label=name,
            markersize=4,
            linewidth=0.9,
            fillstyle="none" if name == "output" else "full",
        )
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(left=0)
    parts.row_labels(ax, names)
    ax.grid(axis="y", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.set_xlabel("norm ‖·‖, mean over the tokens", fontsize=style.TEXT)
    look = {"frameon": False, "fontsize": style.TEXT, "borderaxespad": 0.1, "columnspacing": 1.2}
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, **look)


@style.styled
def plot_vector_flow(
    stack: StackTrace, tokens: Sequence[str], *, layer: int = 0, title: str | None = None
) -> DescribedFigure:
    """One vector a token through one layer: attention connects the paths, feed-forward does not.

    A tile is one vector, its numbers in rows from the top left. Lines are attention weights, the
    mean over the heads; a dotted line is the residual connection.

    Args:
      stack: `Trace.encoder` or `Trace.decoder` of one sentence pair, with full capture.
      tokens: labels; for a decoder those of `read_predict`.

    Raises:
      InputError: when the capture was not full.
    """
    if stack.residual is None:
        raise InputError("the residual stream was not captured; run with capture='full'")
    sizes = Sizes()
    residual = sizes.array("stack.residual", stack.residual, "L+1 T D")
    results = sizes.array("stack.sublayers", stack.sublayers, "L U T D")
    weights = sizes.array("the weights", stack.self_attention.weights, "L N T T")
    tokens = sizes.tokens("tokens", tokens, "T")
    layer = sizes.index("layer", layer, "L")
    check_weights(weights, name="the weights")
    mean = weights[layer].mean(0)  # [T, T]

    names = ["self-attention", "cross-attention", "feed-forward"]
    names = names if results.shape[1] == 3 else [names[0], names[2]]
    levels = [residual[layer], *results[layer]]
    title = title or f"The vectors of {len(tokens)} tokens in layer {layer + 1}"
    note = (
        f"A tile is the vector of one token, {residual.shape[-1]} numbers in rows. Lines: "
        "attention weights, mean over the heads; the opacity is the weight. Dotted: residual "
        "connection."
    )
    pitch = min(WIDTH / len(tokens), 0.72)
    across = _across(residual.shape[-1])
    height = (1 - BETWEEN) * pitch * math.ceil(residual.shape[-1] / across) / across
    limit, beyond = parts.common(*levels)
    labels, overhang = parts.label_extent(tokens, pitch)
    tops = labels + 0.1 + np.cumsum([0.0, *(height + BAND[name] for name in names)])
    full, bottom = pitch * len(tokens), tops[-1] + height
    figure = parts.sheet(LEFT + full + overhang, bottom + parts.LEGEND + 0.05, title, note)
    content = figure.content
    steps = [f"input of layer {layer + 1}", *(f"after {name}" for name in names)]
    for top, step, vectors in zip(tops, steps, levels, strict=True):
        parts.put_text(content, 0, top + height / 2, step, ha="left", color=style.SOFT)
        tiles = _tiles(vectors, across)
        ax = parts.axes(figure, LEFT, top, full, height, step)
        image = parts.heat(ax, tiles.data, hidden=tiles.mask, marked=False, **parts.signed(limit))
        ax.spines[:].set_visible(False)
    # The tokens above the first row of vectors.
    labeled = parts.axes(figure, LEFT, tops[0], full, height, "tokens")
    labeled.set_xlim(-0.5, len(tokens) - 0.5)
    labeled.patch.set_alpha(0)
    labeled.set_yticks([])
    labeled.spines[:].set_visible(False)
    parts.column_labels(labeled, tokens)
    # The sublayers between the rows: lines of attention, or a band that every path crosses alone.
    centers = LEFT + pitch * (np.arange(len(tokens)) + 0.5)
    for name, above, below in zip(names, tops[:-1], tops[1:], strict=True):
        ends = above + height + 0.03, below - 0.03
        look = {"ha": "left", "fontsize": style.HEADING}
        parts.put_text(content, 0, sum(ends) / 2, name, **look)
        if name == "self-attention":
            for t, (x, row) in enumerate(zip(centers, mean, strict=True)):
                content.plot([x, x], ends, ":", color=style.SOFT, linewidth=0.8)
                for s in np.flatnonzero(row >= LEAST):
                    width, opacity = 0.8 + 1.6 * row[s], min(row[s], 1.0)
                    look = {"color": style.POSITIVE, "linewidth": width, "alpha": opacity}
                    content.plot([centers[s], x], ends, gid=f"from {s} to {t}", **look)
        else:
            for x in centers:
                content.plot([x, x], ends, color=style.POSITIVE, linewidth=1.2)
            width, left = pitch * (len(tokens) - BETWEEN), LEFT + BETWEEN / 2 * pitch
            band = left, sum(ends) / 2 - 0.1, width, 0.2
            parts.put_box(content, *band, facecolor=style.PALE, zorder=3)
            if text_width(INSIDE[name], style.TEXT) < width:
                look = {"zorder": 4, "color": style.SOFT}
                parts.put_text(content, left + width / 2, sum(ends) / 2, INSIDE[name], **look)
    parts.draw_legend(figure, image, f"value{beyond}", LEFT, bottom + 0.15)
    read = [
        f"{token!r} from {tokens[row.argmax()]!r} ({row.max():.2f})"
        for token, row in zip(tokens, mean, strict=True)
    ]
    figure.description = (
        f"{title}, {residual.shape[-1]} numbers each, through {', '.join(names)}. Only attention "
        f"connects the paths: in the mean of the heads each token reads most, {listed(read, 16)}."
    )
    return figure


def _across(size: int) -> int:
    """Numbers in a row of a tile that is about twice as wide as high."""
    return 2 ** math.ceil(math.log2(2 * size) / 2 - 1e-9)


def _tiles(vectors: Float[np.ndarray, "T D"], across: int) -> np.ma.MaskedArray:
    """All vectors of a level as tiles beside each other, with masked cells between them."""
    count, size = vectors.shape
    rows, gap = math.ceil(size / across), max(round(across * BETWEEN / (1 - BETWEEN) / 2), 1)
    tiles = np.ma.array(np.zeros((rows, count, across + 2 * gap)), mask=True)
    padded = np.ma.array(np.zeros((count, rows * across)), mask=True)
    padded[:, :size] = vectors
    tiles[:, :, gap:-gap] = padded.reshape(count, rows, across).swapaxes(0, 1)
    return tiles.reshape(rows, -1)
