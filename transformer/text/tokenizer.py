# SPDX-License-Identifier: Apache-2.0
"""Sub-words: raw text to token ids and back; the only file that imports SentencePiece (paper 5.1).

Text goes in and comes out as it is: no lower-casing, no normalisation, no pre-tokenization.
"""

import io
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath

from transformer import paths
from transformer.arrays import BOS_ID, EOS_ID, NUM_SPECIAL_IDS, PAD_ID, UNK_ID
from transformer.errors import InputError

WORD_BEGIN = "\u2581"
"""SentencePiece's sign for a space, with which every word begins."""


class Tokenizer:
    """One vocabulary for both languages."""

    def __init__(self, model: bytes):
        """From a serialized SentencePiece model.

        Raises:
          InputError: when the special ids are not where this project has them.
        """
        import sentencepiece

        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        special = [
            getattr(self._processor, name)() for name in ("pad_id", "bos_id", "eos_id", "unk_id")
        ]
        expected = [PAD_ID, BOS_ID, EOS_ID, UNK_ID]
        if special != expected:
            raise InputError(
                f"the tokenizer has pad, bos, eos, unk = {special}, but they must be {expected}; "
                "train it with this program, or with these ids"
            )

    @classmethod
    def load(cls, path: epath.PathLike) -> "Tokenizer":
        """From a file.

        Raises:
          InputError: when it is missing or is not a SentencePiece model.
        """
        try:
            model = paths.reachable(path).read_bytes()
            if not model:
                raise RuntimeError("the file is empty")
            return cls(model)
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"{path} is not a tokenizer ({error}); restore the workdir from a copy"
            ) from None

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        vocab_size: int,
        algorithm: str = "bpe",
        *,
        character_coverage: float = 1.0,
        most_sentences: int = 2_000_000,
    ) -> "Tokenizer":
        """Learns a vocabulary; the same sentences give the same one.

        Args:
          sentences: of both languages.
          vocab_size: V, the 4 special ids included.
          algorithm: ``bpe`` (the paper's), ``unigram`` or ``word``.
          character_coverage: the share of the text's characters that get a token; the rarest are
            left out.
          most_sentences: how many are sampled from a larger corpus.

        Raises:
          InputError: when the corpus does not support that many tokens, or has more characters.
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
                pad_id=PAD_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                unk_id=UNK_ID,
                input_sentence_size=most_sentences,
                shuffle_input_sentence=True,
                # More threads would make the order in which counts are added up vary.
                num_threads=1,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            raise InputError(_vocabulary_problem(vocab_size, str(error))) from None
        return cls(model.getvalue())

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._processor.vocab_size()

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Token ids of each sentence, the end token last."""
        return [[*ids, EOS_ID] for ids in self._processor.encode(list(sentences))]

    def encode_flat(
        self, sentences: Sequence[str], threads: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encode many sentences into one array.

        Args:
          sentences: texts.
          threads: number of SentencePiece threads; the result does not depend on it.

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
        """The text of a row of ids, up to the end token."""
        text = []
        for token in ids:
            if token == EOS_ID:
                break
            text.append(int(token))
        return self._processor.decode(text)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The sub-word that each id stands for; ``▁`` begins a word."""
        return [self._processor.id_to_piece(int(token)) for token in ids]

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """The id of each sub-word."""
        return [self._processor.piece_to_id(piece) for piece in pieces]

    def scores(self) -> dict[str, float]:
        """Every sub-word's score, the special ids left out: with unigram its log-probability, with
        bpe the higher the earlier its merge.
        """
        ids = range(NUM_SPECIAL_IDS, self.vocab_size)
        return {self._processor.id_to_piece(i): self._processor.get_score(i) for i in ids}

    def best_segmentations(self, word: Sequence[int], most: int) -> list[list[int]]:
        """The most probable ways to cut a word, given as ids, the best first; unigram only."""
        text = "".join(self.pieces(word)).removeprefix(WORD_BEGIN)
        return [list(ids) for ids in self._processor.nbest_encode(text, nbest_size=most)]


class Vocabularies(NamedTuple):
    """The tokenizers of source and target; one object if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def shared(cls, tokenizer: Tokenizer) -> "Vocabularies":
        """One tokenizer for both sides."""
        return cls(tokenizer, tokenizer)


def _vocabulary_problem(vocab_size: int, message: str) -> str:
    """SentencePiece's complaint as one sentence that names the field."""
    most = re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message)
    if most:
        return (
            f"model.vocab_size is {vocab_size}, but the training text supports at most "
            f"{most.group(1)}; set --config.model.vocab_size={most.group(1)} or lower"
        )
    fewest = re.search(r"(\d+) vs (\d+)", message)
    if "required_chars" in message and fewest:
        return (
            f"model.vocab_size is {vocab_size}, but the characters of the training text alone need "
            f"{fewest.group(2)}; set --config.model.vocab_size={fewest.group(2)} or higher"
        )
    if "!sentences_.empty()" in message or "all_chars_count" in message:
        return (
            f"no vocabulary of model.vocab_size = {vocab_size} could be learned: there is no "
            "sentence in the training text; check the files of the training split"
        )
    return (
        f"no vocabulary of model.vocab_size = {vocab_size} could be learned from the training text "
        f"({message.strip().splitlines()[-1] if message.strip() else 'no sentence in it'})"
    )
