# SPDX-License-Identifier: Apache-2.0
"""The architecture that a config describes, with the shapes and the number of its parameters."""

import dataclasses
import math
from numbers import Real
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from matplotlib.patches import FancyBboxPatch, Polygon

from transformer.config import TransformerConfig
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import Picture
from transformer.models import base as families

ATTENTION, NETWORK, NORM, TABLE, PLAIN = "#f6d5a5", "#bfe0f5", "#f4f0c4", "#ecd3e2", "#ededed"
"""Light shades of Okabe and Ito's colours; every box says what it is, too."""


@dataclasses.dataclass(frozen=True)
class _Box:
    """One step of a column, drawn from the bottom up."""

    lines: tuple[str, ...]
    colour: str
    kind: str = ""
    """``begins`` a sub-layer, ``ends`` it (the residual connection arrives), or neither."""
    inside: bool = False
    """Whether it is part of the block that is repeated."""
    reads_memory: bool = False

    @property
    def height(self) -> float:
        """In inches."""
        return 0.14 + 0.165 * len(self.lines)


WIDE, GAP = 2.75, 0.17


@style.styled
def plot_architecture(config: TransformerConfig, *, title: str | None = None) -> Picture:
    """Both stacks, and one layer of each in detail, as in figure 1 of the paper.

    Nothing is computed: shapes and counts are those that the model declares. With pre-norm the
    norms stand before the sub-layers, and one after each stack.

    Args:
      config: of the model.
      title: above the figure.
    """
    shapes = _declared(config)
    sides = {side: _column(config, shapes, side) for side in ("encoder", "decoder")}
    total = _count(shapes)
    heights = {side: sum(box.height + GAP for box in boxes) for side, boxes in sides.items()}
    high = max(heights.values()) + 0.75
    stack, gap = 2.35, 0.95
    width = stack + 2 * WIDE + gap + 0.75
    title = title or f"The Transformer of this config: {total:,} parameters"
    shares = {part: _count(shapes[part]) for part in ("embedding", "encoder", "decoder")}
    note = (
        f"Parameters: embedding {shares['embedding']:,}, encoder {shares['encoder']:,}, decoder "
        f"{shares['decoder']:,}. D = {config.d_model} is d_model; S and T are the lengths of "
        "source and target."
    )
    picture = style.sheet(width, high, title, note)
    content = style.canvas(picture, width, high)
    _stacks(content, config, high)
    lefts = {"encoder": stack + 0.35, "decoder": stack + 0.35 + WIDE + gap}
    names = {"encoder": "source tokens [S]", "decoder": "target tokens, moved right [T]"}
    memory = _draw_column(
        content,
        sides["encoder"],
        lefts["encoder"],
        high,
        config.depth("encoder"),
        names["encoder"],
        "memory [S, D]",
    )
    _draw_column(
        content,
        sides["decoder"],
        lefts["decoder"],
        high,
        config.depth("decoder"),
        names["decoder"],
        "probabilities [T, V]",
        memory=(lefts["encoder"] + WIDE / 2, memory),
    )
    picture.description = _told(config, title, shapes, shares)
    return picture


