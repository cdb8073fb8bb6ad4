# SPDX-License-Identifier: Apache-2.0
"""Embedded corpora: TFDS builders of this repository, prepared and read without TensorFlow.

A corpus is generated once into the user's cache folder and read from there.
"""

import contextlib
import dataclasses
import functools
import io
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from experiments import user_cache
from experiments.pipeline.pairs import Records, SentencePairs
from transformer.errors import InputError

Metrics = Callable[[Sequence[Mapping[str, Any]], Sequence[str]], dict[str, float]]
"""(examples, hypotheses) -> metric values by name."""


@dataclasses.dataclass(frozen=True)
class EmbeddedCorpus:
    """A corpus that a builder of this repository generates.

    Every example has the text features ``source`` and ``target``; the metrics may use others.
    """

    builder: type[tfds.core.GeneratorBasedBuilder]
    metrics: Metrics | None = None
    """Metrics of the corpus besides BLEU, chrF and exact match."""

    def datasets(self) -> list[str]:
        """All datasets of the corpus, as ``builder/config``."""
        return [f"{self.builder.name}/{config.name}" for config in self.builder.BUILDER_CONFIGS]

    def examples(self, config: str, split: str) -> list[dict[str, Any]]:
        """Read all features of one split, texts as `str`.

        Raises:
          InputError: when there is no such split.
        """
        records = self._prepared_with(config, split).as_data_source(split)
        # Reading record by record takes twice as long.
        return [_decode_texts(example) for example in records.__getitems__(range(len(records)))]

    def pairs(self, config: str, split: str) -> SentencePairs:
        """The sentence pairs of one split.

        Raises:
          InputError: when there is no such split.
        """
        builder = self._prepared_with(config, split)
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        records = _TextRecords(builder.as_data_source(split, deserialize_method=raw))
        dataset = f"{self.builder.name}/{config}"
        return Records(dataset, str(builder.version), split, records, _TextRecords.SIDES)

    def _prepared_with(self, config: str, split: str) -> tfds.core.DatasetBuilder:
        builder = _prepare(self.builder, config)
        if split not in builder.info.splits:
            raise InputError(
                f"dataset {self.builder.name}/{config} has no split {split!r}; it has "
                f"{', '.join(builder.info.splits)}"
            )
        return builder


@dataclasses.dataclass(frozen=True)
class _TextRecords:
    """Raw records decoded to source and target only, in a third of the time of all features."""

    raw: Sequence[bytes]

    SIDES: ClassVar = ("source", "target")
    FEATURES: ClassVar = tfds.features.FeaturesDict({side: tfds.features.Text() for side in SIDES})

    def __len__(self) -> int:
        return len(self.raw)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, bytes]]:
        return [self.FEATURES.deserialize_example_np(one) for one in self.raw.__getitems__(indices)]


@functools.cache
def _prepare(
    builder_class: type[tfds.core.GeneratorBasedBuilder], config: str
) -> tfds.core.DatasetBuilder:
    """Return the builder, with its files generated.

    The files are written to a temporary folder and renamed when complete. Two runs that start
    together both succeed, and an interrupted run leaves nothing incomplete.
    """
    make = functools.partial(builder_class, config=config, file_format="array_record")
    home = user_cache.folder("datasets")
    builder = make(data_dir=home)
    if builder.data_path.exists():
        return builder
    name = f"{builder.name}/{config}"
    print(f"generating {name} (once, into {home})", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        generated = make(data_dir=scratch)
        tfds.disable_progress_bar()
        # TFDS reports a download on stdout, which is for results.
        with contextlib.redirect_stdout(io.StringIO()):
            generated.download_and_prepare()
        os.makedirs(builder.data_path.parent, exist_ok=True)
        try:
            os.rename(generated.data_path, builder.data_path)
        except OSError:
            # Another run generated the same files first.
            if not builder.data_path.exists():
                raise
    return make(data_dir=home)


def _decode_texts(example: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.decode("utf-8") if isinstance(value, bytes) else value
        for key, value in example.items()
    }
