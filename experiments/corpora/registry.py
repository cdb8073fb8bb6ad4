# SPDX-License-Identifier: Apache-2.0
"""Datasets by name: embedded corpora, TFDS translation corpora and the user's text files.

A new corpus of this repository is a TFDS builder in a file of this package and a line of
`EMBEDDED`; ``data.dataset`` then names it as ``builder/config``.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.corpora import text_files, tfds_corpora
from experiments.corpora.embedded import EmbeddedCorpus, Metrics
from experiments.corpora.pronouns import PronounsGrammar, pronoun_metrics
from experiments.corpora.scan import ScanGrammar, exact_match
from experiments.corpora.symbols import SymbolsGrammar
from experiments.pipeline.pairs import SentencePairs, in_direction
from transformer.config import DataConfig
from transformer.errors import InputError

EMBEDDED = (
    EmbeddedCorpus(PronounsGrammar, metrics=pronoun_metrics),
    EmbeddedCorpus(ScanGrammar, metrics=exact_match),
    EmbeddedCorpus(SymbolsGrammar),
)
"""The corpora of this repository, one a line."""

SPLITS = ("train", "validation", "test")
"""The splits of text files."""


@dataclasses.dataclass(frozen=True)
class Split:
    """The sentence pairs of one split as raw text, in corpus order."""

    dataset: str
    sources: list[str]
    targets: list[str]
    examples: Sequence[Mapping[str, Any]] = ()
    """All features of each example; embedded corpora only."""
    metrics: Metrics | None = None
    """Metrics of the corpus besides BLEU, chrF and exact match."""

    def __len__(self) -> int:
        return len(self.sources)

    def first(self, count: int) -> "Split":
        """Return the first `count` pairs."""
        return dataclasses.replace(
            self,
            sources=self.sources[:count],
            targets=self.targets[:count],
            examples=self.examples[:count],
        )

    def corpus_metrics(self, hypotheses: Sequence[str]) -> dict[str, float]:
        """Compute the metrics of the corpus; empty if it has none."""
        return self.metrics(self.examples, hypotheses) if self.metrics else {}


def embedded_datasets() -> list[str]:
    """All datasets of this repository, as ``builder/config``."""
    return [dataset for corpus in EMBEDDED for dataset in corpus.datasets()]


def load(data: DataConfig, split: str) -> Split:
    """Load one split of the configured dataset into memory, in ``data.direction``.

    Raises:
      InputError: for an unknown dataset or split, or text files that do not match.
    """
    corpus = _embedded(data.dataset)
    # The metrics of an embedded corpus score its forward direction only.
    if corpus and data.direction == "forward":
        examples = corpus.examples(data.dataset.partition("/")[2], split)
        sides = ([example[side] for example in examples] for side in ("source", "target"))
        return Split(data.dataset, *sides, examples, corpus.metrics)
    return _load(data.dataset, sentence_pairs(data, split))


def from_files(source: str, target: str) -> Split:
    """Load the sentence pairs of two text files."""
    return _load("text_files", text_files.TwoFiles(source, target))


def sentence_pairs(data: DataConfig, split: str) -> SentencePairs:
    """One split of the configured dataset, to be read in chunks.

    Raises:
      InputError: see `load`; errors inside the text are raised when it is read.
    """
    if data.dataset == "text_files":
        return in_direction(_configured_files(data, split), data.direction)
    return _named(data.dataset, split, data.direction)


def training_corpora(data: DataConfig) -> list[tuple[float, SentencePairs]]:
    """The training corpora with their weights: those of ``data.mixture``, or the training split.

    Raises:
      InputError: see `sentence_pairs`; or when an entry of the mixture is malformed.
    """
    if not data.mixture:
        return [(1.0, sentence_pairs(data, "train"))]
    return [_mixture_entry(data, entry) for entry in data.mixture]


def _load(dataset: str, pairs: SentencePairs) -> Split:
    sources, targets = [], []
    for source_chunk, target_chunk in pairs.chunks():
        sources += source_chunk
        targets += target_chunk
    return Split(dataset, sources, targets)


def _embedded(dataset: str) -> EmbeddedCorpus | None:
    for corpus in EMBEDDED:
        if dataset in corpus.datasets():
            return corpus
        if dataset.partition("/")[0] == corpus.builder.name:
            known = ", ".join(corpus.datasets())
            raise InputError(
                f"data.dataset is {dataset!r}, which is unknown; choose one of {known}"
            )
    return None


def _named(dataset: str, split: str, direction: str) -> SentencePairs:
    """One split of an embedded corpus, or of a TFDS corpus."""
    if corpus := _embedded(dataset):
        return in_direction(corpus.pairs(dataset.partition("/")[2], split), direction)
    return tfds_corpora.pairs(dataset, split, direction, [*embedded_datasets(), "text_files"])


def _configured_files(data: DataConfig, split: str) -> SentencePairs:
    """The text files of a split: two, or one TSV."""
    if split not in SPLITS:
        raise InputError(f"text_files have no split {split!r}; they have {', '.join(SPLITS)}")
    source, target = (getattr(data, f"{split}_{side}") for side in ("source", "target"))
    if source and not target and text_files.is_tsv(source):
        return text_files.Tsv(source, data.tsv_columns)
    for side, path in (("source", source), ("target", target)):
        if not path:
            raise InputError(
                f"data.{split}_{side} is not given; set --config.data.{split}_{side}=FILE for the "
                f"{split} split"
            )
    return text_files.TwoFiles(source, target)


def _mixture_entry(data: DataConfig, entry: str) -> tuple[float, SentencePairs]:
    """Parse ``WEIGHT*CORPUS`` into the weight and the corpus."""
    weight, corpus = re.fullmatch(r"(?:([^*]*)\*)?(.*)", entry, re.DOTALL).groups()
    try:
        number = float(weight if weight is not None else 1)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise InputError(
            f"data.mixture has {entry!r}, whose weight {weight!r} is not a number above 0; write "
            "for example '2*SOURCE,TARGET'"
        )
    files = corpus.split(",")
    if len(files) == 1 and not text_files.is_tsv(corpus):
        return number, _named(corpus, "train", data.direction)
    if len(files) == 1:
        pairs = text_files.Tsv(corpus, data.tsv_columns)
    elif len(files) == 2 and all(files):
        pairs = text_files.TwoFiles(*files)
    else:
        raise InputError(
            f"data.mixture has {entry!r}; a corpus is a dataset name, 'SOURCE,TARGET' (two "
            "files) or 'FILE.tsv'"
        )
    return number, in_direction(pairs, data.direction)
