# SPDX-License-Identifier: Apache-2.0
"""Sentence pairs by name: the embedded corpora, TFDS's translation corpora, and a person's own
text files.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.corpora import embedded, text_files, tfds_corpora
from experiments.pipeline.pairs import Pairs, directed
from transformer.config import DataConfig
from transformer.errors import InputError

SPLITS = ("train", "validation", "test")
"""What text files can be given for."""


@dataclasses.dataclass(frozen=True)
class Split:
    """The pairs of one split, as raw text, in the order of the corpus."""

    dataset: str
    sources: list[str]
    targets: list[str]
    examples: Sequence[Mapping[str, Any]] = ()
    """All that an embedded corpus knows about each pair."""

    def __len__(self) -> int:
        return len(self.sources)

    def first(self, count: int) -> "Split":
        """The first `count` pairs."""
        return dataclasses.replace(
            self,
            sources=self.sources[:count],
            targets=self.targets[:count],
            examples=self.examples[:count],
        )

    def own_metrics(self, hypotheses: Sequence[str]) -> dict[str, float]:
        """What the corpus measures beside BLEU; empty for all but the embedded ones."""
        if not self.examples:
            return {}
        return embedded.own_metrics(self.dataset, self.examples, hypotheses)


def load(data: DataConfig, split: str) -> Split:
    """One split of the dataset that a config names, whole, in the config's direction.

    Raises:
      InputError: for an unknown dataset or split, or text files that do not fit together.
    """
    if data.dataset in embedded.names() and data.direction == "forward":
        examples = embedded.read(data.dataset, split)
        return Split(
            data.dataset,
            [example["source"] for example in examples],
            [example["target"] for example in examples],
            examples,
        )
    # An embedded corpus measures translations in its own direction only.
    return _whole(data.dataset, text_pairs(data, split))


def text_pairs(data: DataConfig, split: str) -> Pairs:
    """The pairs of one split of the dataset that a config names, to be read piece by piece.

    Raises:
      InputError: as `load`, as far as it shows without reading the pairs.
    """
    if data.dataset == "text_files":
        return directed(_files(data, split), data.direction)
    return _named(data.dataset, split, data.direction)


def training_corpora(data: DataConfig) -> list[tuple[float, Pairs]]:
    """What training reads: the corpora of the mixture, each with its weight.

    Raises:
      InputError: as `text_pairs`, or when an entry of the mixture cannot be understood.
    """
    if not data.mixture:
        return [(1.0, text_pairs(data, "train"))]
    return [_weighed(data, entry) for entry in data.mixture]


def from_files(source: str, target: str) -> Split:
    """Pairs of two text files."""
    return _whole("text_files", text_files.TwoFiles(source, target))


def _whole(dataset: str, corpus: Pairs) -> Split:
    sources, targets = [], []
    for source, target in corpus.chunks():
        sources += source
        targets += target
    return Split(dataset, sources, targets)


def _named(dataset: str, split: str, direction: str) -> Pairs:
    """A split of an embedded corpus, or of one of TFDS."""
    if dataset in embedded.names():
        return directed(embedded.pairs(dataset, split), direction)
    also = [*embedded.names(), "text_files"]
    return tfds_corpora.pairs(dataset, split, direction, also)


def _files(data: DataConfig, split: str) -> Pairs:
    """The files of a split: two, or one TSV."""
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


def _weighed(data: DataConfig, entry: str) -> tuple[float, Pairs]:
    """Weight and corpus from ``WEIGHT*CORPUS``."""
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
        found = text_files.Tsv(corpus, data.tsv_columns)
    elif len(files) == 2 and all(files):
        found = text_files.TwoFiles(*files)
    else:
        raise InputError(
            f"data.mixture has {entry!r}; a corpus is a dataset's name, 'SOURCE,TARGET' (two "
            "files) or 'FILE.tsv'"
        )
    return number, directed(found, data.direction)
