# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of imported models: SentencePiece segments the text, a list gives the pieces ids.

Marian's OPUS-MT models have a SentencePiece model for each language and one vocabulary for both,
whose ids are unrelated to those of SentencePiece. Multilingual models begin a source with the code
of the target language, such as ``>>deu<<``, or both sides with a code, as in NLLB.
"""

import dataclasses
import functools
import io
import itertools
import json
import zipfile
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from transformer.arrays import Int, SpecialIds
from transformer.errors import InputError
from transformer.text.tokenizer import WORD_BEGIN, Tokenizer, processor

SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")
"""The first pieces of every list, whose ids are those of `SpecialIds`."""
UNKNOWN_TEXT = " \u2047 "
"""The text of a character outside the vocabulary, as in SentencePiece."""
_LIST, _SOURCE, _TARGET = "vocabulary.json", "source.spm", "target.spm"
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class MappedVocabulary:
    """One list of pieces for both sides, and the SentencePiece model of each."""

    source_model: bytes
    target_model: bytes
    pieces: tuple[str, ...]
    """The piece of each id; the first are `SPECIAL_PIECES`."""
    original_ids: tuple[int, ...]
    """The id of each piece in the imported files. That of BOS is the first decoder input."""
    languages: tuple[str, ...] = ()
    """Codes one of which begins every source."""
    source_prefix: tuple[str, ...] = ()
    """Pieces before every source that begins with no code."""
    target_prefix: tuple[str, ...] = ()
    """Pieces with which every translation begins; they are no part of its text."""

    def pack(self) -> bytes:
        """Write a ZIP archive, the ``tokenizer.model`` of a workdir; always the same bytes."""
        fields = {name: getattr(self, name) for name in _JSON_FIELDS}
        files = {_LIST: json.dumps({"format": _FORMAT} | fields, ensure_ascii=False).encode()}
        files[_SOURCE] = self.source_model
        if self.target_model != self.source_model:
            files[_TARGET] = self.target_model
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    @classmethod
    def unpack(cls, data: bytes) -> "MappedVocabulary":
        """Read what `pack` wrote; an InputError if it is damaged, or of another version."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                fields = json.loads(archive.read(_LIST))
                source = archive.read(_SOURCE)
                target = archive.read(_TARGET) if _TARGET in archive.namelist() else source
            if fields.pop("format") != _FORMAT:
                raise ValueError("another version of this program wrote it: import it again")
            return cls(source, target, **{name: tuple(fields[name]) for name in _JSON_FIELDS})
        # A damaged archive raises many types.
        except Exception as error:  # noqa: BLE001
            raise InputError(
                f"the vocabulary cannot be read ({error}); restore the file from a copy"
            ) from None


_JSON_FIELDS = ("pieces", "original_ids", "languages", "source_prefix", "target_prefix")


