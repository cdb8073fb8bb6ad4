# SPDX-License-Identifier: Apache-2.0
"""Strings of letters to copy, reverse or sort: tasks that a small model learns in seconds.

Each string has 5 to 20 letters. No string occurs in two splits.
"""

import numpy as np
import tensorflow_datasets as tfds

LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
SHORTEST, LONGEST = 5, 20
SIZES = {"train": 50_000, "validation": 500, "test": 1_000}
TASKS = {
    "copy": lambda symbols: symbols,
    "reverse": lambda symbols: symbols[::-1],
    "sort": sorted,
}


def strings(seed: int = 0) -> dict[str, list[list[str]]]:
    """Draw distinct strings for all splits, the same for every task."""
    generator = np.random.default_rng(seed)
    seen: dict[str, list[str]] = {}
    while len(seen) < sum(SIZES.values()):
        length = generator.integers(SHORTEST, LONGEST + 1)
        symbols = [LETTERS[i] for i in generator.integers(len(LETTERS), size=length)]
        seen.setdefault(" ".join(symbols), symbols)
    every = list(seen.values())
    splits, start = {}, 0
    for name, size in SIZES.items():
        splits[name] = every[start : start + size]
        start += size
    return splits


class SymbolsGrammar(tfds.core.GeneratorBasedBuilder):
    """TFDS builder ``symbols_grammar`` with the configs ``copy``, ``reverse`` and ``sort``."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=task) for task in TASKS]

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({"source": text, "target": text}),
            supervised_keys=("source", "target"),
        )

    def _split_generators(self, dl_manager):
        del dl_manager  # There is no download.
        return {name: self._generate_examples(split) for name, split in strings().items()}

    def _generate_examples(self, split):
        task = TASKS[self.builder_config.name]
        for index, symbols in enumerate(split):
            yield index, {"source": " ".join(symbols), "target": " ".join(task(symbols))}
