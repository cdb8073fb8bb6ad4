# SPDX-License-Identifier: Apache-2.0
"""One number a head, a site, or a token: head tables, patch maps, attributions; and masks."""

from collections.abc import Mapping, Sequence
from numbers import Real

import numpy as np
from matplotlib.colors import ListedColormap
from numpy.typing import ArrayLike

from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import Picture


def _scale(values: list[np.ndarray], limits: tuple[Real, Real] | None):
    """From 0 for values of one sign, white at 0 for values of both."""
    low, high = (min(v.min() for v in values), max(v.max() for v in values))
    if limits is not None:
        return limits, style.SIGNED if limits[0] == -limits[1] else style.WEIGHTS
    if low < 0:
        most = max(-low, high)
        return (-most, most), style.SIGNED
    return (0.0, float(high) or 1.0), style.WEIGHTS


@style.styled
def plot_head_table(
    values: Mapping[str, ArrayLike],
    *,
    label: str = "value",
    form: str = "{:.2f}",
    limits: tuple[Real, Real] | None = None,
    title: str = "One number for every head",
) -> Picture:
    """A number for each head of each layer, side by side for each kind of attention.

    Args:
      values: [L,N] by name, for example ``encoder``, ``decoder`` and ``cross``; depths and numbers
        of heads may differ.
      label: what the number is, with its unit.
      form: how it is written.
      limits: of the colours; from 0, or symmetric about it, unless given.
      title: above the figure.

    Raises:
      InputError: for no table, or one that has not two axes.
    """
    if not values:
        raise InputError("values is empty: there is nothing to draw; give at least one, by name")
    tables = {
        name: Sizes().array(f"values[{name!r}]", table, "L N") for name, table in values.items()
    }
    limits, colours = _scale(list(tables.values()), limits)
    cell, row, left, top, gap = 0.48, 0.32, 0.62, 0.55, 0.4
    deepest = max(len(table) for table in tables.values())
    spans = [
        max(cell * table.shape[1], style.text_width(style.shown(name), 9))
        for name, table in tables.items()
    ]
    width = left + sum(spans) + gap * (len(spans) - 1) + parts.COLOUR_BAR_WIDTH + 0.1
    height = max(row * deepest, 0.9)
    picture = style.sheet(width, top + height, title)
    content = style.canvas(picture, width, top + height)
    at, told = left, []
    for (name, table), span in zip(tables.items(), spans, strict=True):
        wide = cell * table.shape[1]
        ax = style.axes(picture, at, top, wide, row * len(table))
        ax.set_label(name)
        image = parts.heat(ax, table, limits, colours)
        parts.numbers(image, form)
        parts.column_labels(ax, [str(head + 1) for head in range(table.shape[1])])
        word = "layer " if at == left else ""
        parts.row_labels(ax, [f"{word}{layer + 1}" for layer in range(len(table))])
        parts.unit_text(content, at + wide / 2, 0.08, name, fontsize=9)
        at += span + gap
        layer, head = np.unravel_index(table.argmax(), table.shape)
        told.append(
            f"{name}, {table.shape[0]} layers by {table.shape[1]} heads: highest "
            f"{form.format(table.max())} at layer {layer + 1} head {head + 1}, lowest "
            f"{form.format(table.min())}, mean {form.format(table.mean())}"
        )
    parts.unit_text(content, left - 0.1, top - 0.12, "head", ha="right", color=style.SOFT)
    parts.colour_bar(picture, image, label, at - gap + 0.12, top, min(height, 1.8))
    picture.description = f"{title} ({label}). {'; '.join(told)}."
    return picture


@style.styled
def plot_patch_map(
    effect: ArrayLike,
    tokens: Sequence[str],
    *,
    label: str = "share of the difference restored",
    title: str = "Patching the residual stream, site by site",
) -> Picture:
    """What overwriting one site of the residual stream does to the answer.

    Args:
      effect: [L+1,S]: at the stack's input, then after each layer; 0 changes nothing, 1 restores
        the other answer wholly.
      tokens: S labels.
      label: what the effect is measured as.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together.
    """
    sizes = Sizes()
    effect = sizes.array("effect", effect, "L+1 S")
    tokens = sizes.tokens("tokens", tokens, "S")
    sites = ["input", *(f"after layer {layer}" for layer in range(1, len(effect)))]
    # The first row at the bottom: what happens runs upwards, as in the paper's figure 1.
    drawn, names = effect[::-1], sites[::-1]
    cell = 0.44 if len(tokens) <= 12 else 0.33
    row = 0.32
    left = parts.label_width(names) + 0.12
    top = parts.label_height(tokens, cell) + 0.05
    wide, high = cell * len(tokens), row * len(sites)
    picture = style.sheet(
        left + wide + parts.COLOUR_BAR_WIDTH + 0.1,
        top + max(high, 1.1),
        title,
        "What is found depends on the pair of sentences and on the measure.",
    )
    ax = style.axes(picture, left, top, wide, high)
    most = max(1.0, parts.largest(effect))
    image = parts.signed(ax, drawn, most)
    parts.numbers(image)
    parts.row_labels(ax, names)
    parts.column_labels(ax, tokens)
    parts.colour_bar(picture, image, label, left + wide + 0.15, top, max(high, 1.1))
    order = np.argsort(-np.abs(effect), axis=None, kind="stable")[:4]
    told = [
        f"{effect[site, s]:.2f} at {tokens[s]!r}, {sites[site]}"
        for site, s in zip(*np.unravel_index(order, effect.shape), strict=True)
    ]
    picture.description = (
        f"{title}: {len(sites)} places in the stack by {len(tokens)} tokens ({label}). The largest "
        f"effects: {'; '.join(told)}."
    )
    return picture


