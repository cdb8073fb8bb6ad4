# SPDX-License-Identifier: Apache-2.0
"""The options of what scores translations: the test set, and the variant of BLEU."""

import dataclasses
from typing import Any

from experiments.data import registry
from transformer.config import Config, DataConfig
from transformer.errors import InputError
from transformer.text.metrics import check_tokenization


@dataclasses.dataclass(frozen=True)
class ScoredPairs:
    """Which sentence pairs are translated, and how BLEU compares the translations."""

    split: str = "test"
    """Split of the workdir's dataset."""
    source: str | None = None
    """Text file to translate, instead of a split."""
    target: str | None = None
    """Text file of reference translations."""
    bleu_tokenize: str | None = None
    """Tokenization of BLEU by its name in sacreBLEU; 'none' for tokenized text; default:
    evaluation.bleu_tokenize, or by the script of the references.
    """
    bleu_lowercase: bool = False
    """Compute BLEU in lower case."""

    def require_both(self) -> None:
        """Reject one of --source and --target without the other."""
        if bool(self.source) != bool(self.target):
            raise InputError("--source and --target go together; give both, or --split")

    def load(self, data: DataConfig) -> registry.Split:
        """The sentence pairs of `source` and `target`, or of the split."""
        self.require_both()
        if self.source:
            return registry.from_files(self.source, self.target)
        return registry.load(data, self.split)

    def bleu_options(self, config: Config | None = None) -> dict[str, Any]:
        """Keyword arguments of `metrics.corpus_scores`.

        Raises:
          InputError: sacreBLEU has no such tokenization.
        """
        tokenize = self.bleu_tokenize or (config and config.evaluation.bleu_tokenize)
        check_tokenization(tokenize)
        return {"bleu_tokenize": tokenize, "bleu_lowercase": self.bleu_lowercase}
