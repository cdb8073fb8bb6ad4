# SPDX-License-Identifier: Apache-2.0
"""Still pictures, as SVG with explicit colours: what a view shows where no script runs."""

import base64
import struct
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, UInt8

from transformer.inspection.html import Html, Number, element
from transformer.inspection.views.attention_data import Label

MORE, LESS = "#0b7fc4", "#d0650f"
"""Of positive and of negative values; both stand out from white and from black."""

LEVELS = 10
"""Shades of a cell."""

FIRST_STRONG_ISOLATE, POP_ISOLATE = "\u2068", "\u2069"


def joined(label: Label) -> str:
    """A label on one line; no token's direction turns another."""
    return " → ".join(f"{FIRST_STRONG_ISOLATE}{token}{POP_ISOLATE}" for token in label)


def svg(width: Number, height: Number, title: str, *drawing: object) -> Html:
    """A drawing of a size in pixels, smaller where there is less room."""
    return element(
        "svg",
        element("title", title),
        *drawing,
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        style="max-width:100%;height:auto",
        role="img",
        font_family="system-ui,sans-serif",
        font_size="12",
        fill="currentColor",
    )


def text(content: str, x: Number, y: Number, room: Number, **attributes: object) -> Html:
    """A label, squeezed where it is longer than its room."""
    if _width(content) > room:
        attributes |= {"textLength": f"{room:g}", "lengthAdjust": "spacingAndGlyphs"}
    return element("text", content, x=f"{x:g}", y=f"{y:g}", dy="0.32em", **attributes)


def rect(x: Number, y: Number, width: Number, height: Number, fill: str, opacity: Number) -> Html:
    """A filled rectangle."""
    placed = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return element("rect", **placed, fill=fill, fill_opacity=f"{opacity:.3g}")


def token_lines(
    title: str,
    weights: Mapping[str, Float[np.ndarray, "T S"]],
    rows: Sequence[Label],
    columns: Sequence[Label],
    row: int,
    colours: Sequence[str],
) -> Html:
    """Rows on the left, columns on the right, and lines for the weights of one row.

    Args:
      title: of the drawing.
      weights: of the heads that are drawn, by their numbers.
      rows: their tokens.
      columns: their tokens.
      row: whose weights are drawn.
      colours: of each head.
    """
    left = 210 if len(rows[0]) > 1 else 130
    right = left + 190
    far = right + 13 * len(weights) + 8

    def y(place: int) -> int:
        return 34 + 22 * place

    drawing = [rect(0, y(row) - 11, left, 22, MORE, 0.3)]
    for place, label in enumerate(rows):
        drawing.append(text(joined(label), left - 8, y(place), left - 12, text_anchor="end"))
    for place, label in enumerate(columns):
        drawing.append(text(joined(label), far, y(place), 125))
    for head, ((name, own), colour) in enumerate(zip(weights.items(), colours, strict=True)):
        drawing.append(text(name, right + 13 * head + 5, 12, 13))
        lines, squares = [], []
        for column, weight in enumerate(own[row].tolist()):
            if weight < 0.01:
                continue
            x, end = right + 13 * head + 4, y(column) + (head + 0.5) * 14 / len(weights) - 7
            # A fainter line would not be seen; what it says is in the square.
            if weight >= 0.05:
                line = {"stroke_opacity": f"{weight:.2f}", "stroke_width": f"{1 + 3 * weight:.1f}"}
                lines.append(element("path", d=f"M{left},{y(row)}L{right},{end:.4g}", **line))
            square = {"d": f"M{x},{y(column) - 8}h12v16h-12z"}
            squares.append(element("path", **square, fill_opacity=f"{weight**0.5:.2f}"))
        drawing += [element("g", *lines, stroke=colour), element("g", *squares, fill=colour)]
    return svg(far + 130, y(max(len(rows), len(columns))), title, *drawing)


