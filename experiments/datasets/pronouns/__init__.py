# SPDX-License-Identifier: Apache-2.0
"""The corpus `pronouns`: English to German or French, where "it" takes understanding to translate.

"The animal didn't cross the street because it was too tired / too wide." has in German "es" or
"sie", in French "il" or "elle". A grammar generates the sentences (`scenes`, `grammar`), three
languages write them (`english`, `german`, `french`), `examples` returns the splits, and
`PronounsGrammar` writes them as a TFDS dataset.
"""

from experiments.datasets.pronouns.builder import PronounsGrammar
from experiments.datasets.pronouns.corpus import LANGUAGES, SPLITS, Example, Language, examples
from experiments.datasets.pronouns.metrics import pronoun_metrics
from experiments.datasets.pronouns.words import join, spans, words

__all__ = [
    "LANGUAGES",
    "SPLITS",
    "Example",
    "Language",
    "PronounsGrammar",
    "examples",
    "join",
    "pronoun_metrics",
    "spans",
    "words",
]