def _declared(config: TransformerConfig) -> Any:
    """The tree of parameters, shapes in place of arrays."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    model = families.build(config)
    return nn.unbox(jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"])


def _count(shapes: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def _shape(leaf: Any) -> str:
    return "×".join(str(size) for size in leaf.shape)


def _column(config: TransformerConfig, shapes: Any, side: str) -> list[_Box]:
    """What happens to one side's tokens, from the bottom up."""
    table = shapes["embedding"]["table"]
    learned = shapes["embedding"].get("positions")
    layer = shapes[side]["layer_0"]
    positions = f"{config.sinusoid_layout} sinusoids, no parameters"
    if learned is not None:
        positions = f"learned, {_shape(learned)}, {_count(learned):,}"
    boxes = [
        _Box((f"embedding {_shape(table)}, times √D", f"{_count(table):,}, shared"), TABLE),
        _Box(("+ positions", positions), PLAIN),
    ]
    sublayers = [
        ("self_attention", "self-attention" if side == "encoder" else "masked self-attention")
    ]
    if side == "decoder":
        sublayers.append(("cross_attention", "encoder-decoder attention"))
    sublayers.append(("feed_forward", f"feed-forward, {config.activation}"))
    for key, name in sublayers:
        norm = layer[f"{key}_residual"]["norm"]
        said_norm = f"{_count(norm):,}"
        if config.norm == "pre":
            boxes.append(_Box((f"layer norm, {said_norm}",), NORM, "begins", True))
        body = _Box(
            _inside(name, layer[key]),
            NETWORK if key == "feed_forward" else ATTENTION,
            "begins" if config.norm == "post" else "",
            True,
            key == "cross_attention",
        )
        boxes.append(body)
        ends = f"add, then layer norm, {said_norm}" if config.norm == "post" else "add"
        boxes.append(_Box((ends,), NORM if config.norm == "post" else PLAIN, "ends", True))
    if config.norm == "pre":
        boxes.append(_Box((f"layer norm, {_count(shapes[side]['final_norm']):,}",), NORM))
    if side == "decoder":
        v, d = table.shape
        boxes.append(_Box((f"linear {d}×{v}", "the embedding table again"), TABLE))
        boxes.append(_Box(("softmax",), PLAIN))
    return boxes


def _inside(name: str, kernels: Any) -> tuple[str, ...]:
    """A sub-layer's matrices and their number."""
    if "kernel_in" in kernels:
        shapes = f"{_shape(kernels['kernel_in'])}, {_shape(kernels['kernel_out'])}, biases"
    else:
        heads = kernels["query"].shape[1]
        name += f", {heads} heads"
        q, v = _shape(kernels["query"]), _shape(kernels["value"])
        shapes = f"Q, K, V {q}" if q == v else f"Q, K {q}, V {v}"
        shapes += f", O {_shape(kernels['output'])}"
        shapes += ", biases" if "output_bias" in kernels else ""
    return name, shapes, f"{_count(kernels):,}"


def _stacks(content, config: TransformerConfig, high: Real) -> None:
    """All layers small: the last encoder layer's output goes to every decoder layer."""
    deep = {side: config.depth(side) for side in ("encoder", "decoder")}
    row = min((high - 0.9) / max(deep.values()), 0.5)
    lefts, wide = {"encoder": 0.02, "decoder": 1.3}, 0.85
    base = high - 0.35
    tops = {}
    for side, layers in deep.items():
        for layer in range(layers):
            y = base - row * (layer + 1)
            middle = lefts[side] + wide / 2
            _arrow(content, middle, y + row, middle, y + row * 0.78, style.INK)
            _rounded(content, lefts[side], y, wide, row * 0.78, ATTENTION)
            parts.unit_text(
                content,
                lefts[side] + wide / 2,
                y + row * 0.39,
                f"{side} {layer + 1}",
                fontsize=min(7.5, 72 * row * 0.5),
            )
        tops[side] = base - row * layers
        parts.unit_text(
            content,
            lefts[side] + wide / 2,
            base + 0.12,
            {"encoder": "source", "decoder": "target"}[side],
            color=style.SOFT,
        )
    bus = (lefts["encoder"] + wide + lefts["decoder"]) / 2
    start = tops["encoder"] + row * 0.39
    ends = [base - row * (layer + 1) + row * 0.39 for layer in range(deep["decoder"])]
    line = {"color": style.BLUE, "linewidth": 1.0, "solid_capstyle": "butt"}
    content.plot([lefts["encoder"] + wide, bus], [start, start], **line)
    content.plot([bus, bus], [min(start, *ends), max(start, *ends)], **line)
    for y in ends:
        _arrow(content, bus, y, lefts["decoder"], y, style.BLUE)


