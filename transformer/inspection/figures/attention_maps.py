# SPDX-License-Identifier: Apache-2.0
"""Attention weights: one head, all layers and heads, all heads for one token, an alignment."""

from collections.abc import Collection
from numbers import Real
from typing import Annotated, get_args

import numpy as np
from matplotlib.axis import Axis
from matplotlib.image import AxesImage

from transformer.arrays import Bool, Float
from transformer.errors import InputError
from transformer.inspection.alignment import Convention
from transformer.inspection.argument_checks import check_weights, checked, checked_index
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import (
    isolated,
    listed,
    shortened,
)

LONGEST_NAMED = 12
"""Tokens along an axis of a small map; more are numbered."""
WIDTH = 7.5
"""Width of all maps of a layer, in inches; a grid whose named maps are wider has numbers."""
QUANTILE = 0.99
"""Share of the weights that the colors of a grid distinguish, at least."""

NOT_WHY = "A weight says where a head reads, not why the model answers."


@style.styled
@checked
def plot_attention(
    weights: Float[np.ndarray, "T S"],
    query_tokens: Annotated[list[str], "T"],
    key_tokens: Annotated[list[str], "S"],
    *,
    mask: Bool[np.ndarray, "T S"] | None = None,
    annotate: bool = False,
    title: str = "Attention weights",
) -> DescribedFigure:
    """Attention weights of one head, one row a query.

    Args:
      weights: attention weights after the softmax.
      query_tokens: labels of the rows; for a decoder those of `read_predict`.
      mask: true where a query may attend; other cells are crossed out.
      annotate: write the weights into the cells.
    """
    check_weights(weights, mask, "weights")

    note = f"Rows: queries; columns: keys. {NOT_WHY}"
    smallest = 0.29 if annotate else parts.SMALLEST_CELL
    hidden = None if mask is None else ~mask
    figure, image = _matrix(weights, query_tokens, key_tokens, hidden, smallest, title, note)
    if annotate:
        parts.write_numbers(image)
    figure.description = (
        f"{title}: {len(query_tokens)} queries (rows) over {len(key_tokens)} keys (columns), each "
        f"row summing to 1. {_strongest(weights, query_tokens, key_tokens)}."
    )
    return figure


def _matrix(
    weights: Float[np.ndarray, "T S"],
    queries: list[str],
    keys: list[str],
    hidden: Bool[np.ndarray, "T S"] | None,
    smallest_cell: Real,
    title: str,
    note: str,
) -> tuple[DescribedFigure, AxesImage]:
    """A figure of one matrix of weights."""
    cell = min(max(5.5 / max(weights.shape), smallest_cell), 0.5)
    panel = parts.Panel(
        values=weights,
        cell=(cell, cell),
        rows=queries,
        columns=keys,
        hidden=hidden,
        legend="attention weight",
    )
    figure, [image] = parts.draw_panels([[panel]], title=title, note=note)
    return figure, image


def _strongest(weights: Float[np.ndarray, "T S"], queries: list[str], keys: list[str]) -> str:
    """The strongest key of the six queries with the most concentrated weights."""
    most_concentrated = np.argsort(-weights.max(-1), kind="stable")[:6]
    items = [
        f"{queries[row]!r} reads most from {keys[weights[row].argmax()]!r} "
        f"({weights[row].max():.2f})"
        for row in sorted(most_concentrated)
    ]
    prefix = "The most concentrated rows: " if len(queries) > 6 else ""
    return prefix + "; ".join(items)