@style.styled
def plot_attribution(
    attribution: ArrayLike,
    source: Sequence[str],
    prefix: Sequence[str],
    target_out: Sequence[str],
    *,
    label: str = "nats",
    title: str = "What each prediction is attributed to",
) -> Picture:
    """How much each source and each prefix token adds to a prediction.

    Args:
      attribution: [R,S+T], a row for each prediction: first over the source, then over the prefix.
      source: S tokens.
      prefix: T tokens that the decoder reads.
      target_out: R predicted tokens.
      label: the unit.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together.
    """
    sizes = Sizes()
    values = sizes.array("attribution", attribution, "R S+T")
    source = sizes.tokens("source", source, "S")
    prefix = sizes.tokens("prefix", prefix, "T")
    rows = sizes.tokens("target_out", target_out, "R")
    sizes.tokens("source and prefix together", [*source, *prefix], "S+T")
    few = len(source) + len(prefix) <= 16
    cell = 0.44 if few else 0.21
    row = 0.32 if few else 0.21
    gap = 0.18
    left = parts.label_width([*rows, "predicts"]) + 0.2
    top = max(parts.label_height(source, cell), parts.label_height(prefix, cell)) + 0.3
    high = row * len(rows)
    width = left + cell * (len(source) + len(prefix)) + gap + parts.COLOUR_BAR_WIDTH
    height = top + max(high, 0.9)
    picture = style.sheet(width, height, title, "Blue: against the prediction; vermilion: for it.")
    content = style.canvas(picture, width, height)
    most, at = parts.largest(values), left
    for name, tokens, part in (
        ("source", source, values[:, : len(source)]),
        ("prefix that the decoder reads", prefix, values[:, len(source) :]),
    ):
        wide = cell * len(tokens)
        ax = style.axes(picture, at, top, wide, high)
        ax.set_label(name.split(" ")[0])
        image = parts.signed(ax, part, most)
        if few:
            parts.numbers(image)
        parts.column_labels(ax, tokens)
        if at == left:
            parts.row_labels(ax, rows)
        parts.unit_text(content, at, 0.0, name, ha="left", color=style.SOFT)
        at += wide + gap
    parts.unit_text(content, left - 0.1, top - 0.1, "predicts", ha="right", color=style.SOFT)
    parts.colour_bar(picture, image, label, at, top, max(min(high, 2.0), 0.9))
    everything = [*(f"source {t!r}" for t in source), *(f"prefix {t!r}" for t in prefix)]
    told = [
        f"{rows[r]!r} most to {everything[np.abs(values[r]).argmax()]} "
        f"({values[r][np.abs(values[r]).argmax()]:+.2f})"
        for r in range(len(rows))
    ]
    picture.description = (
        f"{title}, over {len(source)} source and {len(prefix)} prefix tokens, in {label}: "
        f"{parts.list_of(told, 10)}."
    )
    return picture


@style.styled
def plot_masks(
    source: Sequence[str],
    target_in: Sequence[str],
    *,
    source_mask: ArrayLike,
    causal: ArrayLike,
    title: str = "Who may attend to whom",
) -> Picture:
    """The masks of encoder, decoder and encoder-decoder attention.

    Args:
      source: S tokens, padding included.
      target_in: T tokens that the decoder reads.
      source_mask: [S], false where the source is padding.
      causal: [T,T], true where a target position may attend.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, or masks that are not boolean.
    """
    sizes = Sizes()
    keys = sizes.mask("source_mask", source_mask, "S")
    causal = sizes.mask("causal", causal, "T T")
    source = sizes.tokens("source", source, "S")
    target = sizes.tokens("target_in", target_in, "T")
    panels = {
        "encoder": (np.broadcast_to(keys, (len(source), len(source))), source, source),
        "decoder": (causal, target, target),
        "encoder-decoder": (np.broadcast_to(keys, (len(target), len(source))), target, source),
    }
    longest = max(len(source), len(target))
    cell = min(max(2.2 / longest, 0.13), 0.36)
    size = min(8, 72 * cell * 0.85)
    label = max(parts.label_width(source, size), parts.label_width(target, size)) + 0.12
    heads = max(parts.label_height(source, cell, size), parts.label_height(target, cell, size))
    top = heads + 0.32
    spans = [cell * len(columns) for _, _, columns in panels.values()]
    gap = 0.25
    width = sum(spans) + 3 * label + 2 * gap
    height = top + cell * longest
    note = (
        "Rows: queries; columns: keys. Filled with a dot: may attend. White with a cross: may not; "
        "its weight is exactly 0. A padded query computes something that nobody reads."
    )
    picture = style.sheet(width, height, title, note)
    content = style.canvas(picture, width, height)
    at, told = 0.0, []
    for (name, (mask, rows, columns)), wide in zip(panels.items(), spans, strict=True):
        at += label
        ax = style.axes(picture, at, top, wide, cell * len(rows))
        ax.set_label(name)
        parts.heat(
            ax, mask.astype(float), (0.0, 1.0), ListedColormap([style.PAPER, style.SKY]), ~mask
        )
        dots = np.argwhere(mask)
        ax.plot(
            dots[:, 1],
            dots[:, 0],
            ".",
            color=style.INK,
            markersize=min(72 * cell * 0.25, 4),
            markeredgewidth=0,
        )
        parts.row_labels(ax, rows, size)
        parts.column_labels(ax, columns, size)
        parts.unit_text(content, at + wide / 2, 0.05, name, fontsize=9)
        at += wide + gap
        told.append(f"{name} {mask.sum()} of {mask.size} pairs")
    picture.description = (
        f"{title}: pairs of query and key that may attend: {', '.join(told)}. The decoder's "
        f"positions may attend to themselves and what comes before, padding is never attended to."
    )
    return picture
