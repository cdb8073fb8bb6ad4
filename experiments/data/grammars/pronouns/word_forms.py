# SPDX-License-Identifier: Apache-2.0
"""Split raw text into words and join them, by one rule for all three languages.

A word is a run of letters and digits, including an apostrophe or hyphen between two of them
("didn't" is one word). An elided French clitic (one of c d j l m n s t, or qu, before an
apostrophe) is a separate word that ends after its apostrophe ("L'animal n'a" is L' animal n' a).
Every other character except white space is one word (punctuation).
"""

import re
from collections.abc import Iterable

_WORD = re.compile(r"(?:qu|[cdjlmnst])['’](?=\w)|\w+(?:['’-]\w+)*|[^\w\s]", re.IGNORECASE)
_APOSTROPHES = ("'", "’")
_PUNCTUATION = frozenset(".,;:!?")


def words(text: str) -> list[str]:
    """Split `text` into words and punctuation marks, case kept.

    >>> words("L'animal n'a pas dormi, didn't it?")
    ["L'", 'animal', "n'", 'a', 'pas', 'dormi', ',', "didn't", 'it', '?']
    """
    return _WORD.findall(text)


def spans(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) character offsets in `text` of each of `words(text)`."""
    return [match.span() for match in _WORD.finditer(text)]


def join(tokens: Iterable[str]) -> str:
    """Join words to a sentence: the inverse of `words` for text with ordinary spacing."""
    text = ""
    for token in tokens:
        if text and token not in _PUNCTUATION and not text.endswith(_APOSTROPHES):
            text += " "
        text += token
    return text
