# SPDX-License-Identifier: Apache-2.0
"""Config of the scores of translations."""

import dataclasses
from typing import ClassVar, Literal

from transformer.fields import FieldGroup
from transformer.user_functions import is_function


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(FieldGroup):
    """Scores of translations, in validation and in `evaluate`."""

    group: ClassVar[str] = "evaluation"

    bleu_tokenize: (
        Literal["13a", "intl", "zh", "char", "ja-mecab", "ko-mecab", "flores200", "none"] | None
    ) = None
    """sacreBLEU's tokenization for BLEU; none for tokenized text. Default: by the script of the
    references, zh for Chinese, ja-mecab (where installed) or char for Japanese, char for other
    scripts without spaces, and 13a otherwise.
    """
    metrics: tuple[str, ...] = ()
    """Further metrics, each ``FILE.py:FUNCTION`` with FUNCTION(sources, translations, references),
    three lists of sentences, a number.
    """

    def validate(self) -> None:
        """Check that metrics are functions of files."""
        named = all(map(is_function, self.metrics))
        self.require(named, "metrics", "functions, each as FILE.py:FUNCTION")