def _draw_column(content, boxes, left, high, layers, bottom_text, top_text, memory=None) -> float:
    """Draws a column from the bottom up; returns where its top is."""
    middle = left + WIDE / 2
    y = high - 0.22
    parts.unit_text(content, middle, y + 0.12, bottom_text, color=style.SOFT)
    frame, starts = [], None
    for box in boxes:
        if box.inside and not frame:
            y -= 0.1
            frame = [y]
        if not box.inside and len(frame) == 1:
            frame.append(y)
            y -= 0.1
        bottom = y - GAP
        if box.kind == "begins":
            starts = y - 0.06
        _arrow(content, middle, y, middle, bottom, style.INK)
        _rounded(content, left, bottom - box.height, WIDE, box.height, box.colour)
        for n, line in enumerate(box.lines):
            first = {"fontsize": 8} if n == 0 else {"fontsize": 7, "color": style.SOFT}
            at = bottom - box.height + 0.07 + 0.165 * (n + 0.5)
            parts.unit_text(content, middle, at, line, **first)
        if box.kind == "ends":
            # Around the sub-layer, on the right.
            side, to = left + WIDE + 0.14, bottom - box.height / 2
            line = {"color": style.INK, "linewidth": 0.8}
            content.plot([middle, side, side], [starts, starts, to], **line)
            _arrow(content, side, to, left + WIDE, to, style.INK)
        if box.reads_memory and memory is not None:
            x, top = memory
            to = bottom - box.height / 2
            turn = left - 0.42
            line = {"color": style.BLUE, "linewidth": 1.2}
            content.plot([x, x, turn, turn], [top, top - 0.1, top - 0.1, to], **line)
            _arrow(content, turn, to, left, to, style.BLUE)
            parts.unit_text(
                content, turn - 0.06, to - 0.12, "K, V", fontsize=7, ha="right", color=style.BLUE
            )
        y = bottom - box.height
    if len(frame) == 1:
        frame.append(y)
        y -= 0.1
    content.add_patch(
        FancyBboxPatch(
            (left - 0.1, frame[1] - 0.08),
            WIDE + 0.34,
            frame[0] - frame[1] + 0.08,
            boxstyle="round,pad=0,rounding_size=0.08",
            fill=False,
            edgecolor=style.SOFT,
            linestyle="--",
            linewidth=0.8,
        )
    )
    parts.unit_text(content, left - 0.16, frame[0] - 0.12, f"× {layers}", fontsize=10, ha="right")
    _arrow(content, middle, y, middle, y - 0.1, style.INK)
    parts.unit_text(content, middle, y - 0.2, top_text, color=style.SOFT)
    return y - 0.28


def _rounded(content, left: Real, top: Real, wide: Real, high: Real, colour: str) -> None:
    content.add_patch(
        FancyBboxPatch(
            (left, top),
            wide,
            high,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=colour,
            edgecolor=style.SOFT,
            linewidth=0.6,
        )
    )


def _arrow(content, x: Real, y: Real, to_x: Real, to_y: Real, colour: str) -> None:
    """A straight line with a small filled head."""
    content.plot([x, to_x], [y, to_y], color=colour, linewidth=0.8, solid_capstyle="butt")
    length = math.hypot(to_x - x, to_y - y)
    dx, dy = (to_x - x) / length * 0.07, (to_y - y) / length * 0.07
    corners = [
        (to_x, to_y),
        (to_x - dx - dy / 2, to_y - dy + dx / 2),
        (to_x - dx + dy / 2, to_y - dy - dx / 2),
    ]
    content.add_patch(Polygon(corners, closed=True, facecolor=colour, linewidth=0))


def _told(config: TransformerConfig, title: str, shapes: Any, shares: dict[str, int]) -> str:
    """The description."""
    of_layers = [
        f"{config.depth(side)} {side} layers of {_count(shapes[side]['layer_0']):,} parameters "
        f"with {config.heads(side)} heads"
        for side in ("encoder", "decoder")
    ]
    norm = {
        "post": "after each sub-layer's addition (post-norm)",
        "pre": "before each sub-layer, and after each stack (pre-norm)",
    }[config.norm]
    return (
        f"{title}. {of_layers[0]} and {of_layers[1]}; every decoder layer reads the output of the "
        f"last encoder layer. Layer norm stands {norm}. One embedding table of "
        f"{config.vocab_size} by {config.d_model}, {shares['embedding']:,} parameters with what "
        "belongs to it, serves source, target and logits."
    )
