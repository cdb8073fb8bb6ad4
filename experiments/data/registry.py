# SPDX-License-Identifier: Apache-2.0
"""Datasets by name: embedded corpora, TFDS translation corpora and the user's text files.

A new corpus of this repository is a TFDS builder in a file of this package and a line of
`EMBEDDED`; ``data.dataset`` then names it as ``builder/config``.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.data import text_files, tfds_corpora, user_corpora
from experiments.data.embedded import EmbeddedCorpus, Metrics
from experiments.data.grammars.pronouns import (
    EnglishPronouns,
    PronounsGrammar,
    antecedent_metrics,
    pronoun_metrics,
)
from experiments.data.grammars.scan import ScanGrammar
from experiments.data.grammars.symbols import SymbolsGrammar
from experiments.data.pairs import SentencePairs
from transformer import user_functions
from transformer.config import DataConfig
from transformer.errors import InputError

EMBEDDED = (
    EmbeddedCorpus(PronounsGrammar, metrics=pronoun_metrics),
    EmbeddedCorpus(EnglishPronouns, metrics=antecedent_metrics),
    EmbeddedCorpus(ScanGrammar),
    EmbeddedCorpus(SymbolsGrammar),
)
"""The corpora of this repository, one a line."""

SIDES = ("source", "target")
SPLITS = ("train", "validation", "test")
"""The splits of text files."""
MAX_WEIGHT = 10_000
"""Largest weight of a corpus of a mixture: an epoch is planned as a whole, in memory."""


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

    def digest(self) -> str:
        """The SHA-256 of the text of all pairs."""
        return hashlib.sha256(json.dumps([self.sources, self.targets]).encode()).hexdigest()

    def first(self, count: int) -> "Split":
        """Return the first `count` pairs."""
        return dataclasses.replace(
            self,
            sources=self.sources[:count],
            targets=self.targets[:count],
            examples=self.examples[:count],
        )

    def corpus_metrics(
        self, hypotheses: Sequence[str], functions: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the metrics of the corpus, and those of evaluation.metrics."""
        values = self.metrics(self.examples, hypotheses) if self.metrics else {}
        for name in functions:
            function = user_functions.load_function(name)
            value = function(self.sources, list(hypotheses), self.targets)
            try:
                values[function.__name__] = float(value)
            except (TypeError, ValueError):
                raise InputError(f"metric {name} returned {value!r}, not a number") from None
        return values


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
    return Split(data.dataset, *sentence_pairs(data, split).read())


def from_files(source: str, target: str) -> Split:
    """Load the sentence pairs of two text files."""
    return Split("text_files", *text_files.TwoFiles(source, target).read())


def sentence_pairs(data: DataConfig, split: str) -> SentencePairs:
    """One split of the configured dataset, to be read in chunks.

    Raises:
      InputError: see `load`; errors inside the text are raised when it is read.
    """
    if data.dataset == "text_files":
        return _configured_files(data, split).in_direction(data.direction)
    return _named(data.dataset, split, data.direction)


def training_corpora(data: DataConfig) -> list[tuple[float, SentencePairs]]:
    """The training corpora with their weights: those of ``data.mixture``, or the training split.

    Raises:
      InputError: see `sentence_pairs`; or when an entry of the mixture is malformed.
    """
    if not data.mixture:
        return [(1.0, sentence_pairs(data, "train"))]
    return [_mixture_entry(data, entry) for entry in data.mixture]


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
    """One split of an embedded corpus, of a user's function, or of a TFDS corpus."""
    if user_functions.is_function(dataset):
        return user_corpora.FunctionPairs(dataset, split).in_direction(direction)
    if corpus := _embedded(dataset):
        return corpus.pairs(dataset.partition("/")[2], split).in_direction(direction)
    return tfds_corpora.pairs(dataset, split, direction, [*embedded_datasets(), "text_files"])


def _configured_files(data: DataConfig, split: str) -> SentencePairs:
    """The text files of a split: two, or one TSV."""
    if split not in SPLITS:
        raise InputError(f"text_files have no split {split!r}; they have {', '.join(SPLITS)}")
    source, target = (getattr(data, f"{split}_{side}") for side in ("source", "target"))
    if data.empty_sources and target and not source:
        text_files.require_file(target, f"data.{split}_target")
        return text_files.TargetFile(target)
    if source and not target and text_files.is_tsv(source):
        return _files({f"data.{split}_source": source}, data)
    fields = {f"data.{split}_source": source, f"data.{split}_target": target}
    for field, path in fields.items():
        if not path:
            raise InputError(
                f"{field} is not given; set --config.{field}=FILE for the {split} split"
            )
    return _files(fields, data)


def _files(paths: Mapping[str, str], data: DataConfig) -> SentencePairs:
    """The pairs of two text files, or of one TSV file, by the field that names each."""
    for field, path in paths.items():
        text_files.require_file(path, field)
    if len(paths) == 1:
        return text_files.Tsv(*paths.values(), data.tsv_columns)
    return text_files.TwoFiles(*paths.values())


def _mixture_entry(data: DataConfig, entry: str) -> tuple[float, SentencePairs]:
    """Parse ``WEIGHT*CORPUS`` into the weight and the corpus."""
    weight, corpus = re.fullmatch(r"(?:([^*]*)\*)?(.*)", entry, re.DOTALL).groups()
    try:
        number = float(weight if weight is not None else 1)
    except ValueError:
        number = math.nan
    if not 0 < number <= MAX_WEIGHT:
        raise InputError(
            f"data.mixture has {entry!r}, whose weight {weight!r} is not a number above 0 and at "
            f"most {MAX_WEIGHT:,}, how often an epoch reads each pair; write for example "
            "'2*SOURCE,TARGET'"
        )
    files = corpus.split(",")
    if len(files) == 1 and not text_files.is_tsv(corpus):
        return number, _named(corpus, "train", data.direction)
    if len(files) > 2 or not all(files):
        raise InputError(
            f"data.mixture has {entry!r}; a corpus is a dataset name, 'SOURCE,TARGET' (two "
            "files) or 'FILE.tsv'"
        )
    fields = {f"{side} of data.mixture": path for side, path in zip(SIDES, files, strict=False)}
    return number, _files(fields, data).in_direction(data.direction)
