# SPDX-License-Identifier: Apache-2.0
"""Read how a SentencePiece model segments text, from its file, a protocol buffer.

SentencePiece's own API does not tell the algorithm. Field numbers are those of its
``sentencepiece_model.proto``.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf import empty_pb2, unknown_fields

_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
NORMAL, UNKNOWN, CONTROL = 1, 2, 3
"""Types of pieces; others are user-defined (4), unused (5) and bytes (6)."""


class Segmentation(NamedTuple):
    """What decides how a text is segmented."""

    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    algorithm: str
    """``bpe``, ``unigram``, ``word`` or ``char``."""
    byte_fallback: bool
    """Whether unknown characters are segmented into bytes."""
    space_after_word: bool
    """Whether the sign of a space ends words instead of beginning them."""
    character_map: bytes
    """Rules of Unicode normalization; empty for ``identity``."""
    edits_spaces: bool
    """Whether runs of spaces are one, and every word begins with the sign of a space (default)."""


def segmentation(model: bytes) -> Segmentation:
    """Read the fields of a serialized model that `tokenizer.Tokenizer` accepts."""
    pieces, scores, types = [], [], []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(model):
        if number == _PIECE:
            fields = dict(_fields(value))
            pieces.append(fields.get(1, b"").decode())
            scores.append(struct.unpack("<f", struct.pack("<I", fields.get(2, 0)))[0])
            types.append(fields.get(3, NORMAL))
        elif number == _TRAINER:
            trainer = dict(_fields(value))
        elif number == _NORMALIZER:
            normalizer = dict(_fields(value))
    return Segmentation(
        tuple(pieces),
        tuple(scores),
        tuple(types),
        algorithm=_ALGORITHMS[trainer.get(3, 1)],
        byte_fallback=bool(trainer.get(35, 0)),
        space_after_word=bool(trainer.get(24, 0)),
        character_map=normalizer.get(2, b""),
        # add_dummy_prefix, remove_extra_whitespaces and escape_whitespaces; default: true.
        edits_spaces=all(normalizer.get(number, 1) for number in (3, 4, 5)),
    )


def is_complete(model: bytes) -> bool:
    """Whether a serialized model has all its parts; SentencePiece loads one that was cut, too."""
    return {_PIECE, _TRAINER, _NORMALIZER} <= {number for number, _ in _fields(model)}


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and the value of each field: an integer, or the bytes of another value."""
    parsed = empty_pb2.Empty.FromString(message)
    for field in unknown_fields.UnknownFieldSet(parsed):
        yield field.field_number, field.data
