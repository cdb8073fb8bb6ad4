# SPDX-License-Identifier: Apache-2.0
"""Attention weights: one head, all layers and heads, one token over heads, an alignment."""

import textwrap
from collections.abc import Collection, Sequence
from numbers import Real
from typing import get_args

import numpy as np
from matplotlib.axis import Axis
from numpy.typing import ArrayLike

from transformer.arrays import Float
from transformer.errors import InputError
from transformer.inspection.alignment import Convention
from transformer.inspection.attention_checks import check_weights
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import Picture

MOST_NAMED = 12
"""Tokens that a small matrix can name; of more it gives the numbers."""

NOT_WHY = "A weight says where a head reads, not why the model answers."


@style.styled
def plot_attention(
    weights: ArrayLike,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    mask: ArrayLike | None = None,
    annotate: bool = False,
    title: str = "Attention weights",
) -> Picture:
    """One head's weights, a row for each query.

    Args:
      weights: [T,S], after the softmax.
      query_tokens: T labels; of a decoder, from `read_predict`.
      key_tokens: S labels.
      mask: [T,S], true where a query may attend; the rest is crossed out.
      annotate: write the weights into the cells.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, rows that do not sum to 1, or weight where
        the mask is false.
    """
    sizes = Sizes()
    weights = sizes.array("weights", weights, "T S")
    queries = sizes.tokens("query_tokens", query_tokens, "T")
    keys = sizes.tokens("key_tokens", key_tokens, "S")
    allowed = np.ones(weights.shape, bool)
    if mask is not None:
        allowed = sizes.mask("mask", mask, "T S")
    check_weights(weights, allowed, "weights")

    picture, image = _matrix(weights, queries, keys, ~allowed, title, 0.27 if annotate else 0.2)
    if annotate:
        parts.numbers(image)
    picture.description = (
        f"{title}: {len(queries)} queries (rows) over {len(keys)} keys (columns), each row summing "
        f"to 1. {_strongest(weights, queries, keys)}."
    )
    return picture


def _matrix(weights, queries, keys, hidden, title, least_cell, note=NOT_WHY):
    """The picture of one matrix of weights with its labels and colour bar."""
    cell = min(max(5.5 / max(weights.shape), least_cell), 0.5)
    width, height = cell * len(keys), cell * len(queries)
    left = parts.label_width(queries) + 0.3
    top = parts.label_height(keys, cell) + 0.15
    picture = style.sheet(
        left + width + parts.COLOUR_BAR_WIDTH, top + max(height, 0.9), title, note
    )
    ax = style.axes(picture, left, top, width, height)
    image = parts.heat(ax, weights, hidden=hidden)
    parts.row_labels(ax, queries)
    parts.column_labels(ax, keys)
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("key", fontsize=7.5, color=style.SOFT)
    ax.set_ylabel("query", fontsize=7.5, color=style.SOFT)
    parts.colour_bar(picture, image, "weight", left + width + 0.15, top, max(height, 0.9))
    return picture, image


def _strongest(weights, queries, keys, most: int = 6) -> str:
    """What the most decided rows read most from, in words."""
    decided = np.argsort(-weights.max(-1), kind="stable")[:most]
    told = [
        f"{queries[row]!r} reads most from {keys[weights[row].argmax()]!r} "
        f"({weights[row].max():.2f})"
        for row in sorted(decided)
    ]
    said = "The most decided rows: " if len(queries) > most else ""
    return said + "; ".join(told)


