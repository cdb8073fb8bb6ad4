# SPDX-License-Identifier: Apache-2.0
"""Reading the embedded corpora through TFDS, without TensorFlow.

A corpus is generated once into the user's cache folder and read from there as plain Python values.
"""

import contextlib
import dataclasses
import functools
import io
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from experiments import user_cache
from experiments.corpora.pronouns import PronounsGrammar, pronoun_metrics
from experiments.corpora.scan import ScanGrammar, exact_match
from experiments.corpora.symbols import SymbolsGrammar
from experiments.pipeline.pairs import Pairs, Records
from transformer.errors import InputError

BUILDERS = {builder.name: builder for builder in (PronounsGrammar, ScanGrammar, SymbolsGrammar)}

OWN_METRICS = {PronounsGrammar.name: pronoun_metrics, ScanGrammar.name: exact_match}
"""What a corpus measures beside BLEU: (examples, hypotheses) -> values by name."""


def names() -> list[str]:
    """All embedded corpora as ``builder/config``."""
    return [
        f"{name}/{config.name}"
        for name, builder in BUILDERS.items()
        for config in builder.BUILDER_CONFIGS
    ]


def read(dataset: str, split: str) -> list[dict[str, Any]]:
    """The examples of one split, texts as `str`.

    Args:
      dataset: ``builder/config``, one of `names`.
      split: for example ``train``.

    Raises:
      InputError: when there is no such split.
    """
    records = _with_split(dataset, split).as_data_source(split)
    # All at once: record by record takes twice as long.
    return [_decoded(example) for example in records.__getitems__(range(len(records)))]


def pairs(dataset: str, split: str) -> Pairs:
    """The same split as texts alone.

    Raises:
      InputError: when there is no such split.
    """
    builder = _with_split(dataset, split)
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    records = _TextsAlone(builder.as_data_source(split, deserialize_method=raw))
    return Records(dataset, str(builder.version), split, records, ("source", "target"))


@dataclasses.dataclass(frozen=True)
class _TextsAlone:
    """Records of which source and target alone are decoded: a third of the time that all takes."""

    raw: Sequence[bytes]

    FEATURES: ClassVar = tfds.features.FeaturesDict(
        {side: tfds.features.Text() for side in ("source", "target")}
    )

    def __len__(self) -> int:
        return len(self.raw)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, bytes]]:
        return [self.FEATURES.deserialize_example_np(one) for one in self.raw.__getitems__(indices)]


def own_metrics(
    dataset: str, examples: Sequence[Mapping[str, Any]], hypotheses: Sequence[str]
) -> dict[str, float]:
    """The corpus's own metrics; empty where it has none."""
    measure = OWN_METRICS.get(dataset.split("/")[0])
    return measure(examples, hypotheses) if measure else {}


def _with_split(dataset: str, split: str) -> tfds.core.DatasetBuilder:
    builder = _prepared(dataset)
    if split not in builder.info.splits:
        raise InputError(
            f"dataset {dataset} has no split {split!r}; it has {', '.join(builder.info.splits)}"
        )
    return builder


@functools.cache
def _prepared(dataset: str) -> tfds.core.DatasetBuilder:
    """The builder, its files generated.

    They are written to a folder of their own and moved into place whole, so that two runs that
    start together both succeed, and an interrupted one leaves nothing half done.
    """
    name, _, config = dataset.partition("/")
    home = user_cache.folder("datasets")
    options = {"config": config, "file_format": "array_record"}
    builder = BUILDERS[name](data_dir=home, **options)
    if not builder.data_path.exists():
        print(f"generating {dataset} (once, into {home})", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            fresh = BUILDERS[name](data_dir=scratch, **options)
            tfds.disable_progress_bar()
            # TFDS announces the download that there is not, on standard output, which is for
            # results.
            with contextlib.redirect_stdout(io.StringIO()):
                fresh.download_and_prepare()
            os.makedirs(builder.data_path.parent, exist_ok=True)
            try:
                os.rename(fresh.data_path, builder.data_path)
            except OSError:
                if not builder.data_path.exists():
                    raise
        builder = BUILDERS[name](data_dir=home, **options)
    return builder


def _decoded(example: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.decode("utf-8") if isinstance(value, bytes) else value
        for key, value in example.items()
    }
