# SPDX-License-Identifier: Apache-2.0
"""Numbers by head, by position and by token: head tables, patching maps, attributions, masks."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Annotated

import numpy as np
from matplotlib.colors import Colormap, ListedColormap
from numpy.typing import ArrayLike

from transformer.arrays import Bool, Float
from transformer.inspection.argument_checks import Sizes, check_not_empty, checked
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, printable

LONGEST_ANNOTATED = 16
"""Columns of a map with wide cells that have their numbers written into them."""


@style.styled
def plot_head_table(
    values: Mapping[str, ArrayLike],
    *,
    label: str = "value",
    form: str = "{:.2f}",
    limits: tuple[Real, Real] | None = None,
    title: str = "One number for every head",
) -> DescribedFigure:
    """A number for each head of each layer, one table for each kind of attention.

    Args:
      values: [L,N] by name, for example ``encoder``, ``decoder`` and ``cross``; numbers of layers
        and heads may differ.
      label: what the number is, with its unit.
      form: format of the numbers.
      limits: limits of the colors; by default from 0, or symmetric with negative numbers.
    """
    check_not_empty("values", values)
    tables = {
        name: Sizes().array(f"values[{name!r}]", table, "L N") for name, table in values.items()
    }
    limits, colors = _color_scale(list(tables.values()), limits)
    panels = [
        parts.Panel(
            values=table,
            cell=(0.42, 0.3),
            name=name,
            heading=name,
            rows=[f"{'layer ' if i == 0 else ''}{layer + 1}" for layer in range(len(table))],
            columns=[str(head + 1) for head in range(table.shape[1])],
            limits=limits,
            colors=colors,
            legend=label if i == len(tables) - 1 else None,
        )
        for i, (name, table) in enumerate(tables.items())
    ]
    figure, images = parts.draw_panels([panels], title=title, note="Columns: heads.")
    for image in images:
        parts.write_numbers(image, form)
    items = [_highest_head(name, table, form) for name, table in tables.items()]
    figure.description = f"{title} ({label}). {'; '.join(items)}."
    return figure


def _highest_head(name: str, table: Float[np.ndarray, "L N"], form: str) -> str:
    layer, head = np.unravel_index(table.argmax(), table.shape)
    return (
        f"{name}, {table.shape[0]} layers by {table.shape[1]} heads: highest "
        f"{form.format(table.max())} at layer {layer + 1} head {head + 1}, lowest "
        f"{form.format(table.min())}, mean {form.format(table.mean())}"
    )


def _color_scale(
    tables: list[Float[np.ndarray, "_ _"]], limits: tuple[Real, Real] | None
) -> tuple[tuple[Real, Real], Colormap]:
    """From 0 for nonnegative values; symmetric, white at 0, otherwise."""
    low, high = min(table.min() for table in tables), max(table.max() for table in tables)
    if limits is None:
        limits = (-max(-low, high), max(-low, high)) if low < 0 else (0.0, float(high) or 1.0)
    return limits, style.SIGNED if limits[0] == -limits[1] else style.WEIGHTS


@style.styled
@checked
def plot_patch_map(
    effect: Float[np.ndarray, "levels S"],
    tokens: Annotated[list[str], "S"],
    *,
    title: str = "Activation patching of the residual stream",
) -> DescribedFigure:
    """Effect of patching the residual stream at each layer and position.

    Args:
      effect: at the stack's input, then after each layer; 0 changes nothing, 1 restores the clean
        answer.
    """
    sites = ["input", *(f"after layer {layer}" for layer in range(1, len(effect)))]
    limit = max(1.0, parts.largest(effect))
    panel = parts.Panel(
        values=effect,
        cell=(0.44 if len(tokens) <= LONGEST_ANNOTATED else parts.SMALLEST_CELL, 0.32),
        rows=sites,
        columns=tokens,
        **parts.signed(limit),
        legend="share of the difference restored",
    )
    note = "The result depends on the pair of sentences and on the metric."
    figure, [image] = parts.draw_panels([[panel]], title=title, note=note)
    parts.write_numbers(image)
    order = np.argsort(-np.abs(effect), axis=None, kind="stable")[:4]
    largest = zip(*np.unravel_index(order, effect.shape), strict=True)
    items = [f"{effect[site, s]:.2f} at {tokens[s]!r}, {sites[site]}" for site, s in largest]
    figure.description = (
        f"{title}: {len(sites)} levels of the stack by {len(tokens)} tokens (share of the "
        f"difference restored). The largest effects: {'; '.join(items)}."
    )
    return figure


@style.styled
def plot_attribution(
    attribution: ArrayLike,
    source: Sequence[str],
    prefix: Sequence[str],
    target_out: Sequence[str],
    *,
    title: str = "Attribution of each prediction",
) -> DescribedFigure:
    """Contribution of every source and prefix token to each prediction.

    Args:
      attribution: [R,S+T], one row a prediction: first over the source, then over the prefix.
      prefix: T tokens that the decoder reads.
      target_out: R predicted tokens.
    """
    sizes = Sizes()
    values = sizes.array("attribution", attribution, "R S+T")
    source = sizes.tokens("source", source, "S")
    prefix = sizes.tokens("prefix", prefix, "T")
    rows = sizes.tokens("target_out", target_out, "R")
    tokens = sizes.tokens("source and prefix together", [*source, *prefix], "S+T")

    annotated = len(tokens) <= LONGEST_ANNOTATED
    limit = parts.largest(values)
    shared = {
        "cell": (0.44, 0.32) if annotated else (parts.SMALLEST_CELL, 0.18),
        **parts.signed(limit),
    }
    panels = [
        parts.Panel(
            values=values[:, : len(source)],
            name="source",
            heading="source",
            rows=rows,
            columns=source,
            **shared,
        ),
        parts.Panel(
            values=values[:, len(source) :],
            name="prefix",
            heading="prefix that the decoder reads",
            columns=prefix,
            legend="nats",
            **shared,
        ),
    ]
    note = "Rows: predicted tokens. Blue: for the prediction; vermilion: against it."
    figure, images = parts.draw_panels([panels], title=title, note=note)
    for image in images if annotated else ():
        parts.write_numbers(image)
    names = [*(f"source {token!r}" for token in source), *(f"prefix {token!r}" for token in prefix)]
    largest = np.abs(values).argmax(-1)
    items = [
        f"{row!r} most to {names[at]} ({values[r, at]:+.2f})"
        for r, (row, at) in enumerate(zip(rows, largest, strict=True))
    ]
    figure.description = (
        f"{title}, over {len(source)} source and {len(prefix)} prefix tokens, in nats: "
        f"{listed(items, 10)}."
    )
    return figure


@style.styled
@checked
def plot_masks(
    source: Annotated[list[str], "S"],
    target_in: Annotated[list[str], "T"],
    *,
    source_mask: Bool[np.ndarray, " S"],
    causal: Bool[np.ndarray, "T T"],
    title: str = "Attention masks",
) -> DescribedFigure:
    """The masks of encoder, decoder and encoder-decoder attention.

    Args:
      source: the tokens, with padding.
      source_mask: false where the source is padding.
      causal: true where a target position may attend.
    """
    encoder, cross = (
        np.broadcast_to(source_mask, (len(rows), len(source))) for rows in (source, target_in)
    )
    masks = {
        "encoder": (encoder, source, source),
        "decoder": (causal, target_in, target_in),
        "encoder-decoder": (cross, target_in, source),
    }
    cell = min(max(2.2 / max(len(source), len(target_in)), 0.13), 0.36)
    panels = [
        parts.Panel(
            values=mask.astype(float),
            cell=(cell, cell),
            name=name,
            heading=name,
            rows=rows,
            columns=columns,
            hidden=~mask,
            colors=ListedColormap([style.PAPER, style.SKY]),
        )
        for name, (mask, rows, columns) in masks.items()
    ]
    note = (
        "Rows: queries; columns: keys. Filled with a dot: may attend. Gray with a cross: may not; "
        "its weight is exactly 0. The output of a padded query is not used."
    )
    figure, images = parts.draw_panels([panels], title=title, note=note)
    size = min(72 * cell * 0.25, 4)
    for image, (mask, _, _) in zip(images, masks.values(), strict=True):
        rows, columns = np.nonzero(mask)
        image.axes.plot(columns, rows, ".", color=style.INK, markersize=size, markeredgewidth=0)
    counts = [f"{name} {mask.sum()} of {mask.size} pairs" for name, (mask, _, _) in masks.items()]
    figure.description = (
        f"{title}: pairs of query and key that may attend: {', '.join(counts)}. The decoder's "
        "positions may attend to themselves and to earlier ones, and no position to padding."
    )
    return figure


@style.styled
def plot_vectors(
    vectors: Mapping[str, ArrayLike],
    tokens: Sequence[str],
    *,
    title: str = "The vector of every token",
) -> DescribedFigure:
    """Vectors of every token (embeddings, positions, keys, a memory) with a common color scale.

    Args:
      vectors: [T,D] by name; D may differ.
    """
    check_not_empty("vectors", vectors)
    tables = {}
    for name, values in vectors.items():
        sizes = Sizes()  # tables may differ in D, so each has separate sizes
        tables[name] = sizes.array(f"vectors[{name!r}]", values, "T D")
        labels = sizes.tokens("tokens", tokens, "T")
    limit, abreast = parts.largest(*tables.values()), min(len(tables), 3)
    height = min(max(3.6 / len(labels), 0.16), 0.24)
    panels = [
        parts.Panel(
            values=table,
            cell=(2.9 / table.shape[1], height),
            name=printable(name),
            heading=f"{printable(name)}, {table.shape[1]} numbers",
            rows=labels if i % abreast == 0 else None,
            **parts.signed(limit),
            legend="value" if i == len(tables) - 1 else None,
        )
        for i, (name, table) in enumerate(tables.items())
    ]
    note = "Rows: tokens; columns: dimensions. All tables have the same color scale."
    rows = [panels[start : start + abreast] for start in range(0, len(panels), abreast)]
    figure, _ = parts.draw_panels(rows, title=title, note=note)
    items = []
    for name, table in tables.items():
        lengths = np.linalg.norm(table, axis=-1)
        items.append(
            f"{printable(name)}: {table.shape[1]} numbers a token, lengths from "
            f"{lengths.min():.2f} to {lengths.max():.2f}"
        )
    figure.description = f"{title}, for {len(labels)} tokens. {'; '.join(items)}."
    return figure
