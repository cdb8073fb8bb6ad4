# SPDX-License-Identifier: Apache-2.0
"""The encoder's output, and the keys and values that every decoder layer makes of it."""

from typing import Annotated

import numpy as np

from transformer.arrays import Float
from transformer.inspection.argument_checks import checked
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure

MEMORY, WIDTH = 1.9, 2.5
"""Widths of the memory, and of the keys or values of all heads of a layer."""
TURN, BETWEEN = 1.35, 0.22
"""Space for the arrows and names between memory and layers, and distance of keys and values."""
TOTAL = 6.4
"""Height of all layers, unless they would be too low or too high."""


@style.styled
@checked
def plot_memory(
    memory: Float[np.ndarray, "S D"],
    keys: Float[np.ndarray, "L N S H"],
    values: Float[np.ndarray, "L N S Hv"],
    tokens: Annotated[list[str], "S"],
    *,
    title: str = "The memory goes to every decoder layer, which makes keys and values of it",
) -> DescribedFigure:
    """The encoder's output, and its keys and values in every decoder layer, head beside head.

    Each layer has its own matrices W^K and W^V, so keys and values differ from layer to layer.

    Args:
      memory: the output of the encoder.
      keys, values: those of every decoder layer's cross-attention.
    """
    layers, heads, length = keys.shape[:3]
    tall = min(max(0.16 * length, 0.9), 2.6)
    high = min(tall, max(TOTAL / layers - 0.35, 0.62))
    pitch = high + 0.35
    label = parts.label_width(tokens) + 0.12
    start, total = label + MEMORY, max(pitch * layers - 0.1, tall)
    note = (
        f"Lines separate the {heads} heads. White is 0, blue above, vermilion below; 1% "
        "of the values are beyond. Keys and values are computed once for a sentence, before the "
        "first word of the translation."
    )
    width = start + TURN + 2 * WIDTH + BETWEEN
    figure = parts.sheet(width, 0.4 + total + parts.LEGEND, title, note)
    middle = 0.4 + total / 2
    limit, _ = parts.common(memory)
    heading, options = f"memory\n{length}×{memory.shape[1]}", {"limit": limit, "legend": ""}
    panel = parts.signed_panel("memory", heading, memory, (MEMORY, tall), rows=tokens, **options)
    panel.draw(figure, label, middle - tall / 2)
    first = middle - (pitch * layers - 0.35) / 2
    for layer in range(layers):
        y = first + pitch * layer + high / 2
        turn = start + 0.25
        line = [start + 0.05, turn, turn, start + TURN - 0.1], [middle, middle, y, y]
        figure.content.plot(*line, color=style.BLUE, linewidth=1.2, gid=f"to layer {layer + 1}")
        end = start + TURN - 0.06
        parts.draw_arrow(figure.content, (end - 0.1, y), (end, y), style.BLUE)
        name = f"decoder\nlayer {layer + 1}"
        look = {"ha": "left", "va": "bottom"}
        parts.put_text(figure.content, turn + 0.08, y - 0.04, name, **look)
    for i, (name, arrays) in enumerate({"keys": keys, "values": values}.items()):
        limit, _ = parts.common(arrays)
        for layer, array in enumerate(arrays):
            panel = parts.signed_panel(
                f"{name} of layer {layer + 1}",
                f"{name}, {heads} heads of {array.shape[-1]}" if layer == 0 else "",
                array.swapaxes(0, 1).reshape(length, -1),
                (WIDTH, high),
                limit=limit,
                legend=name if layer == layers - 1 else None,
            )
            left = start + TURN + i * (WIDTH + BETWEEN)
            image = panel.draw(figure, left, first + pitch * layer)
            parts.separate_heads(image.axes.axvline, heads, array.shape[-1])
    lengths = np.linalg.norm(memory, axis=-1)
    figure.description = (
        f"{title}. The memory is {length} vectors of {memory.shape[1]} numbers, of lengths from "
        f"{lengths.min():.2f} to {lengths.max():.2f}. Each of {layers} decoder layers makes "
        f"{heads} heads of keys ({keys.shape[-1]} numbers) and values ({values.shape[-1]}) of it. "
        f"{_similarity(keys)}"
    )
    return figure


def _similarity(keys: Float[np.ndarray, "L N S H"]) -> str:
    """How much the keys of the first and the last layer differ."""
    if len(keys) == 1:
        return "There is one layer."
    first, last = keys[0].ravel(), keys[-1].ravel()
    norms = np.linalg.norm(first) * np.linalg.norm(last)
    cosine = first @ last / norms if norms else 0.0
    return f"The cosine between the keys of the first and of the last layer is {cosine:.2f}."
