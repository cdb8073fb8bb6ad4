# SPDX-License-Identifier: Apache-2.0
"""TFDS builder of the English side of the corpus, for models without a translation.

``text`` has every English sentence as a target, with an empty source. ``antecedent`` has the
sentences with "it" as sources; the target is the noun that "it" refers to.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from experiments.data.grammars.pronouns.sentences import SPLITS, examples
from experiments.data.grammars.pronouns.word_forms import words

_DESCRIPTION = """\
The English sentences of pronouns_grammar/de, with the same splits: as text, and with the antecedent
of "it" ("The animal didn't cross the street because it was too tired." -> "animal").
"""


class EnglishPronouns(tfds.core.GeneratorBasedBuilder):
    """TFDS builder ``english_pronouns`` with the configs ``text`` and ``antecedent``."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ("text", "antecedent")]

    def _info(self) -> tfds.core.DatasetInfo:
        text, number = tfds.features.Text, tfds.features.Scalar
        features = {"source": text(), "target": text()}
        if self.builder_config.name == "antecedent":
            features |= {"subject": text(), "twin": number(dtype=np.int32)}
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("source", "target"),
            disable_shuffling=True,  # The corpus is shuffled already.
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        del dl_manager  # There is no download.
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        generate = {"text": texts, "antecedent": antecedents}[self.builder_config.name]
        return enumerate(generate(split))


def texts(split: str) -> Iterator[dict[str, Any]]:
    """Every English sentence of a split."""
    for example in examples("de", split):
        yield {"source": "", "target": example.source}


def antecedents(split: str) -> Iterator[dict[str, Any]]:
    """The sentences of a split with "it", in which two nouns may be the antecedent.

    `subject` is the main clause's subject, which is one of the two; `twin` is that of the corpus.
    """
    for example in examples("de", split):
        in_order = words(example.source)
        if example.pronoun < 0 or in_order[example.pronoun].lower() != "it":
            continue
        yield {
            "source": example.source,
            "target": in_order[example.antecedent],
            # The subject precedes the object in every main clause.
            "subject": in_order[min(example.antecedent, example.distractor)],
            "twin": example.twin,
        }


def antecedent_metrics(
    examples: Sequence[Mapping[str, Any]], hypotheses: Sequence[str]
) -> dict[str, float]:
    """Score the named antecedents.

    Returns:
      Shares from 0 to 1: `antecedent_accuracy`; `twin_accuracy`, the share of twins with both
      antecedents right (missing without twins); and the baseline `subject`, which always names the
      main clause's subject. Empty for `english_pronouns/text`, which has no antecedents.
    """
    if not examples or "subject" not in examples[0]:
        return {}
    right, subject = [], []
    twins: defaultdict[int, list[bool]] = defaultdict(list)
    for example, hypothesis in zip(examples, hypotheses, strict=True):
        right.append(hypothesis == example["target"])
        subject.append(example["subject"] == example["target"])
        if example["twin"] >= 0:
            twins[int(example["twin"])].append(right[-1])
    scores = {
        "antecedent_accuracy": sum(right) / len(right),
        "subject": sum(subject) / len(subject),
    }
    complete = [both for both in twins.values() if len(both) == 2]
    if complete:
        scores["twin_accuracy"] = sum(map(all, complete)) / len(complete)
    return scores
