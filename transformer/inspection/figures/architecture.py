# SPDX-License-Identifier: Apache-2.0
"""The architecture of a config: a black box, opened twice, and its layers with their parameters."""

import dataclasses
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from matplotlib.axes import Axes

from transformer.config import TransformerConfig
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import wrapped
from transformer.models import protocol as families

ATTENTION, NETWORK, NORM, TABLE, PLAIN = "#f6d5a5", "#bfe0f5", "#f4f0c4", "#ecd3e2", "#ededed"
"""Colors of boxes, light shades of the palette; every box is labeled too."""
WIDTH, GAP, LINE = 2.75, 0.17, 0.165
"""Width of a column, distance between boxes, and line height of their text."""
LEFT, BETWEEN = 0.5, 0.95
"""Space left of the columns, and distance between them."""

SENTENCE, ARROW = 2.2, 0.4
"""Width of a sentence beside the black box, and of the arrow between them."""
STACK, APART = 1.75, 0.7
"""Width of an opened stack, and distance of the two."""
CLOSED, LAYER, LAYER_GAP = 0.6, 0.3, 0.12
"""Height of a closed box and of a layer, and distance between layers."""
ENCODER, DECODER = SENTENCE + ARROW, SENTENCE + ARROW + STACK + APART
"""Left edges of both stacks."""


@dataclasses.dataclass(frozen=True)
class _Box:
    """One step of a column, which is drawn from the bottom up."""

    lines: tuple[str, ...]
    color: str
    residual: str = ""
    """``starts`` or ``ends`` a residual connection, or neither."""
    repeated: bool = False
    """Whether it is part of the layer that is repeated."""
    reads_memory: bool = False

    @property
    def height(self) -> float:
        return 0.14 + LINE * len(self.lines)


@style.styled
def plot_architecture(config: TransformerConfig, *, title: str | None = None) -> DescribedFigure:
    """Both stacks, and one layer of each in detail, like figure 1 of the paper.

    Shapes and numbers are those of the model's parameters; nothing is computed. With pre-norm the
    layer norms come before the sublayers, and one follows each stack.
    """
    shapes = parameter_shapes(config)
    layers = {side: config.depth(side) for side in ("encoder", "decoder")}
    columns = {side: _column(config, shapes, side) for side in layers}
    total, counts = count(shapes), {part: count(leaves) for part, leaves in shapes.items()}
    height = 0.75 + max(sum(box.height + GAP for box in boxes) for boxes in columns.values())
    title = title or f"The Transformer of this config: {total:,} parameters"
    note = (
        f"Parameters: embedding {counts['embedding']:,}, encoder {counts['encoder']:,}, decoder "
        f"{counts['decoder']:,}. D = {config.d_model} is d_model; S and T are the lengths of "
        "source and target."
    )
    figure = parts.sheet(LEFT + 2 * WIDTH + BETWEEN + 0.4, height, title, note)
    memory, right = None, LEFT + WIDTH + BETWEEN
    for side, left, read, written in (
        ("encoder", LEFT, "source tokens [S]", "memory [S, D]"),
        ("decoder", right, "target tokens, shifted right [T]", "probabilities [T, V]"),
    ):
        top = _draw_column(figure.content, columns[side], left, height, layers[side], memory)
        memory = left + WIDTH / 2, top
        for y, text in ((height - 0.1, read), (top + 0.08, written)):
            parts.put_text(figure.content, left + WIDTH / 2, y, text, color=style.SOFT)
    figure.description = _description(config, title, shapes, counts["embedding"])
    return figure


