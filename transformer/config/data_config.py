# SPDX-License-Identifier: Apache-2.0
"""Config of the data: corpora, tokenization and batches."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from transformer.fields import Bounds, FieldGroup, Length, Positive


@dataclasses.dataclass(frozen=True)
class DataConfig(FieldGroup):
    """Sentence pairs, tokenization and batching."""

    group: ClassVar[str] = "data"
    former_names: ClassVar[dict[str, str]] = {"tokenizing_processes": "tokenizing_threads"}

    dataset: str = "pronouns_grammar/de"
    """An embedded corpus (``pronouns_grammar/de``, ``scan_grammar/simple``, ...), any TFDS
    translation corpus (``ted_hrlr_translate/pt_to_en``, ``wmt14_translate/de-en``, ...);
    ``text_files``; or ``FILE.py:FUNCTION``, where FUNCTION(split) gives (source, target) pairs.
    """
    train_source: str | None = None
    """With ``text_files``: a text file with a sentence a line, plain or gzip; or, without a target,
    a ``.tsv`` file with both sides.
    """
    train_target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None
    tsv_columns: Annotated[tuple[int, ...], Bounds(1)] = (1, 2)
    """Columns of a ``.tsv`` file with source and target, counted from 1."""
    empty_sources: bool = False
    """Train on pairs with an empty source too, as a language model does; with ``text_files`` the
    sources may be left out.
    """
    mixture: tuple[str, ...] = ()
    """Training corpora instead of the dataset's training split, each as ``WEIGHT*CORPUS``. CORPUS
    is a dataset, ``SOURCE,TARGET`` (two files) or ``FILE.tsv``; for example
    ``--config.data.mixture="('2*a.en,a.de', 'wmt14_translate/de-en')"``. With weight 2 an example
    is read twice an epoch; with weight 0.5, every other epoch on average.
    """
    direction: str = "forward"
    """``forward``, ``backward`` (source and target swapped), or for a corpus with named languages
    ``en-de``, for example. Two files name theirs by their endings: ``train.en``, ``train.de.gz``.
    """
    tokenizer: Literal["bpe", "unigram", "word"] = "bpe"
    """Type of the SentencePiece model trained on both sides of the training split ..."""
    tokenizer_model: str | None = None
    """... or the path of a trained one."""
    vocabulary: Literal["shared", "separate"] = "shared"
    """separate: a SentencePiece model for each side, of model.source_vocab_size and
    model.vocab_size tokens.
    """
    source_tokenizer_model: str | None = None
    """Path of a trained SentencePiece model of the source, if the vocabularies are separate."""
    character_coverage: Annotated[float, Bounds(above=0, at_most=1)] = 1.0
    """Fraction of the training text's characters in the vocabulary; the rarest are left out."""
    subword_sampling: Annotated[float, Bounds(0, 1)] = 0.0
    """Samples a new segmentation each epoch. bpe: probability of skipping a merge (0.1 is usual).
    unigram: exponent of the sampled probabilities. 0 is off.
    """
    token_cache: str | None = None
    """Folder of tokenized corpora, which runs may share; default: ``tokens`` in the workdir."""
    tokenizing_threads: Annotated[int, Bounds(1, 1024)] | None = None
    """Threads that tokenize a corpus; default: one per core."""
    max_length: Length = 100
    """Longest source or target in tokens, with EOS. Longer training examples are left out and
    counted; longer input to translate is cut, with a warning.
    """
    tokens_per_batch: Positive = 4096
    """Target positions (rows x length) of a training batch; the source has the same number."""
    bucket_lengths: Annotated[tuple[int, ...], Bounds(1)] = (16, 32, 64, 100)
    """Lengths of batches, so that few shapes are compiled; the last is max_length."""
    row_multiple: Positive = 8
    """Batches have a multiple of this number of rows, whatever the mesh."""
    packing: bool = False
    """Training rows of max_length tokens hold several sentences, which do not attend to each
    other.
    """

    def bucket(self, length: int) -> int:
        """The static length for a sentence: its bucket, or beyond the last a multiple of that."""
        last = self.bucket_lengths[-1]
        beyond = -(-length // last) * last
        return next((bucket for bucket in self.bucket_lengths if length <= bucket), beyond)

    def validate(self) -> None:
        """Check sizes, rates, and buckets that ascend to the longest sentence."""
        two = len(set(self.tsv_columns)) == 2
        self.require(two, "tsv_columns", "two different columns, counted from 1")
        shared_source = self.vocabulary == "separate" or self.source_tokenizer_model is None
        self.require(shared_source, "source_tokenizer_model", "left out with a shared vocabulary")
        if self.subword_sampling:
            sampled = self.tokenizer != "word"
            self.require(sampled, "tokenizer", "'bpe' or 'unigram' with data.subword_sampling")
        ascending = list(self.bucket_lengths) == sorted(set(self.bucket_lengths))
        self.require(bool(self.bucket_lengths) and ascending, "bucket_lengths", "ascending lengths")
        self.require(
            self.bucket_lengths[-1] == self.max_length,
            "bucket_lengths",
            f"such that the last equals data.max_length = {self.max_length}",
        )
        smallest = self.max_length * self.row_multiple
        self.require(
            self.tokens_per_batch >= smallest,
            "tokens_per_batch",
            f"at least data.max_length x data.row_multiple = {smallest}",
        )
