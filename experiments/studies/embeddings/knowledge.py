# SPDX-License-Identifier: Apache-2.0
"""Relations and labels of the words of one language, from the dictionary of `pronouns`."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from experiments.data.grammars.pronouns.dictionary import ADJECTIVES, NOUNS
from transformer.config import Config

Pair = tuple[str, str]

LANGUAGE_NAMES = {"de": "German", "fr": "French"}
KINDS = ("animal", "food", "drink", "vehicle", "ship", "container", "furniture", "building", "way")
"""Kinds of nouns: groups of the dictionary, of which a noun has the first."""


@dataclasses.dataclass(frozen=True)
class Knowledge:
    """Relations, labels and examples of words."""

    pairs: Mapping[str, Sequence[Pair]] = dataclasses.field(default_factory=dict)
    """Word pairs by their relation; every two pairs of a relation are an analogy."""
    labels: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Labels of words, by the name of the property: ``kind`` or ``gender``."""
    examples: Sequence[str] = ()
    """Words whose neighbors are of interest."""


def languages_of(config: Config) -> dict[str, str]:
    """The language of ``source`` and ``target``: ``en``, ``de`` or ``fr``; empty elsewhere."""
    corpus, _, name = config.data.dataset.partition("/")
    if corpus == "english_pronouns":
        return {"source": "en", "target": "en"}
    if corpus != "pronouns_grammar":
        return {}
    languages = ("en", name) if config.data.direction != "backward" else (name, "en")
    return dict(zip(("source", "target"), languages, strict=True))


def knowledge(language: str, other: str | None = None) -> Knowledge:
    """Describe the nouns of a language, and the words that agree in gender.

    English nouns have no gender; in a translation model their label is that of the noun in the
    `other` language.
    """
    forms = {"en": ("singular", "plural"), "de": ("german", "german_plural")}
    singular, plural = forms.get(language, ("french", "french_plural"))
    gender = "french_gender" if "fr" in (language, other) else "german_gender"
    kinds, genders, number = {}, {}, []
    for noun in NOUNS.values():
        one, many = getattr(noun, singular), getattr(noun, plural)
        genders[one] = getattr(noun, gender)
        kind = next((kind for kind in KINDS if kind in noun.groups), None)
        kinds |= {word: kind for word in (one, many) if word and kind}
        if many and many != one:
            number.append((one, many))
    labels, pairs = {"kind": kinds}, {"number": number}
    if language != "en":
        labels["gender"] = genders
        pairs["gender"] = _gender_pairs(language)
    elif other:
        labels[f"gender in {LANGUAGE_NAMES[other]}"] = genders
    examples = [getattr(NOUNS[name], singular) for name in ("dog", "street", "apple", "car")]
    examples += [getattr(NOUNS["dog"], plural)]
    examples += {"en": ["it", "tired"], "de": ["er", "müde"], "fr": ["il", "fatigué"]}[language]
    return Knowledge(pairs, labels, examples)


def _gender_pairs(language: str) -> list[Pair]:
    """Masculine and feminine forms of the same word."""
    if language == "de":
        return [("der", "die"), ("dieser", "diese"), ("ein", "eine"), ("er", "sie")]
    adjectives = [(each.french_masculine, each.french_feminine) for each in ADJECTIVES.values()]
    articles = [("le", "la"), ("un", "une"), ("ce", "cette"), ("il", "elle")]
    return articles + [pair for pair in adjectives if pair[0] != pair[1]]


def questions_of(pairs: Sequence[Pair]) -> Iterator[tuple[str, str, str, str]]:
    """Every two pairs as an analogy."""
    for one, other in itertools.permutations(pairs, 2):
        yield *one, *other