@style.styled
@checked
def plot_attention_grid(
    weights: Float[np.ndarray, "L N T S"],
    query_tokens: Annotated[list[str], "T"],
    key_tokens: Annotated[list[str], "S"],
    *,
    title: str = "Attention weights of every layer and head",
) -> DescribedFigure:
    """A small map for every layer (rows) and head (columns).

    Where almost all weights are small, the colors of all maps end at 0.1, 0.2 or 0.5 instead of 1;
    the legend says so.

    Args:
      weights: attention weights after the softmax.
      query_tokens: labels of the rows; for a decoder those of `read_predict`.
    """
    check_weights(weights, name="weights")
    queries, keys, (layers, heads) = query_tokens, key_tokens, weights.shape[:2]
    longest, last = max(len(queries), len(keys)), layers - 1
    named = longest <= LONGEST_NAMED and heads * len(keys) * parts.SMALLEST_CELL <= WIDTH
    cell = parts.SMALLEST_CELL if named else min(parts.SMALLEST_CELL, 0.95 / longest)
    high, larger = _end_of_weights(weights)
    panels = [
        [
            parts.Panel(
                values=weights[layer, head],
                cell=(cell, cell),
                name=f"layer {layer + 1} head {head + 1}",
                heading=f"head {head + 1}" if layer == 0 else "",
                limits=(0.0, high),
                rows=queries if named and head == 0 else None,
                columns=keys if named and layer == 0 else None,
                legend=f"attention weight{larger}" if (layer, head) == (last, 0) else None,
                axis=0.0 if named or layer < last else 0.2,
            )
            for head in range(heads)
        ]
        for layer in range(layers)
    ]
    note, left = (NOT_WHY, 0.65) if named else (_numbered_tokens(queries, keys) + NOT_WHY, 0.85)
    figure, images = parts.draw_panels(
        panels, title=title, note=note, left=left, gap=0.1, apart=0.1
    )
    for layer in range(layers):
        axes = [image.axes for image in images[layer * heads : (layer + 1) * heads]]
        middle = axes[0].get_position().get_points()[:, 1].mean()
        corner = parts.MARGIN / figure.get_figwidth(), middle
        look = {"va": "center", "xycoords": "figure fraction"}
        axes[0].annotate(f"layer {layer + 1}", corner, **look)
        if not named:
            _number_axis(axes[0].yaxis, len(queries))
            for ax in axes if layer == last else ():
                _number_axis(ax.xaxis, len(keys))
    mean_highest = weights.max(-1).mean(-1)  # [L, N]
    layer, head = np.unravel_index(mean_highest.argmax(), mean_highest.shape)
    figure.description = (
        f"{title}: {layers} layers by {heads} heads, each a matrix of {len(queries)} "
        f"queries (rows) over {len(keys)} keys (columns) whose rows sum to 1. The most "
        f"concentrated is layer {layer + 1} head {head + 1}, whose rows give their "
        f"strongest key {mean_highest.max():.2f} on average. Queries: {listed(queries, 40)}. "
        f"Keys: {listed(keys, 40)}."
    )
    return figure


def _end_of_weights(weights: Float[np.ndarray, "L N T S"]) -> tuple[float, str]:
    """The weight at which the colors end, and what the legend says about larger ones."""
    most = np.quantile(weights, QUANTILE)
    high = next(end for end in (0.1, 0.2, 0.5, 1.0) if most <= end or end == 1.0)
    larger = (weights > high).mean()
    return high, f" ({larger:.1%} of them are above {high:g})" if larger else ""


def _number_axis(axis: Axis, size: int) -> None:
    """The numbers 1, 10, 20, ... along an axis; 1, 20, 40, ... of a long sentence."""
    step = 10 if size < 25 else 20
    ticks = [0, *range(step - 1, size, step)]
    axis.set_ticks(ticks, [str(tick + 1) for tick in ticks])
    axis.set_tick_params(pad=1)
    if axis.axis_name == "x":  # the numbers of maps beside each other do not touch
        first, last = axis.get_ticklabels()[0], axis.get_ticklabels()[-1]
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right" if ticks[-1] == size - 1 else "center")


def _numbered_tokens(queries: list[str], keys: list[str]) -> str:
    """The tokens with their numbers."""
    text, lists = "", {"Tokens": keys} if queries == keys else {"Keys": keys, "Queries": queries}
    for name, tokens in lists.items():
        items = [f"{i + 1} {isolated(token)}" for i, token in enumerate(tokens)]
        text += f"{name}: {', '.join(items)}. "
    return text