@style.styled
def plot_attention_grid(
    weights: ArrayLike,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    title: str = "Attention weights of every layer and head",
) -> Picture:
    """A small matrix of weights for each layer (rows) and head (columns).

    Args:
      weights: [L,N,T,S], after the softmax.
      query_tokens: T labels; of a decoder, from `read_predict`.
      key_tokens: S labels.
      layers: which to draw, from 0; all unless given.
      heads: which to draw, from 0; all unless given.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, rows that do not sum to 1, or layers and
        heads that are not there.
    """
    sizes = Sizes()
    weights = sizes.array("weights", weights, "L N T S")
    queries = sizes.tokens("query_tokens", query_tokens, "T")
    keys = sizes.tokens("key_tokens", key_tokens, "S")
    check_weights(weights, name="weights")
    layers = _chosen(sizes, "layers", layers, "L")
    heads = _chosen(sizes, "heads", heads, "N")

    longest = max(len(queries), len(keys))
    named = longest <= MOST_NAMED
    cell = 0.17 if named else min(0.17, 1.25 / longest)
    width, height = cell * len(keys), cell * len(queries)
    step_x, step_y = max(width, 0.5) + 0.12, max(height, 0.4) + 0.12
    left = 0.65 + (parts.label_width(queries, 6.5) + 0.08 if named else 0.22)
    top = 0.28 + (parts.label_height(keys, cell, 6.5) + 0.05 if named else 0.22)
    right, bottom = left + step_x * len(heads), top + step_y * len(layers)
    key = [] if named else _numbered(queries, keys, right)
    bottom_of_key = bottom + 0.16 * len(key)
    picture = style.sheet(right + parts.COLOUR_BAR_WIDTH, bottom_of_key, title, NOT_WHY)
    content = style.canvas(picture, right, bottom_of_key)
    for column, head in enumerate(heads):
        x = left + step_x * column + width / 2
        parts.unit_text(content, x, 0.08, f"head {head + 1}", fontsize=8)
    for number, line in enumerate(key):
        parts.unit_text(content, 0, bottom + 0.1 + 0.16 * number, line, fontsize=7, ha="left")
    for row, layer in enumerate(layers):
        y = top + step_y * row
        said = f"layer {layer + 1}"
        parts.unit_text(content, 0, y + height / 2, said, fontsize=8, ha="left")
        for column, head in enumerate(heads):
            ax = style.axes(picture, left + step_x * column, y, width, height)
            ax.set_label(f"layer {layer + 1} head {head + 1}")
            image = parts.heat(ax, weights[layer, head])
            if column == 0:
                _name_axis(ax.yaxis, queries, named)
            if row == 0:
                _name_axis(ax.xaxis, keys, named)
    bar_height = min(step_y * len(layers) - 0.12, 1.8)
    parts.colour_bar(picture, image, "weight", right + 0.05, top, bar_height)
    sharp = weights[np.ix_(layers, heads)].max(-1).mean(-1)
    place = np.unravel_index(sharp.argmax(), sharp.shape)
    picture.description = (
        f"{title}: {len(layers)} layers by {len(heads)} heads, each a matrix of {len(queries)} "
        f"queries (rows) over {len(keys)} keys (columns) whose rows sum to 1. The most decided is "
        f"layer {layers[place[0]] + 1} head {heads[place[1]] + 1}, whose rows give their strongest "
        f"key {sharp.max():.2f} on average. Queries: {parts.list_of(queries, 40)}. "
        f"Keys: {parts.list_of(keys, 40)}."
    )
    return picture


def _chosen(sizes: Sizes, name: str, places: Sequence[int] | None, letter: str) -> list[int]:
    size, _ = sizes.known[letter]
    if places is None:
        return list(range(size))
    if not len(places):
        raise InputError(f"{name} is empty: there is nothing to draw; leave it out to draw all")
    return [sizes.index(f"{name}[{n}]", place, letter) for n, place in enumerate(places)]


def _name_axis(axis: Axis, tokens: list[str], named: bool) -> None:
    """The tokens along an axis or, where they are too many, the numbers 1, 10, 20, ..."""
    if named:
        label = parts.row_labels if axis.axis_name == "y" else parts.column_labels
        label(axis.axes, tokens, 6.5)
        return
    ticks = [0, *range(9, len(tokens), 10)]
    axis.set_ticks(ticks, [str(tick + 1) for tick in ticks])
    axis.set_tick_params(labelsize=6, pad=1)
    if axis.axis_name == "x":
        axis.tick_top()


def _numbered(queries: list[str], keys: list[str], width: Real) -> list[str]:
    """Lines that say which number is which token."""
    lines = []
    lists = {"tokens": keys} if queries == keys else {"keys": keys, "queries": queries}
    for name, tokens in lists.items():
        # A number stays in one line with its token.
        items = [f"{n + 1} {style.beside_others(token)}" for n, token in enumerate(tokens)]
        listed = f"{name}:   " + "   ".join(item.replace(" ", "\xa0") for item in items)
        per_inch = len(listed) / style.text_width(listed, 7)
        wrapped = textwrap.wrap(listed, max(int(width * per_inch * 0.92), 30))
        lines += [line.replace("\xa0", " ") for line in wrapped]
    return lines


