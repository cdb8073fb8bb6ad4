# SPDX-License-Identifier: Apache-2.0
"""Suspicious characters in a line of text: separators, control characters, damaged encodings."""

import re
import unicodedata
from collections.abc import Iterator

_SEPARATORS = frozenset("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
_JOINERS = frozenset("\u200c\u200d")
"""Format characters that some scripts and emoji need."""
_DAMAGED = re.compile("\ufffd|[ÂÃ][\u0080-\u00bf\u0152-\u0178\u2013-\u20ac]|â\u20ac")
"""U+FFFD, or UTF-8 read as Latin-1."""


def anomalies(line: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the rules that a line violates, with the characters concerned."""
    if not line.isprintable():
        unprintable = {character for character in line if not character.isprintable()}
        if separators := unprintable & _SEPARATORS:
            yield "line_separators", separators
        invisible = unprintable - _SEPARATORS - _JOINERS
        if controls := {c for c in invisible if unicodedata.category(c) in ("Cc", "Cf")}:
            yield "control_characters", controls
    if "  " in line or line.strip(" ") != line:
        yield "spaces", set()
    if not line.isascii():
        if damaged := set(_DAMAGED.findall(line)):
            yield "damaged_characters", damaged
        if not unicodedata.is_normalized("NFC", line):
            yield "not_normalized", set()
