# SPDX-License-Identifier: Apache-2.0
"""The corpus `pronouns`: English to German or French sentences with an ambiguous "it".

The pronoun can only be translated by finding its antecedent: "The animal didn't cross the street
because it was too tired / too wide." needs "es" or "sie" in German, "il" or "elle" in French. A
grammar draws meanings (`scenes`, `grammar`), three modules realize them (`english`, `german`,
`french`), `examples` returns the splits, and `PronounsGrammar` writes them as a TFDS dataset.
`EnglishPronouns` has the English side alone, as text and with antecedents as labels.
"""

from experiments.data.grammars.pronouns.builder import PronounsGrammar
from experiments.data.grammars.pronouns.english_tasks import EnglishPronouns, antecedent_metrics
from experiments.data.grammars.pronouns.pronoun_scores import pronoun_metrics
from experiments.data.grammars.pronouns.sentences import (
    LANGUAGES,
    SPLITS,
    Example,
    Language,
    examples,
)
from experiments.data.grammars.pronouns.word_forms import join, spans, words

__all__ = [
    "LANGUAGES",
    "SPLITS",
    "EnglishPronouns",
    "Example",
    "Language",
    "PronounsGrammar",
    "antecedent_metrics",
    "examples",
    "join",
    "pronoun_metrics",
    "spans",
    "words",
]
