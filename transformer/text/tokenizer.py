# SPDX-License-Identifier: Apache-2.0
"""Subword tokenization with SentencePiece (paper 5.1); no other module imports SentencePiece.

Text is neither lowercased nor normalized nor pre-tokenized. Decoding restores it, except that a run
of spaces becomes one space, spaces at the ends are dropped, U+2581 becomes a space, and a character
outside the vocabulary becomes U+2047 between two spaces.
"""

import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer import paths
from transformer.arrays import Int, SpecialIds
from transformer.errors import InputError
from transformer.text import sentencepiece_fields

WORD_BEGIN = "\u2581"
"""SentencePiece's sign for a space, with which every word begins."""
_ZIP = b"PK"
"""First bytes of the vocabulary of an imported model."""
_MAX_SENTENCE_BYTES = 2**24
"""Training leaves longer sentences out silently; SentencePiece's default is 4,192."""


def processor(model: bytes) -> Any:
    """SentencePiece's processor of a serialized model; a RuntimeError if it is none, or cut."""
    import sentencepiece

    loaded = sentencepiece.SentencePieceProcessor()
    loaded.LoadFromSerializedProto(model)
    if not sentencepiece_fields.is_complete(model):
        raise RuntimeError("its end is missing")
    return loaded


class Tokenizer:
    """A vocabulary of subwords, and the conversion between text and token ids.

    `mapped_tokenizer.MappedTokenizer` is the tokenizer of imported models, which `load` recognizes.
    """

    def __init__(self, model: bytes):
        """Load a serialized SentencePiece model, which must have every special id."""
        self.model = model
        self._processor = processor(model)
        self.special_ids = SpecialIds(
            *(getattr(self._processor, f"{name}_id")() for name in SpecialIds._fields)
        )
        if min(self.special_ids) < 0:
            raise InputError(
                f"the tokenizer has pad, bos, eos, unk = {[*self.special_ids]}, but needs an id "
                "for each (-1: none); train it with this program, or with --pad_id"
            )

    @classmethod
    def load(cls, path: paths.Readable) -> "Tokenizer":
        """Read a SentencePiece model, or the vocabulary of an imported model, from a file."""
        # Its module imports this one.
        from transformer.text.mapped_tokenizer import MappedTokenizer

        try:
            model = paths.reachable(path).read_bytes()
            if not model:
                raise RuntimeError("the file is empty")
            return MappedTokenizer(model) if model.startswith(_ZIP) else cls(model)
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"{path} is not a tokenizer ({error}); restore the workdir from a copy"
            ) from None
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        vocab_size: int,
        algorithm: str = "bpe",
        *,
        character_coverage: float = 1.0,
        max_sentences: int = 2_000_000,
        special_ids: SpecialIds = SpecialIds(),
        at_most: bool = False,
        size_field: str = "model.vocab_size",
    ) -> "Tokenizer":
        """Train a vocabulary; the same sentences give the same vocabulary.

        Args:
          sentences: training text, in both languages if they share the vocabulary.
          vocab_size: V, special ids included.
          algorithm: ``bpe`` (the paper's), ``unigram`` or ``word``.
          character_coverage: share of the text's characters that get a token; the rarest are left
            out.
          max_sentences: larger corpora are sampled.
          special_ids: the ids of padding, BOS, EOS and unknown characters.
          at_most: accept a text that supports fewer tokens.
          size_field: config field of the vocabulary size, for errors.

        Raises:
          InputError: if the corpus supports fewer tokens, or has more characters.
        """
        import sentencepiece

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=algorithm,
                character_coverage=character_coverage,
                normalization_rule_name="identity",
                **{f"{name}_id": value for name, value in special_ids._asdict().items()},
                input_sentence_size=max_sentences,
                shuffle_input_sentence=True,
                hard_vocab_limit=not at_most,
                max_sentence_length=_MAX_SENTENCE_BYTES,
                # With more threads the order in which counts are summed would vary.
                num_threads=1,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            raise InputError(_training_error(size_field, vocab_size, str(error))) from None
        return cls(model.getvalue())

    @property
    def sentencepiece_model(self) -> bytes:
        """The serialized SentencePiece model that segments text."""
        return self.model

    @property
    def source_side(self) -> "Tokenizer":
        """The tokenizer of sources if this is that of targets with the same vocabulary."""
        return self

    @property
    def forced_ids(self) -> list[int]:
        """Ids with which every translation begins, such as the code of its language."""
        return []

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._processor.vocab_size()

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Token ids of each sentence, EOS last."""
        return self._processor.encode(list(sentences), add_eos=True)

    def encode_flat(
        self, sentences: Sequence[str], threads: int = 1
    ) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " sentences"]]:
        """Encode many sentences into one array, in several threads of SentencePiece.

        Returns:
          int32 ids of all sentences, one after the other with EOS after each, and the int32 length
          of each sentence, EOS included.
        """
        rows = self._processor.encode(
            list(sentences), add_eos=True, num_threads=threads, return_type="numpy"
        )
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        return np.concatenate([np.empty(0, np.int32), *rows]), lengths

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, up to EOS."""
        ids = [int(token) for token in ids]
        eos = self.special_ids.eos
        return self._processor.decode(ids[: ids.index(eos)] if eos in ids else ids)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The subword of each id; ``▁`` begins a word."""
        return [self._processor.id_to_piece(int(token)) for token in ids]

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """The id of each subword."""
        return [self._processor.piece_to_id(piece) for piece in pieces]

    def scores(self) -> dict[str, float]:
        """Scores of the subwords: log-probabilities (unigram), or larger for earlier merges (bpe).

        Special ids are left out.
        """
        ids = (i for i in range(self.vocab_size) if i not in self.special_ids)
        return {self._processor.id_to_piece(i): self._processor.get_score(i) for i in ids}

    def best_segmentations(self, word: Sequence[int], count: int) -> list[list[int]]:
        """The most probable segmentations of a word given as ids, best first; unigram only."""
        text = "".join(self.pieces(word)).removeprefix(WORD_BEGIN)
        return [list(ids) for ids in self._processor.nbest_encode(text, nbest_size=count)]


class Vocabularies(NamedTuple):
    """The tokenizers of source and target; two sides of one if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def shared(cls, tokenizer: Tokenizer) -> "Vocabularies":
        """One vocabulary for both sides."""
        return cls(tokenizer.source_side, tokenizer)

    @classmethod
    def load(cls, target: paths.Readable, source: paths.Readable | None = None) -> "Vocabularies":
        """Read the tokenizers from files; without `source` they share that of the target."""
        tokenizer = Tokenizer.load(target)
        return cls.shared(tokenizer) if source is None else cls(Tokenizer.load(source), tokenizer)

    @property
    def are_shared(self) -> bool:
        """Whether source and target share a vocabulary."""
        return self.source is self.target.source_side

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of a shared vocabulary; an InputError if the vocabularies are separate."""
        if not self.are_shared:
            raise InputError(
                "source and target have separate vocabularies (data.vocabulary='separate'), but "
                "this needs a shared one"
            )
        return self.target


def _training_error(field: str, vocab_size: int, message: str) -> str:
    """SentencePiece's error as an advice that names the field."""
    limit = re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message)
    if limit:
        return (
            f"{field} is {vocab_size}, but the training text supports at most {limit.group(1)}; "
            f"set --config.{field}={limit.group(1)} or lower"
        )
    characters = re.search(r"(\d+) vs (\d+)", message)
    if "required_chars" in message and characters:
        return (
            f"{field} is {vocab_size}, but the characters of the training text alone need "
            f"{characters.group(2)}; set --config.{field}={characters.group(2)} or higher"
        )
    if "!sentences_.empty()" in message or "all_chars_count" in message:
        return (
            f"no vocabulary of {field} = {vocab_size} could be trained: there is no sentence in "
            "the training text; check the files of the training split"
        )
    reason = message.strip().splitlines()[-1] if message.strip() else "no sentence in it"
    return (
        f"no vocabulary of {field} = {vocab_size} could be trained on the training text ({reason})"
    )
