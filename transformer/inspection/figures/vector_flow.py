# SPDX-License-Identifier: Apache-2.0
"""The vectors of all tokens on their paths through one layer."""

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
from matplotlib.axes import Axes

from transformer.arrays import Float
from transformer.errors import InputError
from transformer.inspection.activations import StackTrace
from transformer.inspection.argument_checks import Sizes, check_weights
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, text_width

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
def plot_vector_flow(
    stack: StackTrace, tokens: Sequence[str], *, layer: int = 0, title: str | None = None
) -> DescribedFigure:
    """One vector a token through one layer: attention connects the paths, feed-forward does not.

    A tile is one vector, its numbers in rows from the top left. Lines are attention weights, the
    mean over the heads; a dotted line is the residual connection.

    Args:
      stack: `Trace.encoder` or `Trace.decoder` of one sentence pair, with full capture.
      tokens: for a decoder the labels of `read_predict`.

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
    labeled = parts.axes(figure, LEFT, tops[0], full, height, "tokens")
    labeled.set_xlim(-0.5, len(tokens) - 0.5)
    labeled.patch.set_alpha(0)
    labeled.set_yticks([])
    labeled.spines[:].set_visible(False)
    parts.column_labels(labeled, tokens)
    centers = LEFT + pitch * (np.arange(len(tokens)) + 0.5)
    for name, above, below in zip(names, tops[:-1], tops[1:], strict=True):
        ends = above + height + 0.03, below - 0.03
        look = {"ha": "left", "fontsize": style.HEADING}
        parts.put_text(content, 0, sum(ends) / 2, name, **look)
        if name == "self-attention":
            _draw_attention(content, centers, ends, mean)
        else:
            _draw_band(content, centers, ends, pitch, INSIDE[name])
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


def _draw_attention(
    content: Axes,
    centers: Float[np.ndarray, " T"],
    ends: tuple[Real, Real],
    weights: Float[np.ndarray, "T T"],
) -> None:
    """Lines from the tokens that are read to those that read them."""
    for t, row in enumerate(weights):
        content.plot([centers[t], centers[t]], ends, ":", color=style.SOFT, linewidth=0.8)
        for s, weight in enumerate(row):
            if weight >= LEAST:
                content.plot(
                    [centers[s], centers[t]],
                    ends,
                    color=style.POSITIVE,
                    alpha=min(weight, 1.0),
                    linewidth=0.8 + 1.6 * weight,
                    gid=f"from {s} to {t}",
                )


def _draw_band(
    content: Axes,
    centers: Float[np.ndarray, " T"],
    ends: tuple[Real, Real],
    pitch: Real,
    text: str,
) -> None:
    """A sublayer through which every path runs alone."""
    start, end = ends
    for center in centers:
        content.plot([center, center], [start, end], color=style.POSITIVE, linewidth=1.2)
    outer, middle = (1 - BETWEEN) / 2 * pitch, sum(ends) / 2
    left, right = centers[0] - outer, centers[-1] + outer
    look = {"facecolor": style.PALE, "zorder": 3}
    parts.put_box(content, left, middle - 0.1, right - left, 0.2, **look)
    if text_width(text, style.TEXT) < right - left:
        parts.put_text(content, (left + right) / 2, middle, text, zorder=4, color=style.SOFT)
