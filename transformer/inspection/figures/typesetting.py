# SPDX-License-Identifier: Apache-2.0
"""Text in figures: its width, characters without a glyph, and text that must be shortened."""

import functools
import textwrap
import unicodedata
from collections.abc import Sequence
from numbers import Real

from matplotlib import font_manager, ft2font
from matplotlib.textpath import text_to_path

from transformer.inspection.figures.style import FONT

LEFT_TO_RIGHT = "\u200e"
"""Zero-width mark that keeps the surrounding line in left-to-right order."""


def text_width(text: str, size: Real) -> float:
    """Width in inches of a text of `size` points."""
    if not text:
        return 0.0
    properties = font_manager.FontProperties(family=FONT, size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(text, properties, ismath=False)
    return width / 72


def printable(text: str) -> str:
    """The text with characters that are invisible or have no glyph replaced by code points."""
    if not text.strip(" "):
        return "␣" * len(text) or "(empty)"
    return "".join(map(_printable_character, text))


@functools.cache
def _printable_character(character: str) -> str:
    has_glyph = character.isprintable() and _font().get_char_index(ord(character))
    return character if has_glyph or character == LEFT_TO_RIGHT else f"<{ord(character):X}>"


def isolated(token: str) -> str:
    """A printable token for use within a line; right-to-left text does not reorder the rest."""
    token = printable(token)
    right_to_left = any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in token)
    return LEFT_TO_RIGHT + token + LEFT_TO_RIGHT if right_to_left else token


@functools.cache
def _font() -> ft2font.FT2Font:
    return font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=FONT)))


def shortened(token: str, width: Real, size: Real) -> str:
    """The token, cut with an ellipsis if it is wider than `width` inches."""
    token = printable(token)
    if text_width(token, size) <= width:
        return token
    while len(token) > 1 and text_width(token + "…", size) > width:
        token = token[:-1]
    return token + "…"


def wrapped(text: str, width: Real, size: Real) -> list[str]:
    """Lines of at most `width` inches, but at least ten characters."""
    if not text.strip():
        return []
    text = printable(text)
    characters = int(width * len(text) / text_width(text, size))
    while True:
        lines = textwrap.wrap(text, max(characters, 10))
        # At a low resolution, hinting makes a text a few percent wider.
        if characters <= 10 or all(1.04 * text_width(line, size) <= width for line in lines):
            return lines
        characters -= 2


def listed(items: Sequence[str], limit: int = 8) -> str:
    """The first `limit` items separated by commas, and the number of the remaining ones."""
    text = ", ".join(items[:limit])
    return text + (f" and {len(items) - limit} more" if len(items) > limit else "")