def parameter_shapes(config: TransformerConfig) -> Any:
    """The tree of parameters, with shapes instead of arrays."""
    tokens, model = jnp.zeros((1, 1), jnp.int32), families.build(config)
    return nn.unbox(jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"])


def count(shapes: Any) -> int:
    """The number of parameters of a tree."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def _shape(leaf: Any) -> str:
    return "×".join(str(size) for size in leaf.shape)


def _column(config: TransformerConfig, shapes: Any, side: str) -> list[_Box]:
    """The computation of one stack, from the bottom up."""
    tables, scale = shapes["embedding"], ", times √D" if config.embedding_scale == "tokens" else ""
    table = tables["source_table" if side == "encoder" and "source_table" in tables else "table"]
    is_output = side == "decoder" and "output" not in tables
    shared = ", shared" if is_output or "source_table" not in tables else ""
    boxes = [
        _Box((f"embedding {_shape(table)}{scale}", f"{count(table):,}{shared}"), TABLE),
        _Box(_positions_text(config, shapes, side), PLAIN),
    ]
    norm_name = {"layer_norm": "layer norm", "rms_norm": "RMS norm"}[config.norm_kind]
    names = {
        "self_attention": "self-attention" if side == "encoder" else "masked self-attention",
        "cross_attention": "encoder-decoder attention",
        "feed_forward": f"feed-forward, {config.activation}",
    }
    layer, pre_norm = shapes[side]["layer_0"], config.norm == "pre"
    for key, name in names.items():
        if key not in layer:
            continue
        norm = f"{norm_name}, {count(layer[f'{key}_residual']['norm']):,}"
        color = NETWORK if key == "feed_forward" else ATTENTION
        text = _sublayer_text(name, layer[key])
        if pre_norm:
            boxes.append(_Box((norm,), NORM, "starts", True))
        boxes.append(
            _Box(text, color, "" if pre_norm else "starts", True, key == "cross_attention")
        )
        end = ("add", PLAIN) if pre_norm else (f"add, then {norm}", NORM)
        boxes.append(_Box((end[0],), end[1], "ends", True))
    if pre_norm:
        boxes.append(_Box((f"{norm_name}, {count(shapes[side]['final_norm']):,}",), NORM))
    if side == "decoder":
        vocabulary, width = table.shape
        again = "the embedding table again" if is_output else f"{count(tables['output']):,}"
        boxes.append(_Box((f"linear {width}×{vocabulary}", again), TABLE))
        boxes.append(_Box(("softmax",), PLAIN))
    return boxes


def _positions_text(config: TransformerConfig, shapes: Any, side: str) -> tuple[str, str]:
    """How positions enter a stack, and their parameters."""
    learned = shapes["embedding"].get("positions")
    if learned is not None:
        return "+ positions", f"learned, {_shape(learned)}, {count(learned):,}"
    if config.positions == "sinusoidal":
        return "+ positions", f"{config.sinusoid_layout} sinusoids, no parameters"
    if config.positions == "none":
        return "no positions", "but for the mask of the decoder"
    number = count(shapes[side].get("position_scheme", {}))
    parameters = f"{number:,}" if number else "no parameters"
    return "positions in self-attention", f"{config.positions}, {parameters}"


def _sublayer_text(name: str, kernels: Any) -> tuple[str, str, str]:
    """Name, shapes and number of parameters of a sublayer."""
    if "kernel_in" in kernels:
        end = f"{_shape(kernels['kernel_out'])}{', biases' if 'bias_in' in kernels else ''}"
        twice = "2 × " if "kernel_gate" in kernels else ""
        shapes = f"{twice}{_shape(kernels['kernel_in'])}, {end}"
    else:
        name += f", {kernels['query'].shape[1]} heads"
        query, value = _shape(kernels["query"]), _shape(kernels["value"])
        key = _shape(kernels["key"])
        shapes = f"Q, K, V {query}" if query == value else f"Q, K {query}, V {value}"
        if key != query:
            shapes = f"Q {query}, K {key}, V {value}"
        shapes += f", O {_shape(kernels['output'])}"
        shapes += ", biases" if "output_bias" in kernels else ""
    return name, shapes, f"{count(kernels):,}"


def _draw_column(
    content: Axes,
    boxes: list[_Box],
    left: Real,
    height: Real,
    layers: int,
    memory: tuple[Real, Real] | None = None,
) -> float:
    """Draw a column from the bottom up, beginning at `height`; returns its top."""
    middle, y = left + WIDTH / 2, height - 0.22
    frame, residual = [], y
    for box, following in zip(boxes, [*boxes[1:], None], strict=True):
        if box.repeated and not frame:
            y -= 0.1
            frame.append(y)
        top = y - GAP - box.height
        if box.residual == "starts":
            residual = y - 0.06
        parts.draw_arrow(content, (middle, y), (middle, y - GAP))
        parts.put_box(content, left, top, WIDTH, box.height, facecolor=box.color)
        for i, line in enumerate(box.lines):
            look = {} if i == 0 else {"fontsize": style.TEXT, "color": style.SOFT}
            parts.put_text(content, middle, top + 0.07 + LINE * (i + 0.5), line, **look)
        center = top + box.height / 2
        if box.residual == "ends":
            side = left + WIDTH + 0.14
            content.plot(
                [middle, side, side], [residual, residual, center], color=style.INK, linewidth=0.8
            )
            parts.draw_arrow(content, (side, center), (left + WIDTH, center))
        if box.reads_memory:
            # From the encoder's output to the keys and values of the decoder.
            (x, above), turn, look = memory, left - 0.42, {"color": style.BLUE}
            path = [x, x, turn, turn], [above, above - 0.1, above - 0.1, center]
            content.plot(*path, linewidth=1.2, **look)
            parts.draw_arrow(content, (turn, center), (left, center), style.BLUE)
            look |= {"fontsize": style.TEXT, "ha": "right"}
            parts.put_text(content, turn - 0.06, center - 0.12, "K, V", **look)
        y = top
        if box.repeated and not (following and following.repeated):
            frame.append(y)
            y -= 0.1
    bottom, top = frame
    look = {"fill": False, "linestyle": "--", "linewidth": 0.8}
    parts.put_box(content, left - 0.1, top - 0.08, WIDTH + 0.34, bottom - top + 0.08, **look)
    parts.put_text(content, left - 0.16, bottom - 0.12, f"× {layers}", fontsize=10, ha="right")
    parts.draw_arrow(content, (middle, y), (middle, y - 0.1))
    return y - 0.28


def _description(config: TransformerConfig, title: str, shapes: Any, embedding: int) -> str:
    encoder, decoder = (
        f"{config.depth(side)} {side} layers of {count(shapes[side]['layer_0']):,} parameters "
        f"with {config.heads(side)} heads"
        for side in ("encoder", "decoder")
    )
    norm = {
        "post": "after each sublayer's addition (post-norm)",
        "pre": "before each sublayer, and after each stack (pre-norm)",
    }[config.norm]
    shared = "All layers of a stack share their parameters. " if config.shared_layers else ""
    number = len({"table", "source_table", "output"} & shapes["embedding"].keys())
    tables = (
        f"One embedding table of {config.vocab_size} by {config.d_model}, {embedding:,} parameters "
        "with its positions, serves"
        if number == 1
        else f"{number} tables, {embedding:,} parameters with positions, serve"
    )
    return (
        f"{title}. {encoder} and {decoder}; every decoder layer reads the output of the last "
        f"encoder layer. {shared}The {config.norm_kind.replace('_', ' ')} is {norm}. {tables} "
        "source, target and logits."
    )


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
    shapes = parameter_shapes(config)
    counts = {side: count(shapes[side]) for side in ("encoder", "decoder")}
    total, deepest = count(shapes), max(map(config.depth, counts))
    tops = (0.25, 0.25 + CLOSED + 0.75, 0.25 + 2 * (CLOSED + 0.75) + 0.1)
    height = tops[2] + (LAYER + LAYER_GAP) * deepest + 0.1
    note = (
        f"Numbers: parameters. The embedding table, {count(shapes['embedding']):,}, "
        "is in neither stack. The output of the last encoder layer goes to every decoder layer."
    )
    figure = parts.sheet(DECODER + STACK + ARROW + SENTENCE, height, title, note)
    content = figure.content
    _draw_sentences(content, texts, tops[0] + CLOSED / 2, tops[0] + CLOSED / 2)
    _draw_box(content, ENCODER, tops[0], 2 * STACK + APART, CLOSED, f"Transformer\n{total:,}")
    _draw_opening(content, tops[0] + CLOSED)
    _draw_sentences(content, texts, tops[1] + CLOSED / 2, tops[1] + CLOSED / 2)
    for x, side in ((ENCODER, "encoder"), (DECODER, "decoder")):
        _draw_box(content, x, tops[1], STACK, CLOSED, f"{side}\n{counts[side]:,}", side)
    middle = tops[1] + CLOSED / 2
    parts.draw_arrow(content, (ENCODER + STACK, middle), (DECODER, middle), style.BLUE)
    _draw_opening(content, tops[1] + CLOSED)
    bottom, last = tops[2] + (LAYER + LAYER_GAP) * deepest, {}
    for x, side in ((ENCODER, "encoder"), (DECODER, "decoder")):
        number = f"{count(shapes[side]['layer_0']):,}"
        for layer in range(config.depth(side)):
            y = last[side] = bottom - (LAYER + LAYER_GAP) * (layer + 1)
            _draw_box(content, x, y, STACK, LAYER, f"{side} layer {layer + 1}: {number}", side)
            if layer:
                x_middle, below = x + STACK / 2, y + LAYER
                parts.draw_arrow(content, (x_middle, below + LAYER_GAP), (x_middle, below))
    lowest = bottom - LAYER_GAP - LAYER / 2
    _draw_sentences(content, texts, lowest, last["decoder"] + LAYER / 2)
    # From the last encoder layer to every decoder layer.
    turn, memory = DECODER - APART / 2, last["encoder"] + LAYER / 2
    look = {"color": style.BLUE, "linewidth": 1.2}
    content.plot([ENCODER + STACK, turn, turn], [memory, memory, lowest], **look)
    for layer in range(config.depth("decoder")):
        y, name = lowest - (LAYER + LAYER_GAP) * layer, f"memory to decoder layer {layer + 1}"
        content.plot([turn, turn], [memory, y], **look)
        content.plot([turn, DECODER], [y, y], gid=name, **look)
        parts.draw_arrow(content, (turn, y), (DECODER, y), style.BLUE)
    figure.description = (
        f"{title}: {texts[0]!r} becomes {texts[1]!r}. First a box of {total:,} parameters; then "
        f"an encoder of {counts['encoder']:,} and a decoder of {counts['decoder']:,}; then "
        f"{config.depth('encoder')} encoder layers and {config.depth('decoder')} decoder layers, "
        "each of which reads the output of the last encoder layer."
    )
    return figure


def _draw_sentences(content: Axes, texts: Sequence[str], inward: Real, outward: Real) -> None:
    """The source left of the model and the target right of it, with arrows at these heights."""
    end = DECODER + STACK + ARROW
    for left, y, text in zip((0.0, end), (inward, outward), texts, strict=True):
        lines = wrapped(text, SENTENCE - 0.1, style.TEXT)
        if len(lines) > 3:
            lines = [*lines[:3], "…"]
        parts.put_text(content, left + SENTENCE / 2, y, "\n".join(lines))
    parts.draw_arrow(content, (SENTENCE, inward), (ENCODER, inward))
    parts.draw_arrow(content, (end - ARROW, outward), (end, outward))


def _draw_box(
    content: Axes, left: Real, top: Real, width: Real, height: Real, text: str, side: str = ""
) -> None:
    colors = {"encoder": NETWORK, "decoder": ATTENTION}
    color = colors.get(side, PLAIN)
    parts.put_box(content, left, top, width, height, facecolor=color)
    parts.put_text(content, left + width / 2, top + height / 2, text)


def _draw_opening(content: Axes, top: Real) -> None:
    """The word between a box and what is in it."""
    middle = ENCODER + STACK + APART / 2
    parts.draw_arrow(content, (middle, top + 0.15), (middle, top + 0.5), style.SOFT)
    look = {"ha": "left", "color": style.SOFT}
    parts.put_text(content, middle + 0.1, top + 0.3, "opened", **look)
