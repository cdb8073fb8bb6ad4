# SPDX-License-Identifier: Apache-2.0
"""The model from outside and opened twice: a box, two stacks, and their layers."""

from collections.abc import Sequence
from numbers import Real

from matplotlib.axes import Axes

from transformer.config import TransformerConfig
from transformer.inspection.figures import architecture, parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import wrapped

TEXT, SPACE = 2.2, 0.4
"""Width of a sentence, and of the arrow beside it."""
BOX, BETWEEN = 1.75, 0.7
"""Width of a stack, and distance of the two."""
HEIGHT, LAYER, GAP = 0.6, 0.3, 0.12
"""Height of a closed box and of a layer, and distance between layers."""
LEFT, RIGHT = TEXT + SPACE, TEXT + SPACE + BOX + BETWEEN
"""Left edges of encoder and decoder."""


@style.styled
def plot_black_box(
    config: TransformerConfig,
    source: str,
    target: str,
    *,
    title: str = "A sentence goes in, its translation comes out",
) -> DescribedFigure:
    """The model as a black box, as encoder and decoder, and as two stacks of layers.

    Like the first pictures of The Illustrated Transformer, with the parameters of each part.
    """
    texts = source, target
    shapes = architecture.parameter_shapes(config)
    counts = {side: architecture.count(shapes[side]) for side in ("encoder", "decoder")}
    total, deepest = architecture.count(shapes), max(map(config.depth, counts))
    tops = (0.25, 0.25 + HEIGHT + 0.75, 0.25 + 2 * (HEIGHT + 0.75) + 0.1)
    height = tops[2] + (LAYER + GAP) * deepest + 0.1
    note = (
        f"Numbers: parameters. The embedding table, {architecture.count(shapes['embedding']):,}, "
        "is in neither stack. The output of the last encoder layer goes to every decoder layer."
    )
    figure = parts.sheet(RIGHT + BOX + SPACE + TEXT, height, title, note)
    content = figure.content
    _draw_sentences(content, texts, tops[0] + HEIGHT / 2, tops[0] + HEIGHT / 2)
    _draw_box(content, LEFT, tops[0], 2 * BOX + BETWEEN, HEIGHT, f"Transformer\n{total:,}")
    _draw_opening(content, tops[0] + HEIGHT)
    _draw_sentences(content, texts, tops[1] + HEIGHT / 2, tops[1] + HEIGHT / 2)
    for x, side in ((LEFT, "encoder"), (RIGHT, "decoder")):
        _draw_box(content, x, tops[1], BOX, HEIGHT, f"{side}\n{counts[side]:,}", side)
    middle = tops[1] + HEIGHT / 2
    parts.draw_arrow(content, (LEFT + BOX, middle), (RIGHT, middle), style.BLUE)
    _draw_opening(content, tops[1] + HEIGHT)
    _draw_stacks(content, config, shapes, texts, tops[2])
    figure.description = (
        f"{title}: {texts[0]!r} becomes {texts[1]!r}. First a box of {total:,} parameters; then "
        f"an encoder of {counts['encoder']:,} and a decoder of {counts['decoder']:,}; then "
        f"{config.depth('encoder')} encoder layers and {config.depth('decoder')} decoder layers, "
        "each of which reads the output of the last encoder layer."
    )
    return figure


def _draw_sentences(content: Axes, texts: Sequence[str], inward: Real, outward: Real) -> None:
    """The source left of the model and the target right of it, with arrows at these heights."""
    right = RIGHT + BOX
    for x, y, text in ((TEXT / 2, inward, texts[0]), (right + SPACE + TEXT / 2, outward, texts[1])):
        lines = wrapped(text, TEXT - 0.1, style.TEXT)
        if len(lines) > 3:
            lines = [*lines[:3], "…"]
        parts.put_text(content, x, y, "\n".join(lines))
    parts.draw_arrow(content, (TEXT, inward), (LEFT, inward))
    parts.draw_arrow(content, (right, outward), (right + SPACE, outward))


def _draw_box(
    content: Axes, left: Real, top: Real, width: Real, height: Real, text: str, side: str = ""
) -> None:
    colors = {"encoder": architecture.NETWORK, "decoder": architecture.ATTENTION}
    color = colors.get(side, architecture.PLAIN)
    parts.put_box(content, left, top, width, height, facecolor=color)
    parts.put_text(content, left + width / 2, top + height / 2, text)


def _draw_opening(content: Axes, top: Real) -> None:
    """The word between a box and what is in it."""
    middle = LEFT + BOX + BETWEEN / 2
    parts.draw_arrow(content, (middle, top + 0.15), (middle, top + 0.5), style.SOFT)
    look = {"ha": "left", "color": style.SOFT}
    parts.put_text(content, middle + 0.1, top + 0.3, "opened", **look)


def _draw_stacks(
    content: Axes, config: TransformerConfig, shapes: dict, texts: Sequence[str], top: Real
) -> None:
    """The layers of both stacks, bottom up, and the arrows from the last encoder layer."""
    bottom = top + (LAYER + GAP) * max(config.depth("encoder"), config.depth("decoder"))
    last = {}
    for x, side in ((LEFT, "encoder"), (RIGHT, "decoder")):
        number = f"{architecture.count(shapes[side]['layer_0']):,}"
        for layer in range(config.depth(side)):
            y = last[side] = bottom - (LAYER + GAP) * (layer + 1)
            _draw_box(content, x, y, BOX, LAYER, f"{side} layer {layer + 1}: {number}", side)
            if layer:
                start, end = (x + BOX / 2, y + LAYER + GAP), (x + BOX / 2, y + LAYER)
                parts.draw_arrow(content, start, end)
    lowest = bottom - GAP - LAYER / 2
    _draw_sentences(content, texts, lowest, last["decoder"] + LAYER / 2)
    turn, memory = RIGHT - BETWEEN / 2, last["encoder"] + LAYER / 2
    path = [LEFT + BOX, turn, turn], [memory, memory, lowest]
    content.plot(*path, color=style.BLUE, linewidth=1.2)
    for layer in range(config.depth("decoder")):
        y = bottom - (LAYER + GAP) * layer - GAP - LAYER / 2
        content.plot([turn, turn], [memory, y], color=style.BLUE, linewidth=1.2)
        name = f"memory to decoder layer {layer + 1}"
        content.plot([turn, RIGHT], [y, y], color=style.BLUE, linewidth=1.2, gid=name)
        parts.draw_arrow(content, (turn, y), (RIGHT, y), style.BLUE)
