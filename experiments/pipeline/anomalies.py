# SPDX-License-Identifier: Apache-2.0
"""Suspicious characters in a line of text: separators, control characters, damaged encodings."""

import re
import unicodedata
from collections.abc import Iterator

_SEPARATORS = frozenset("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
_JOINERS = frozenset("\u200c\u200d")
"""Format characters that some scripts and emoji need."""
_DAMAGED = re.compile("\ufffd|[ÂÃ][\u0080-\u00bf\u0152-\u0178\u2013-\u20ac]|â\u20ac")


def anomalies(line: str) -> Iterator[tuple[str, str]]:
    """Yield the rules that the characters of a line violate, with the characters concerned."""
    if not _is_suspicious(line):
        return
    unprintable = {character for character in line if not character.isprintable()}
    category = {character: unicodedata.category(character) for character in unprintable}
    for rule, characters in (
        ("line_separators", unprintable & _SEPARATORS),
        ("control_characters", {c for c in unprintable - _SEPARATORS if category[c] == "Cc"}),
        ("invisible_characters", {c for c in unprintable - _JOINERS if category[c] == "Cf"}),
    ):
        if characters:
            yield rule, "".join(sorted(characters))
    damaged = set(_DAMAGED.findall(line))
    if "\ufffd" in damaged:
        yield "replacement_characters", "\ufffd"
    if damaged - {"\ufffd"}:
        yield "mojibake", ""
    if "  " in line or line.strip(" ") != line:
        yield "spaces", ""
    if not unicodedata.is_normalized("NFC", line):
        yield "not_normalized", ""


def _is_suspicious(line: str) -> bool:
    """Whether a line needs the full check; fast, and false for nearly every line."""
    if not line.isprintable() or "  " in line or line[:1] == " " or line[-1:] == " ":
        return True
    if line.isascii():
        return False
    return bool(_DAMAGED.search(line)) or not unicodedata.is_normalized("NFC", line)