@style.styled
def plot_token_heads(
    weights: ArrayLike,
    token: int,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    normalize: str = "keys",
    title: str | None = None,
) -> Picture:
    """Where every head of a layer reads for one query, as lines and as numbers.

    Args:
      weights: [N,T,S] of one layer, after the softmax.
      token: the query, from 0.
      query_tokens: T labels; of a decoder, from `read_predict`.
      key_tokens: S labels.
      normalize: ``keys`` draws attention: each head's weights sum to 1 over the keys. ``heads``
        draws what The Illustrated Transformer's figures of "it" show: each key's weights divided by
        their sum over the heads. These are shares between heads, not attention over words.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, rows that do not sum to 1, a query that is
        not there, or another normalisation.
    """
    sizes = Sizes()
    weights = sizes.array("weights", weights, "N T S")
    queries = sizes.tokens("query_tokens", query_tokens, "T")
    keys = sizes.tokens("key_tokens", key_tokens, "S")
    check_weights(weights, name="weights")
    token = sizes.index("token", token, "T")
    if normalize not in ("keys", "heads"):
        raise InputError(f"normalize is {normalize!r}, but must be 'keys' or 'heads'")

    values = weights[:, token]
    total = values.sum(0)
    undefined = np.broadcast_to((total == 0) & (normalize == "heads"), values.shape)
    if normalize == "heads":
        values = values / np.where(total, total, 1)
    said = {
        "keys": "Attention of each head: a column sums to 1 over the keys. " + NOT_WHY,
        "heads": (
            "As in the Illustrated Transformer's figure: each row sums to 1 over the heads. These "
            "are shares between heads, not attention over words."
        ),
    }[normalize]
    title = title or f"Where each head reads for {queries[token]!r}" + (
        " (shares between heads)" if normalize == "heads" else ""
    )
    picture = _token_heads_picture(values, undefined, token, queries, keys, normalize, title, said)
    told = [
        f"head {n + 1} most at {keys[row.argmax()]!r} ({row.max():.2f})"
        for n, row in enumerate(values)
    ]
    picture.description = (
        f"{title}, over {len(keys)} keys. {said} Highest value of each head: "
        f"{parts.list_of(told, 16)}."
    )
    return picture


def _token_heads_picture(values, undefined, token, queries, keys, normalize, title, note):
    heads, places = len(values), max(len(queries), len(keys))
    row = min(max(6.0 / places, 0.2), 0.32)
    size = min(9.0, 72 * row * 0.62)
    left_width = parts.label_width(queries, size) + 0.1
    right_width = parts.label_width(keys, size) + 0.15
    fan = 2.2
    cell = 0.36
    top, bottom = 0.5, 0.32 if normalize == "keys" else 0.05
    matrix_left = left_width + fan + right_width + 0.1
    width = matrix_left + cell * heads + (0.5 if normalize == "heads" else 0.05)
    height = top + row * places + bottom
    picture = style.sheet(width + parts.COLOUR_BAR_WIDTH, height, title, note)
    content = style.canvas(picture, width, height)

    def y(place: Real) -> float:
        return top + row * (place + 0.5)

    for place, label in enumerate(queries):
        chosen = place == token
        parts.unit_text(
            content,
            left_width - 0.05,
            y(place),
            style.shortened(label, parts.LONGEST_LABEL, size),
            ha="right",
            fontsize=size,
            color=style.INK if chosen else style.SOFT,
            fontweight=style.weight(label, chosen),
            alpha=1 if chosen else 0.75,
        )
    for place, label in enumerate(keys):
        parts.unit_text(
            content,
            left_width + fan + 0.08,
            y(place),
            style.shortened(label, parts.LONGEST_LABEL, size),
            ha="left",
            fontsize=size,
        )
    spread = row * 0.6 / heads
    for head in range(heads):
        look = _head_look(head)
        shift = (head - (heads - 1) / 2) * spread
        for place, value in enumerate(values[head]):
            if value > 0.01:
                content.plot(
                    [left_width, left_width + fan],
                    [y(token), y(place) + shift],
                    linewidth=0.3 + 3.2 * value,
                    alpha=0.35 + 0.6 * value,
                    solid_capstyle="butt",
                    gid=f"head {head + 1} key {place + 1}",
                    **look,
                )
        x = matrix_left + cell * (head + 0.5)
        parts.unit_text(content, x, top - 0.3, str(head + 1), fontsize=8)
        content.plot([x - 0.13, x + 0.13], [top - 0.12] * 2, linewidth=2.2, **look)
    parts.unit_text(content, left_width - 0.05, top - 0.12, "query", ha="right", color=style.SOFT)
    parts.unit_text(
        content, left_width + fan + 0.08, top - 0.12, "keys", ha="left", color=style.SOFT
    )
    parts.unit_text(content, matrix_left + cell * heads / 2, top - 0.48, "head", color=style.SOFT)

    ax = style.axes(picture, matrix_left, top, cell * heads, row * len(keys))
    image = parts.heat(ax, values.T, hidden=undefined.T)
    ax.set_label("values")
    parts.numbers(image, least=0.005)
    small = {"fontsize": 7, "color": style.SOFT}
    if normalize == "keys":
        below = top + row * len(keys) + 0.12
        parts.unit_text(content, matrix_left - 0.08, below, "sum", ha="right", **small)
        for head in range(heads):
            x = matrix_left + cell * (head + 0.5)
            parts.unit_text(content, x, below, f"{values[head].sum():.2f}", **small)
    else:
        beside = matrix_left + cell * heads + 0.25
        parts.unit_text(content, beside, top - 0.12, "sum", **small)
        for place in range(len(keys)):
            total = "none" if undefined[0, place] else f"{values[:, place].sum():.2f}"
            parts.unit_text(content, beside, y(place), total, **small)
    label = "weight" if normalize == "keys" else "share between heads"
    parts.colour_bar(picture, image, label, width + 0.1, top, min(row * len(keys), 2.0))
    return picture


