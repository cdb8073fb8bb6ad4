# SPDX-License-Identifier: Apache-2.0
"""What all figures share: the described figure itself, its style, colours, and how it is saved.

Figures are made without pyplot, so they are in no list of open figures and open no window. Places
and sizes are in inches from the top left corner, computed from what is drawn: nothing is left to an
automatic layout, and nothing overlaps whatever the number of tokens.
"""

import base64
import functools
import io
import textwrap
import unicodedata
from collections.abc import Callable
from numbers import Real
from typing import ParamSpec

import matplotlib
import matplotlib.style
import numpy as np
from etils import epath
from matplotlib import font_manager, ft2font
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.textpath import text_to_path
from PIL import Image

from transformer.errors import InputError
from transformer.inspection.html import escape
from transformer.paths import absolute, write_atomic

INK, SOFT, FAINT, PAPER = "#1b1b1b", "#5c5c5c", "#d9d9d9", "#ffffff"
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY = "#E69F00", "#56B4E9"
HEAD_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)
"""Okabe and Ito's, which colour-blind readers can tell apart; yellow is too faint for lines."""
DASHES = ("-", "--", ":", "-.")

SIGNED: Colormap = LinearSegmentedColormap.from_list("signed", [BLUE, PAPER, VERMILION])
"""Blue below zero, white at zero, vermilion above."""
WEIGHTS: Colormap = matplotlib.colormaps["viridis"]

FONT = "DejaVu Sans"
"""Comes with matplotlib, so that a figure is the same on every machine."""

_STYLE = [
    "default",
    {
        "font.family": FONT,
        "font.size": 8.0,
        "text.color": INK,
        "text.parse_math": False,  # a token may hold a dollar sign
        "axes.edgecolor": SOFT,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.6,
        "axes.titlesize": 9.0,
        "xtick.color": INK,
        "ytick.color": INK,
        "xtick.major.size": 2.0,
        "ytick.major.size": 2.0,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "figure.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "svg.hashsalt": "transformer.inspection.figures",
        "svg.fonttype": "path",
    },
]

MARGIN = 0.25
HEADER = 0.62
"""Inches for a figure's title and the line below it."""

DPI = 110

LEFT_TO_RIGHT = "\u200e"
"""The mark that holds a line to this direction; it takes no room."""

Parameters = ParamSpec("Parameters")


class Picture(Figure):
    """A matplotlib figure that can be told in words."""

    description = ""
    """What a reader who does not see the figure is told: what it is, and what it shows."""
    title_height = 0.0
    """Inches that the title takes beyond its first line."""

    def _repr_mimebundle_(self, **_: object) -> tuple[dict, dict]:
        """What a notebook shows: the picture with its alternative text, or the text alone."""
        png = _in_256_colours(rendered(self, "png", {"Software": None}, DPI))
        data = {
            "image/png": base64.b64encode(png).decode("ascii"),
            "text/plain": f"<Figure: {self.description}>",
        }
        return data, {"image/png": {"alt": self.description}}


def _in_256_colours(png: bytes) -> bytes:
    """Nearly the same picture in a third of the bytes, since a notebook keeps many of them."""
    file = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    # The method that spares the colours of thin lines, whose pixels are few.
    method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    picture.quantize(256, method, dither=dither).save(file, format="png", optimize=True)
    return file.getvalue()


def styled(draw: Callable[Parameters, Picture]) -> Callable[Parameters, Picture]:
    """Draws in this file's style, whatever the reader's own is, which is left as it was."""

    @functools.wraps(draw)
    def drawn(*arguments: Parameters.args, **options: Parameters.kwargs) -> Picture:
        with matplotlib.style.context(_STYLE):
            picture = draw(*arguments, **options)
            # What matplotlib makes when it first draws (ticks, for one) is made in this style too.
            picture.draw_without_rendering()
        return picture

    return drawn


def sheet(width: Real, height: Real, title: str, note: str = "") -> Picture:
    """An empty figure for content of this size, under a title and a line that says more.

    Content lies from `MARGIN` to the right and from `HEADER` down. A title or note that is wider
    than the content is broken into lines, for which the figure grows.
    """
    width = max(width + 2 * MARGIN, 4.2)
    titles = _wrapped(title, width - 2 * MARGIN, 11)
    notes = _wrapped(note, width - 2 * MARGIN, 8)
    notes_height = 0.17 * len(notes) + 0.1 if notes else 0.0
    title_height = 0.2 * max(len(titles) - 1, 0)
    full = HEADER + title_height + height + notes_height + MARGIN * 0.6
    picture = Picture(figsize=(width, full), dpi=DPI)
    picture.title_height = title_height
    for number, line in enumerate(titles):
        y = 1 - (0.3 + 0.2 * number) / full
        picture.text(MARGIN / width, y, line, fontsize=11, va="center")
    for number, line in enumerate(notes):
        y = (notes_height + MARGIN * 0.6 - 0.1 - 0.17 * number) / full
        picture.text(MARGIN / width, y, line, fontsize=8, color=SOFT, va="top")
    return picture


