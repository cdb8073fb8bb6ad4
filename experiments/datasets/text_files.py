# SPDX-License-Identifier: Apache-2.0
"""Sentence pairs from two text files, line by line.

Only ``\\n`` ends a line: Unicode's other line separators are part of the sentence, because a tool
that splits on them misaligns the files. ``\\r\\n`` is read as ``\\n`` and a leading byte-order mark
is dropped.
"""

import os
import pathlib

from transformer.errors import InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a UTF-8 file, without their ends.

    Raises:
      InputError: when it cannot be read, is empty, or has a byte that is not UTF-8 (with
      file:line).
    """
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; check the path") from None
    lines = split_lines(data, str(path))
    if not lines:
        raise InputError(f"{path} is empty; it must hold one sentence a line")
    return lines


def split_lines(data: bytes, name: str) -> list[str]:
    """The lines of UTF-8 text, without their ends; `name` stands for the file in errors."""
    pieces = data.removeprefix(_BYTE_ORDER_MARK).split(b"\n")
    if pieces[-1] == b"":
        pieces.pop()
    lines = []
    for number, piece in enumerate(pieces, start=1):
        try:
            lines.append(piece.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}:{number}: byte 0x{piece[error.start]:02x} at column {error.start + 1} is "
                "not UTF-8; convert the file (for example: iconv -f latin1 -t utf-8)"
            ) from None
    return lines


def read_pairs(
    source: str | os.PathLike[str], target: str | os.PathLike[str]
) -> tuple[list[str], list[str]]:
    """The lines of both files.

    Raises:
      InputError: as `read_lines`, or when the files have different numbers of lines.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise InputError(
            f"{source} has {len(sources)} lines but {target} has {len(targets)}; line n of one "
            "must be the translation of line n of the other"
        )
    return sources, targets
