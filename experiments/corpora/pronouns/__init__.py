# SPDX-License-Identifier: Apache-2.0
"""The corpus `pronouns`: English to German or French, where "it" takes understanding to translate.

"The animal didn't cross the street because it was too tired / too wide." has in German "es" or
"sie", in French "il" or "elle". A grammar generates the sentences (`scenes`, `grammar`), three
languages write them (`english`, `german`, `french`), `examples` returns the splits, and
`PronounsGrammar` writes them as a TFDS dataset.
"""

from experiments.corpora.pronouns.builder import PronounsGrammar
from experiments.corpora.pronouns.pronoun_scores import pronoun_metrics
from experiments.corpora.pronouns.sentences import LANGUAGES, SPLITS, Example, Language, examples
from experiments.corpora.pronouns.word_forms import join, spans, words

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