def axes(picture: Picture, left: Real, top: Real, width: Real, height: Real) -> Axes:
    """Axes at a place of the content, in inches."""
    full_width, full_height = picture.get_size_inches()
    top = HEADER + picture.title_height + top
    return picture.add_axes(
        (
            (MARGIN + left) / full_width,
            1 - (top + height) / full_height,
            width / full_width,
            height / full_height,
        )
    )


def canvas(picture: Picture, width: Real, height: Real) -> Axes:
    """Axes without a frame over the whole content, whose units are inches from its top left."""
    ax = axes(picture, 0.0, 0.0, width, height)
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    ax.set_axis_off()
    return ax


def text_width(text: str, size: Real) -> float:
    """Inches that a text of this size in points takes."""
    if not text:
        return 0.0
    properties = font_manager.FontProperties(family=FONT, size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(text, properties, ismath=False)
    return width / 72


def shown(token: str) -> str:
    """A token as a figure can show it: what has no glyph or is invisible, by its code point."""
    if not token.strip(" "):
        return "␣" * len(token) or "(empty)"
    return "".join(map(_shown_character, token))


@functools.cache
def _shown_character(character: str) -> str:
    visible = character.isprintable() and _font("normal").get_char_index(ord(character))
    return character if visible or character == LEFT_TO_RIGHT else f"<{ord(character):X}>"


def beside_others(token: str) -> str:
    """A token as it is shown within a line: one that is written from right to left does not turn
    the text around it.
    """
    token = shown(token)
    turns = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in token)
    return LEFT_TO_RIGHT + token + LEFT_TO_RIGHT if turns else token


def weight(text: str, bold: bool) -> str:
    """Bold where it is wished and the bold font has all that is to be shown."""
    has_all = all(_font("bold").get_char_index(ord(character)) for character in shown(text))
    return "bold" if bold and has_all else "normal"


@functools.cache
def _font(weight: str) -> ft2font.FT2Font:
    properties = font_manager.FontProperties(family=FONT, weight=weight)
    return font_manager.get_font(font_manager.findfont(properties))


def shortened(token: str, width: Real, size: Real) -> str:
    """The token, cut with an ellipsis where it is wider than so many inches."""
    token = shown(token)
    if text_width(token, size) <= width:
        return token
    while len(token) > 1 and text_width(token + "…", size) > width:
        token = token[:-1]
    return token + "…"


def _wrapped(text: str, width: Real, size: Real) -> list[str]:
    """Lines that are no wider than so many inches."""
    if not text.strip():
        return []
    text = shown(text)
    average = text_width(text, size) / len(text)
    return textwrap.wrap(text, max(int(width / average / 1.03), 10))


def ink_on(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever is read more easily on a colour (by relative luminance)."""
    linear = np.asarray(colour[:3]) ** 2.2
    return INK if linear @ (0.2126, 0.7152, 0.0722) > 0.2 else PAPER


def describe(figure: Picture) -> str:
    """A figure of this package in words, for those who do not see it."""
    return figure.description


def save(figure: Picture, path: epath.PathLike, *, dpi: int = 160) -> epath.Path:
    """Writes a figure, with its description inside, and nothing that differs from run to run.

    Args:
      figure: of this package.
      path: ends in ``.png``, ``.svg`` or ``.pdf``.
      dpi: of a PNG.

    Returns:
      the path.

    Raises:
      InputError: for another ending.
    """
    path = absolute(path)
    kind = path.suffix.lower().removeprefix(".")
    metadata = {
        # None leaves out what matplotlib would write: its version and the date.
        "png": {"Description": figure.description, "Software": None},
        "svg": {"Description": figure.description, "Date": None, "Creator": None},
        "pdf": {
            "Subject": figure.description,
            "CreationDate": None,
            "Creator": None,
            "Producer": None,
        },
    }
    if kind not in metadata:
        raise InputError(f"{path} ends in {path.suffix!r}; a figure is saved as {list(metadata)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, rendered(figure, kind, metadata[kind], dpi))
    return path


def rendered(figure: Picture, kind: str, metadata: dict[str, str | None], dpi: int) -> bytes:
    """The bytes of a picture file."""
    file = io.BytesIO()
    with matplotlib.style.context(_STYLE):
        figure.savefig(file, format=kind, dpi=dpi, metadata=metadata)
    data = file.getvalue()
    if kind == "svg":
        # A screen reader reads this; it does not look into matplotlib's RDF.
        before, opened, after = data.partition(b"<svg ")
        attributes, closed, inside = after.partition(b">")
        told = f"<desc>{escape(figure.description)}</desc>".encode()
        data = before + opened + b'role="img" ' + attributes + closed + told + inside
    return data