@style.styled
@checked
def plot_token_heads(
    weights: Float[np.ndarray, "N T S"],
    token: Annotated[int, "T"],
    query_tokens: Annotated[list[str], "T"],
    key_tokens: Annotated[list[str], "S"],
    *,
    normalize: str = "keys",
    title: str | None = None,
) -> DescribedFigure:
    """Attention of every head of a layer for one query, as lines and as numbers.

    Args:
      weights: those of one layer, after the softmax.
      token: position of the query, from 0.
      query_tokens: labels of the rows; for a decoder those of `read_predict`.
      normalize: ``keys`` draws attention: the weights of a head sum to 1 over the keys. ``heads``
        divides the weights of each key by their sum over the heads, like the figures of "it" in
        The Illustrated Transformer. These are shares between heads, not attention over words.
    """
    check_weights(weights, name="weights")
    queries, keys = query_tokens, key_tokens
    if normalize not in ("keys", "heads"):
        raise InputError(f"normalize is {normalize!r}, but must be 'keys' or 'heads'")

    values = weights[:, token]
    hidden = np.zeros(values.shape, bool)
    note = f"Attention of each head: a column sums to 1 over the keys. {NOT_WHY}"
    title = title or f"Where each head reads for {queries[token]!r}" + (
        " (shares between heads)" if normalize == "heads" else ""
    )
    if normalize == "heads":
        total = values.sum(0)
        hidden |= total == 0
        values = values / np.where(total, total, 1)
        note = (
            "As in the Illustrated Transformer's figure: each row sums to 1 over the heads. These "
            "are shares between heads, not attention over words."
        )
    heads, rows = len(values), max(len(queries), len(keys))
    height = min(max(6.0 / rows, 0.18), 0.32)
    start = parts.label_width(queries) + 0.1
    end = start + 2.2
    panel = parts.Panel(
        values=values.T,
        cell=(0.36, height),
        name="values",
        heading="head",
        columns=[str(head + 1) for head in range(heads)],
        hidden=hidden.T,
        legend="attention weight" if normalize == "keys" else "share between heads",
    )
    left = end + parts.label_width(keys) + 0.25
    spare = height * max(rows - len(keys), 0)
    figure, [image] = parts.draw_panels([[panel]], title=title, note=note, left=left, below=spare)
    parts.write_numbers(image, lowest=0.005)
    # The query labels, the lines and the key labels, in inches across and in rows downwards.
    ax = parts.axes(figure, 0.0, panel.above, left, height * rows)
    ax.set_xlim(0, left)
    ax.set_ylim(rows - 0.5, -0.5)
    ax.set_axis_off()
    for x, name, labels, align in (
        (start - 0.05, "query", queries, "right"),
        (end + 0.08, "keys", keys, "left"),
    ):
        parts.put_text(figure.content, x, panel.above - 0.12, name, ha=align, color=style.SOFT)
        for row, label in enumerate(labels):
            other = name == "query" and row != token
            label = shortened(label, parts.LONGEST_LABEL, style.TEXT)
            parts.put_text(ax, x, row, label, ha=align, color=style.SOFT if other else style.INK)
    for head, weights in enumerate(values):
        shift = (head - (heads - 1) / 2) * 0.6 / heads
        repeats, color = divmod(head, len(style.HEAD_COLORS))
        dashes = style.DASHES[repeats % len(style.DASHES)]
        look = {"color": style.HEAD_COLORS[color], "linestyle": dashes}
        x, y = left + 0.36 * (head + 0.5), panel.above - 0.04
        figure.content.plot([x - 0.13, x + 0.13], [y, y], lw=2.2, **look)
        for key in np.flatnonzero(weights > 0.01):
            width, name = 0.6 + 3.0 * weights[key], f"head {head + 1} key {key + 1}"
            look |= {"linewidth": width, "alpha": weights[key], "gid": name}
            ax.plot((start, end), (token, key + shift), solid_capstyle="butt", **look)
    items = [
        f"head {head + 1} most at {keys[row.argmax()]!r} ({row.max():.2f})"
        for head, row in enumerate(values)
    ]
    figure.description = (
        f"{title}, over {len(keys)} keys. {note} Highest value of each head: {listed(items, 16)}."
    )
    return figure


@style.styled
@checked
def plot_alignment(
    weights: Float[np.ndarray, "T S"],
    source: Annotated[list[str], "S"],
    target_in: Annotated[list[str], "T"],
    target_out: Annotated[list[str], "T"],
    *,
    gold: Collection[tuple[int, int]] | None = None,
    convention: str = "predict",
    title: str = "Cross-attention as an alignment",
) -> DescribedFigure:
    """Cross-attention weights and the gold word alignment.

    Row t is computed while the decoder reads ``target_in[t]`` and predicts ``target_out[t]``; its
    label has both. The convention decides which of the two the row aligns.

    Args:
      weights: those of one head, or a mean of heads.
      gold: pairs (t, s), drawn as frames: token t of `target_out` translates token s of `source`.
      convention: the row of a target token: the one that predicts it (``predict``) or the one that
        reads it (``read``, one row later), as in `alignment.target_rows`.
    """
    check_weights(weights, name="weights")
    queries = parts.read_predict(target_in, target_out)
    if convention not in get_args(Convention):
        raise InputError(f"convention is {convention!r}, but must be 'predict' or 'read'")
    for t, s in gold or ():
        checked_index("the target position of a gold pair", t, len(queries))
        checked_index("the source position of a gold pair", s, len(source))

    later = 0 if convention == "predict" else 1
    cells = sorted((t + later, s) for t, s in gold or () if t + later < len(queries))
    note = f"Rows: read → predict. A row aligns the token that it {convention}s."
    if cells:
        hits = sum(weights[t].argmax() == s for t, s in cells)
        note += (
            f" Frames: gold alignment; the highest weight of {hits} of {len({t for t, _ in cells})}"
            " aligned rows is in a frame."
        )
    figure, image = _matrix(weights, queries, source, None, parts.SMALLEST_CELL, title, note)
    for t, s in cells:
        parts.outline(image.axes, t, s, style.VERMILION, f"gold {t} {s}")
        image.axes.plot(s, t, "o", color=style.VERMILION, markersize=2.5, markeredgewidth=0)
    figure.description = (
        f"{title}: {len(queries)} target positions (rows, read → predict) over {len(source)} "
        f"source tokens. {note} {_strongest(weights, queries, source)}."
    )
    return figure