def heat_map(
    title: str, values: Float[np.ndarray, "R C"], rows: Sequence[str], columns: Sequence[str]
) -> Html:
    """Cells shaded by the square root of a value from -1 to 1; negative ones are round."""
    signed = values.min(initial=0) < 0
    size = max(13, min(26, 560 // max(len(columns), 1)))
    left = min(210, 12 + max(map(_width, rows), default=0))
    top = min(130, 12 + max(map(_width, columns), default=0))
    drawing = [
        *(_cells(values, size, left, top) if signed else [_image(values, size, left, top)]),
        *(
            text(row, left - 6, top + size * (place + 0.5), left - 8, text_anchor="end")
            for place, row in enumerate(rows)
        ),
        *(_upright(c, left + size * (i + 0.5), top) for i, c in enumerate(columns)),
    ]
    return svg(left + size * len(columns) + 4, top + size * len(rows) + 4, title, *drawing)


def _upright(content: str, x: Number, y: Number) -> Html:
    """A column's label, from its foot up."""
    turned = f"rotate(-90,{x:g},{y - 6:g})"
    return text(content, x, y - 6, y - 8, transform=turned)


def _cells(
    values: Float[np.ndarray, "R C"], size: int, left: Number, top: Number
) -> Iterator[Html]:
    """One path for all cells of a shade, so that thirty by thirty of them are short."""
    shades = np.rint(np.sqrt(np.clip(np.abs(values), 0, 1)) * LEVELS).astype(int)
    radius = (size - 1) / 2
    square, circle = f"h{size - 1}v{size - 1}h-{size - 1}z", f"a{radius:g},{radius:g} 0 1,0"
    for shade in range(1, LEVELS + 1):
        for sign, colour in ((1, MORE), (-1, LESS)):
            paths = []
            for row, column in np.argwhere((shades == shade) & (np.sign(values) == sign)):
                x, y = left + size * column, top + size * row
                if sign > 0:
                    paths.append(f"M{x:g},{y:g}{square}")
                else:
                    across = f"{circle} {size - 1},0{circle} {1 - size},0z"
                    paths.append(f"M{x:g},{y + radius:g}{across}")
            if paths:
                yield element("path", d="".join(paths), fill=colour, fill_opacity=shade / LEVELS)


def thumbnails(title: str, weights: Float[np.ndarray, "L N T S"]) -> Html:
    """A small map of every head, a row of them for each layer."""
    layers, heads, rows, columns = weights.shape
    scale = max(1, 84 // max(rows, columns))
    framed = np.pad(weights, ((0, 0), (0, 0), (0, 1), (0, 1)))
    sheet = framed.transpose(0, 2, 1, 3).reshape(layers * (rows + 1), heads * (columns + 1))
    left, top = 62, 20
    # A cell of the sheet is `scale` pixels wide, and a gap between heads is one cell.
    across, down = (columns + 1) * scale, (rows + 1) * scale
    names = [
        *(text(f"layer {n + 1}", 0, top + down * (n + 0.5), 60) for n in range(layers)),
        *(text(f"{n + 1}", left + across * (n + 0.5), 10, 30) for n in range(heads)),
    ]
    image = _image(sheet, scale, left, top)
    return svg(left + heads * across, top + layers * down, title, *names, image)


def _image(values: Float[np.ndarray, "R C"], size: int, left: Number, top: Number) -> Html:
    """Cells without gaps, as an image: much shorter where there are many."""
    shades = np.rint(15 * np.sqrt(np.clip(values, 0, 1))).astype(np.uint8)
    rows, columns = shades.shape
    place = {"x": f"{left:g}", "y": f"{top:g}", "width": columns * size, "height": rows * size}
    return element("image", href=_png(shades), **place, style="image-rendering:pixelated")


def _png(shades: UInt8[np.ndarray, "R C"]) -> str:
    """An image of 16 shades, from white to `MORE`, as an address that holds it."""
    height, width = shades.shape
    even = np.pad(shades, ((0, 0), (0, width % 2)))
    lines = even[:, ::2] << 4 | even[:, 1::2]
    raw = np.pad(lines, ((0, 0), (1, 0))).tobytes()  # each line after the number of its filter
    end = [int(MORE[place : place + 2], 16) for place in (1, 3, 5)]
    palette = bytes(round(255 + (c - 255) * shade / 15) for shade in range(16) for c in end)

    def chunk(name: bytes, content: bytes) -> bytes:
        checked = name + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part)
        for part in (
            (b"IHDR", header),
            (b"PLTE", palette),
            (b"IDAT", zlib.compress(raw, 9)),
            (b"IEND", b""),
        )
    )
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")


def _width(content: str) -> Number:
    """About how many pixels wide it is shown."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Cf") else 13 if _is_wide(c) else 7.5
        for c in content
    )


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"
