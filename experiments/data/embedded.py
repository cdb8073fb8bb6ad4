# SPDX-License-Identifier: Apache-2.0
"""Embedded corpora: TFDS builders of this repository, prepared and read without TensorFlow.

A corpus is generated once into the user's cache folder and read from there.
"""

import contextlib
import dataclasses
import functools
import io
import json
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow_datasets as tfds
from etils import epath

from experiments.console.progress import say
from experiments.data.pairs import Records, SentencePairs
from experiments.storage import file_lock, user_cache
from transformer.checkpoints import integrity
from transformer.errors import InputError

Metrics = Callable[[Sequence[Mapping[str, Any]], Sequence[str]], dict[str, float]]
"""(examples, hypotheses) -> metric values by name."""

_DIGESTS = "digests.json"
"""File with the digests of the others in the folder of a corpus."""


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
                f"data.dataset is '{self.builder.name}/{config}', which has no split {split!r}; it "
                f"has {', '.join(builder.info.splits)}"
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

    The files are written to another folder and renamed when complete. Files that were damaged
    later are set aside and generated again.
    """
    home = user_cache.folder("datasets")
    corpus = pathlib.Path(builder_class.name, config, str(builder_class.VERSION))
    make = functools.partial(builder_class, config=config, file_format="array_record")
    if _is_intact(home / corpus):
        return make(data_dir=home)
    with file_lock.hold(home, f"waiting for another run that prepares a dataset in {home}"):
        # Another run may have generated the files while this one waited.
        if not _is_intact(home / corpus):
            _generate(make, home, corpus)
    return make(data_dir=home)


def _generate(
    make: Callable[..., tfds.core.DatasetBuilder], home: pathlib.Path, corpus: pathlib.Path
) -> None:
    """Generate a corpus into a folder, where nothing intact is in its way."""
    if (home / corpus / _DIGESTS).exists():
        damaged = home / corpus.with_name(f"{corpus.name}.damaged")
        shutil.rmtree(damaged, ignore_errors=True)
        (home / corpus).rename(damaged)
        say(f"{home / corpus} is damaged; it is now {damaged}")
    shutil.rmtree(home / corpus, ignore_errors=True)
    say(f"generating {corpus.parent} (once, into {home})")
    partial = home / "partial"
    shutil.rmtree(partial, ignore_errors=True)  # Left by a run that was killed.
    tfds.disable_progress_bar()
    # TFDS reports a download on stdout, which is for results.
    with contextlib.redirect_stdout(io.StringIO()):
        make(data_dir=partial).download_and_prepare()
    (partial / corpus / _DIGESTS).write_text(json.dumps(_digests(partial / corpus)))
    (home / corpus).parent.mkdir(parents=True, exist_ok=True)
    (partial / corpus).rename(home / corpus)
    shutil.rmtree(partial)


def _is_intact(folder: pathlib.Path) -> bool:
    try:
        return json.loads((folder / _DIGESTS).read_text()) == _digests(folder)
    except (OSError, ValueError, RecursionError):
        return False


def _digests(folder: pathlib.Path) -> dict[str, str]:
    return integrity.directory_digests(epath.Path(folder), exclude=[_DIGESTS])


def _decode_texts(example: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.decode("utf-8") if isinstance(value, bytes) else value
        for key, value in example.items()
    }
