# SPDX-License-Identifier: Apache-2.0
"""Style of all figures, and how they are described and saved.

Figures are made without pyplot: they are in no list of open figures, and no window opens. Colors,
fonts and sizes are set here and nowhere else; the user's own matplotlib style is neither used nor
changed.
"""

import base64
import functools
import io
import re
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib
import matplotlib.style
import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from PIL import Image

from transformer.errors import InputError
from transformer.inspection.html import escape
from transformer.paths import absolute, write_atomic

INK, SOFT, FAINT, PALE, PAPER = "#1b1b1b", "#5c5c5c", "#d9d9d9", "#efefef", "#ffffff"
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY = "#E69F00", "#56B4E9"
LINE_COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)
"""The palette of Okabe and Ito, safe for color-blind readers; its yellow is too faint for lines."""
DASHES = ("-", "--", ":", "-.")

HEAD_COLORS = (
    *("#0b7fc4", "#d0650f", "#2c9150", "#b455b4"),
    *("#92790a", "#cf4466", "#5f73d8", "#159393"),
)
"""Colors of heads, used in turn, in views too; each has contrast with both white and black."""

POSITIVE, NEGATIVE = "#08519c", "#b34700"
"""Colors of the largest values, in views too. Zero is the paper; colors are linear in the value."""
SIGNED: Colormap = LinearSegmentedColormap.from_list("signed", [NEGATIVE, PAPER, POSITIVE])
WEIGHTS: Colormap = LinearSegmentedColormap.from_list("weights", [PAPER, POSITIVE])
"""Colors of weights, probabilities and other values that are never negative."""

TITLE, HEADING, TEXT = 11.0, 9.0, 8.0
"""Font sizes in points; the smallest is 12 pixels high in a notebook."""
FONT = "DejaVu Sans"
"""Part of matplotlib, so figures are the same on every machine."""
DPI = 110

_STYLE = [
    "default",
    {
        "font.family": [FONT, "sans-serif"],
        "font.sans-serif": [FONT],
        "font.size": TEXT,
        "text.color": INK,
        "text.parse_math": False,  # tokens may contain dollar signs
        "axes.edgecolor": SOFT,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.6,
        "axes.titlesize": HEADING,
        "xtick.color": INK,
        "ytick.color": INK,
        "xtick.major.size": 2.0,
        "ytick.major.size": 2.0,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "figure.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "svg.hashsalt": "transformer.inspection.figures",
    },
]

Parameters = ParamSpec("Parameters")


class DescribedFigure(Figure):
    """A matplotlib figure with a description, its alternative text."""

    description = ""
    """What the figure shows, for readers who do not see it."""
    content: Axes
    """Axes over the figure in inches, made by `parts.sheet`."""

    def draw(self, renderer: Any) -> None:
        """Draw with this module's style, as matplotlib creates ticks at the first draw."""
        fonts = {"svg.fonttype": matplotlib.rcParams["svg.fonttype"]}
        with matplotlib.style.context([*_STYLE, fonts]):
            super().draw(renderer)

    def png(self) -> bytes:
        """A PNG in 256 colors, a third of the size: notebooks and pages hold many."""
        image = Image.open(io.BytesIO(rendered(self, "png", {"Software": None}))).convert("RGB")
        # Maximum coverage preserves the colors of thin lines, which have few pixels.
        method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        file = io.BytesIO()
        image.quantize(256, method, dither=dither).save(file, format="png", optimize=True)
        return file.getvalue()

    def _repr_mimebundle_(self, **_: object) -> tuple[dict, dict]:
        """Notebook output: a PNG with the description as alternative text."""
        data = {
            "image/png": base64.b64encode(self.png()).decode("ascii"),
            "text/plain": f"<Figure: {self.description}>",
        }
        return data, {"image/png": {"alt": self.description}}


def styled(
    draw: Callable[Parameters, DescribedFigure],
) -> Callable[Parameters, DescribedFigure]:
    """Make a drawing function use this module's style and leave the global style unchanged."""

    @functools.wraps(draw)
    def drawn(*args: Parameters.args, **kwargs: Parameters.kwargs) -> DescribedFigure:
        with matplotlib.style.context(_STYLE):
            return draw(*args, **kwargs)

    return drawn


def ink_on(color: tuple[float, float, float, float]) -> str:
    """Black or white, the one that contrasts more with the color (by relative luminance)."""
    linear = np.asarray(color[:3]) ** 2.2
    return INK if linear @ (0.2126, 0.7152, 0.0722) > 0.2 else PAPER


def save(figure: DescribedFigure, path: epath.PathLike, *, dpi: int = 160) -> epath.Path:
    """Save a figure together with its description. The same figure gives the same bytes.

    Args:
      path: ends in ``.png``, ``.svg`` or ``.pdf``.
      dpi: resolution of a PNG.

    Raises:
      InputError: for another file type.
    """
    path = absolute(path)
    description = figure.description
    # None leaves out what differs between runs: matplotlib's version and the date.
    match path.suffix.lower():
        case ".png":
            metadata = {"Description": description, "Software": None}
            data = rendered(figure, "png", metadata, dpi=dpi)
        case ".svg":
            data = to_svg(figure).encode()
        case ".pdf":
            unwanted = dict.fromkeys(("CreationDate", "Creator", "Producer"))
            data = rendered(figure, "pdf", {"Subject": description} | unwanted)
        case suffix:
            raise InputError(
                f"{path} ends in {suffix!r}; a figure is saved as '.png', '.svg' or '.pdf'"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data)
    return path


def to_svg(figure: DescribedFigure, *, text_as_paths: bool = False) -> str:
    """An ``<svg>`` element, with the description in ``<desc>``.

    Args:
      text_as_paths: draw text as shapes, independent of the fonts of the reader's machine. By
        default text stays text, which can be searched and selected.
    """
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    options = {"svg.fonttype": "path" if text_as_paths else "none"}
    svg = rendered(figure, "svg", metadata, options=options).decode()
    attributes, _, content = svg[svg.index("<svg ") :].partition(">")
    content = re.sub(r"\s*<metadata>.*?</metadata>", "", content, count=1, flags=re.DOTALL)
    attributes = attributes.replace("<svg ", '<svg role="img" ', 1)
    return f"{attributes}><desc>{escape(figure.description)}</desc>{content}"


def rendered(
    figure: Figure,
    kind: str,
    metadata: dict[str, str | None],
    *,
    dpi: int = DPI,
    options: dict | None = None,
) -> bytes:
    """The bytes of an image file, with further matplotlib options."""
    file = io.BytesIO()
    with matplotlib.style.context([*_STYLE, options or {}]):
        figure.savefig(file, format=kind, dpi=dpi, metadata=metadata)
    return file.getvalue()
