# SPDX-License-Identifier: Apache-2.0
"""TFDS builder of the corpus, usable without TensorFlow.

builder = PronounsGrammar(config="de", data_dir=folder, file_format="array_record")
builder.download_and_prepare()
source = builder.as_data_source("train")  # Texts are bytes.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from experiments.data.grammars.pronouns.sentences import LANGUAGES, SPLITS, examples

_DESCRIPTION = """\
English sentences whose "it" can only be translated into German or French by finding its antecedent
("The animal didn't cross the street because it was too tired / too wide."), generated from a
grammar, with the antecedent and the word alignment of every pair.
"""


class PronounsGrammar(tfds.core.GeneratorBasedBuilder):
    """TFDS builder ``pronouns_grammar`` with the configs ``de`` and ``fr``."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=language) for language in LANGUAGES]

    def _info(self) -> tfds.core.DatasetInfo:
        text, index = tfds.features.Text, tfds.features.Scalar
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "source": text(),
                    "target": text(),
                    "shape": text(),
                    "pronoun": index(dtype=np.int32),
                    "antecedent": index(dtype=np.int32),
                    "distractor": index(dtype=np.int32),
                    "target_pronoun": index(dtype=np.int32),
                    "resolution": index(dtype=np.int32),
                    "subject_pronoun": text(),
                    "twin": index(dtype=np.int32),
                    "alignment": tfds.features.Tensor(shape=(None, 2), dtype=np.int32),
                }
            ),
            supervised_keys=("source", "target"),
            disable_shuffling=True,  # The corpus is shuffled already.
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        del dl_manager  # There is no download.
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for key, example in enumerate(examples(self.builder_config.name, split)):
            features = {
                field.name: getattr(example, field.name) for field in dataclasses.fields(example)
            }
            yield key, features | {"alignment": np.array(example.alignment, np.int32)}