class MappedTokenizer(Tokenizer):
    """One side of a `MappedVocabulary`; ids, pieces and decoded text are the same on both."""

    def __init__(self, model: bytes, side: Literal["source", "target"] = "target"):
        """Load a packed `MappedVocabulary`."""
        self.model = model
        self.side = side
        self.special_ids = SpecialIds()
        self.vocabulary = vocabulary = MappedVocabulary.unpack(model)
        self._processor = processor(self.sentencepiece_model)
        self._ids = {piece: index for index, piece in enumerate(vocabulary.pieces)}
        # Text that looks like a special token is text.
        self._ids_of_text = {
            piece: index for piece, index in self._ids.items() if index >= len(SPECIAL_PIECES)
        }
        prefix = vocabulary.source_prefix if side == "source" else vocabulary.target_prefix
        self._languages = frozenset(vocabulary.languages if side == "source" else ())
        self._prefix = self.ids(prefix)

    @property
    def sentencepiece_model(self) -> bytes:
        """The serialized SentencePiece model of this side."""
        vocabulary = self.vocabulary
        return vocabulary.source_model if self.side == "source" else vocabulary.target_model

    @functools.cached_property
    def source_side(self) -> "MappedTokenizer":
        """The tokenizer of the source."""
        return self if self.side == "source" else MappedTokenizer(self.model, "source")

    @property
    def forced_ids(self) -> list[int]:
        """Ids with which every translation begins."""
        return self._prefix if self.side == "target" else []

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self.vocabulary.pieces)

    def encode_flat(
        self, sentences: Sequence[str], threads: int = 1
    ) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " sentences"]]:
        """Encode many sentences into one array; see `Tokenizer.encode_flat`."""
        rows = self.encode(sentences, threads)
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum()), lengths

    def encode(self, sentences: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Token ids of each sentence after its language code, EOS last.

        Raises:
          InputError: for a source without a language code, or with an unknown one.
        """
        split = [self._split_code(sentence) for sentence in sentences]
        texts = [text for _, text in split]
        rows = self._processor.encode(texts, out_type=str, num_threads=threads)
        unknown, eos = self.special_ids.unk, self.special_ids.eos
        find = self._ids_of_text.get
        return [
            [*prefix, *(find(piece, unknown) for piece in row), eos]
            for (prefix, _), row in zip(split, rows, strict=True)
        ]

    def _split_code(self, sentence: str) -> tuple[list[int], str]:
        """The ids before the text of a sentence, and the text."""
        code, separator, text = sentence.lstrip(" ").partition("<<")
        if self._languages and separator and code.startswith(">>") and " " not in code:
            if f"{code}<<" not in self._languages:
                raise InputError(
                    f"the language code {code}<< is unknown; {self._choices(sentence)}"
                )
            return [self._ids[f"{code}<<"]], text
        if not sentence.strip():
            return [], ""  # which has the empty translation
        if not self._languages or self._prefix:
            return self._prefix, sentence
        raise InputError(f"no language code begins the sentence; {self._choices(sentence)}")

    def _choices(self, sentence: str) -> str:
        """The known codes, and an example; the sentence is shortened."""
        text = sentence if len(sentence) <= 40 else f"{sentence[:40]}..."
        return f"begin it with one of {', '.join(sorted(self._languages))}: {text!r}"

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, up to EOS, without the pieces that begin every target."""
        ids = [int(token) for token in ids]
        eos, prefix = self.special_ids.eos, self._prefix
        ids = ids[: ids.index(eos)] if eos in ids else ids
        if prefix and ids[: len(prefix)] == prefix:
            ids = ids[len(prefix) :]
        pieces = self.vocabulary.pieces
        text = [
            UNKNOWN_TEXT if token == self.special_ids.unk else pieces[token]
            for token in ids
            if token not in (self.special_ids.pad, self.special_ids.bos)
        ]
        return "".join(text).replace(WORD_BEGIN, " ").strip(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The subword of each id; ``▁`` begins a word."""
        return [self.vocabulary.pieces[int(token)] for token in ids]

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """The id of each subword."""
        return [self._ids.get(piece, self.special_ids.unk) for piece in pieces]

    def scores(self) -> dict[str, float]:
        """SentencePiece's scores of the pieces of this side; see `Tokenizer.scores`."""
        of_side = self._processor
        known = ((piece, of_side.piece_to_id(piece)) for piece in self._ids_of_text)
        return {
            piece: of_side.get_score(number)
            for piece, number in known
            if number != of_side.unk_id()
        }

    def best_segmentations(self, word: Sequence[int], count: int) -> list[list[int]]:
        """The most probable segmentations of a word given as ids, best first; unigram only.

        Segmentations with a piece that has no id are left out.
        """
        text = "".join(self.pieces(word)).removeprefix(WORD_BEGIN)
        found = self._processor.nbest_encode(text, nbest_size=count, out_type=str)
        known = (pieces for pieces in found if self._ids_of_text.keys() >= set(pieces))
        return [self.ids(pieces) for pieces in known]