def _head_look(head: int) -> dict[str, str]:
    """The colour and the dashes of a head; its number stands beside them."""
    colours = len(style.HEAD_COLOURS)
    return {
        "color": style.HEAD_COLOURS[head % colours],
        "linestyle": style.DASHES[head // colours % len(style.DASHES)],
    }


@style.styled
def plot_alignment(
    weights: ArrayLike,
    source: Sequence[str],
    target_in: Sequence[str],
    target_out: Sequence[str],
    *,
    gold: Collection[tuple[int, int]] | None = None,
    convention: str = "predict",
    title: str = "Encoder-decoder attention as an alignment",
) -> Picture:
    """Encoder-decoder weights beside the gold word alignment.

    Row t is computed while the decoder reads ``target_in[t]`` and predicts ``target_out[t]``; both
    are written beside it. Which of them the row is taken to align is a convention.

    Args:
      weights: [T,S] of one head, or a mean of heads.
      source: S tokens.
      target_in: T tokens that are read.
      target_out: T tokens that are predicted.
      gold: pairs (t, s): token t of `target_out` translates token s of `source`; framed.
      convention: whether a row aligns the token it predicts (``predict``) or the one it reads
        (``read``, one row later), as in `alignment.target_rows`.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, rows that do not sum to 1, a pair outside
        the sentences, or another convention.
    """
    sizes = Sizes()
    weights: Float[np.ndarray, "T S"] = sizes.array("weights", weights, "T S")
    keys = sizes.tokens("source", source, "S")
    read = sizes.tokens("target_in", target_in, "T")
    predicted = sizes.tokens("target_out", target_out, "T")
    check_weights(weights, name="weights")
    if convention not in get_args(Convention):
        raise InputError(f"convention is {convention!r}, but must be 'predict' or 'read'")
    for t, s in gold or ():
        sizes.index("the target place of a gold pair", t, "T")
        sizes.index("the source place of a gold pair", s, "S")

    later = 0 if convention == "predict" else 1
    queries = parts.read_predict(read, predicted)
    cells = sorted((t + later, s) for t, s in gold or () if t + later < len(queries))
    word = "predicts" if convention == "predict" else "reads"
    note = f"Rows: read → predict. A row is taken to align the token it {word}."
    found = sum(weights[t].argmax() == s for t, s in cells)
    rows = len({t for t, _ in cells})
    if cells:
        note += (
            f" Frames: gold alignment; the highest weight of {found} of {rows} aligned rows is in "
            "a frame."
        )
    picture, image = _matrix(
        weights, queries, keys, np.zeros(weights.shape, bool), title, 0.2, note
    )
    for t, s in cells:
        parts.outline(image.axes, t, s, style.VERMILION).set_gid(f"gold {t} {s}")
        image.axes.plot(s, t, "o", color=style.VERMILION, markersize=2.5, markeredgewidth=0)
    picture.description = (
        f"{title}: {len(queries)} target positions (rows, read → predict) over {len(keys)} source "
        f"tokens. {note} {_strongest(weights, queries, keys)}."
    )
    return picture
