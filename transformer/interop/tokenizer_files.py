# SPDX-License-Identifier: Apache-2.0
"""The SentencePiece models of an export, and what comes before the text of a sentence."""

import json
import pathlib
from typing import NamedTuple

from transformer.checkpoints import workdir_files
from transformer.text.mapped_tokenizer import SPECIAL_PIECES, UNKNOWN_TEXT, MappedTokenizer
from transformer.text.tokenizer import WORD_BEGIN, Vocabularies


class TokenizerFiles(NamedTuple):
    """Names of the SentencePiece models, and the pieces that they do not produce."""

    source: str
    target: str
    """The same name if both sides share a model."""
    source_prefix: tuple[str, ...] = ()
    """Pieces before every source."""
    target_prefix: tuple[str, ...] = ()
    """Pieces with which every translation begins; they are no part of its text."""
    languages: tuple[str, ...] = ()
    """Pieces one of which must begin every source."""
    joins_pieces: bool = False
    """Whether joining its pieces gives the text of a translation, as `MappedTokenizer` does: the
    SentencePiece model of the target does not know all of them.
    """

    def print_code(self, pieces: str, processor: str, indent: str = "") -> str:
        """Write the lines of a card that print the text of a translation.

        `pieces` is the variable with the list of pieces, and `processor` the expression of the
        target's SentencePiece processor.
        """
        if not self.joins_pieces:
            return f"{indent}print({processor}.decode({pieces}))\n"
        # As escapes, which survive every encoding of a copy.
        unknown, unknown_text, space = map(
            json.dumps, (SPECIAL_PIECES[-1], UNKNOWN_TEXT, WORD_BEGIN)
        )
        return (
            f"{indent}{pieces} = [{unknown_text} if p == {unknown} else p for p in {pieces}]\n"
            f'{indent}print("".join({pieces}).replace({space}, " ").strip(" "))\n'
        )

    def notes(self) -> list[str]:
        """What a user must do that this project's tokenizer does."""
        if not self.languages or self.source_prefix:
            return []
        return [
            f"A source begins with the code of its target language, {self.languages[0]} for "
            "example, which is a token by itself and no text."
        ]


def write_tokenizers(vocabularies: Vocabularies, directory: pathlib.Path) -> TokenizerFiles:
    """Write the SentencePiece models under the names that a workdir has for them."""
    source, target = (side.sentencepiece_model for side in vocabularies)
    names = workdir_files.TOKENIZER, workdir_files.TOKENIZER
    (directory / workdir_files.TOKENIZER).write_bytes(target)
    if not vocabularies.are_shared or source != target:
        names = workdir_files.SOURCE_TOKENIZER, workdir_files.TOKENIZER
        (directory / workdir_files.SOURCE_TOKENIZER).write_bytes(source)
    if not isinstance(vocabularies.target, MappedTokenizer):
        return TokenizerFiles(*names)
    mapped = vocabularies.target.vocabulary
    prefixes = mapped.source_prefix, mapped.target_prefix
    return TokenizerFiles(*names, *prefixes, mapped.languages, joins_pieces=True)
