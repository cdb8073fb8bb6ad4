# SPDX-License-Identifier: Apache-2.0
"""Sentence pairs by name: the embedded corpora and a person's own text files."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.datasets import embedded, text_files
from transformer.config import DataConfig
from transformer.errors import InputError


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
        """What the corpus measures beside BLEU; empty for text files."""
        if not self.examples:
            return {}
        return embedded.own_metrics(self.dataset, self.examples, hypotheses)


def load(data: DataConfig, split: str) -> Split:
    """One split of the dataset that a config names.

    Raises:
      InputError: for an unknown dataset or split, or text files that do not fit together.
    """
    if data.dataset == "text_files":
        return from_files(*_paths(data, split))
    if data.dataset not in embedded.names():
        known = [*embedded.names(), "text_files"]
        nearest = difflib.get_close_matches(data.dataset, known, n=1, cutoff=0.0)[0]
        raise InputError(
            f"data.dataset is {data.dataset!r}, which is unknown; did you mean {nearest!r}?"
        )
    examples = embedded.read(data.dataset, split)
    return Split(
        data.dataset,
        [example["source"] for example in examples],
        [example["target"] for example in examples],
        examples,
    )


def from_files(source: str, target: str) -> Split:
    """Pairs of two text files."""
    return Split("text_files", *text_files.read_pairs(source, target))


def _paths(data: DataConfig, split: str) -> tuple[str, str]:
    """The two files of a split."""
    fields = [f"{split}_source", f"{split}_target"]
    if not hasattr(data, fields[0]):
        raise InputError(
            f"text_files have no split {split!r}; they have train, validation and test"
        )
    paths = [getattr(data, field) for field in fields]
    for field, path in zip(fields, paths, strict=True):
        if path is None:
            raise InputError(
                f"data.{field} is not given; set --config.data.{field}=FILE for the {split} split"
            )
    return paths[0], paths[1]
