# SPDX-License-Identifier: Apache-2.0
"""The nouns, adjectives and verbs in three languages, read from the tables beside this file.

A field of a class is a column of its table. Each word is one object, compared by identity.
"""

import csv
import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun, with the adjectives that it takes.

    Attributes:
      singular: English lemma; the key of the row.
      plural: English plural, or "" for mass nouns, which have no plural and take no "a".
      german_oblique: accusative and dative singular ("den Bären").
      aspirated: whether nothing elides before its h ("le hérisson").
      groups: names that the scenes use for it.
      traits: adjectives that can be a reason ("too tired"), as predicates.
      looks: adjectives that describe it and give no reason ("brown"), mostly as attributes.
    """

    singular: str
    plural: str
    german: str
    german_gender: str
    german_plural: str
    german_oblique: str
    french: str
    french_gender: str
    french_plural: str
    aspirated: bool
    groups: frozenset[str]
    traits: tuple[str, ...]
    looks: tuple[str, ...]

    @property
    def countable(self) -> bool:
        """Whether the noun has a plural and may follow "a"."""
        return bool(self.plural)

    @property
    def elides(self) -> bool:
        """Whether le, la and ce change before its first sound."""
        return self.french[0] in "aeiouhâéœ" and not self.aspirated


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective.

    Attributes:
      english: the only English form; the key of the row.
      german: predicate form ("müde", "hoch").
      german_stem: form before an ending ("müd", "hoh").
      french_masculine, french_feminine: singular forms.
      french_before_vowel: masculine singular before a vowel sound ("vieil").
      precedes: whether the French attribute precedes its noun.
      predicative: whether it may follow "be" (a new car is "nouvelle", but what is new is "neuf").
      degrees: which of "very", "so" and "too" may precede it; extreme adjectives ("affamé") take
        no "very".
    """

    english: str
    german: str
    german_stem: str
    french_masculine: str
    french_feminine: str
    french_before_vowel: str
    precedes: bool
    predicative: bool
    degrees: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with one object, direct or after a preposition; all take "haben" and "avoir".

    No English past equals its base form ("put"), so the English sentence determines the tense.

    Attributes:
      english, ...: base form, third person singular, past and past participle.
      german, ...: infinitive, which is the present plural, and other forms of the third person.
      german_case: case of the German object, "accusative" or "dative".
      french, ...: present and other forms of the third person.
      french_imperfect, french_imperfect_plural: imparfait of a verb of state ("fits into"), which
        is its past instead of the passé composé; such verbs have no perfect here.
    """

    english: str
    english_third: str
    english_past: str
    english_participle: str
    english_preposition: str
    german: str
    german_present: str
    german_past: str
    german_past_plural: str
    german_participle: str
    german_preposition: str
    german_case: str
    french: str
    french_plural: str
    french_future: str
    french_future_plural: str
    french_participle: str
    french_imperfect: str
    french_imperfect_plural: str
    french_preposition: str

    @property
    def name(self) -> str:
        """English base form with its preposition; the key of the row."""
        return f"{self.english} {self.english_preposition}".strip()

    @property
    def state(self) -> bool:
        """Whether the verb describes a state, not an action."""
        return bool(self.french_imperfect)


# Adjectives of all members of a group, in addition to those of each row.
_GROUP_TRAITS = {
    "animal": "tired exhausted weak ill injured nervous frightened hungry thirsty curious lazy "
    "cautious slow",
    "vehicle": "heavy damaged",
    "container": "big small full heavy",
    "furniture": "big heavy",
}
_GROUP_LOOKS = {
    "animal": "old young small big beautiful",
    "vehicle": "old new beautiful red black",
    "ship": "old new beautiful white",
    "container": "old new black brown",
    "furniture": "old new beautiful white brown",
    "building": "old new beautiful",
}


def _with_group_adjectives(words: str, groups: str, common: dict[str, str]) -> tuple[str, ...]:
    shared = " ".join(common.get(group, "") for group in groups.split())
    return tuple(dict.fromkeys(f"{words} {shared}".split()))


def _noun(row: dict[str, str]) -> Noun:
    groups = row["groups"]
    return Noun(
        **row
        | {
            "aspirated": row["aspirated"] == "yes",
            "groups": frozenset([row["singular"], *groups.split()]),
            "traits": _with_group_adjectives(row["traits"], groups, _GROUP_TRAITS),
            "looks": _with_group_adjectives(row["looks"], groups, _GROUP_LOOKS),
        }
    )


def _adjective(row: dict[str, str]) -> Adjective:
    flags = {name: row[name] == "yes" for name in ("precedes", "predicative")}
    return Adjective(**row | flags | {"degrees": tuple(row["degrees"].split())})


def rows(table: str) -> Iterator[dict[str, str]]:
    """The rows of a table of this package, by column."""
    text = importlib.resources.files(__package__).joinpath(table).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines(), delimiter="\t")


NOUNS = {noun.singular: noun for noun in map(_noun, rows("nouns.tsv"))}
ADJECTIVES = {each.english: each for each in map(_adjective, rows("adjectives.tsv"))}
VERBS = {verb.name: verb for verb in (Verb(**row) for row in rows("verbs.tsv"))}

# A sentence applies at most one adjective of a line to the same noun.
_CONTRARIES = tuple(
    frozenset(line.split())
    for line in (
        "big small wide narrow cramped long high deep",
        "old young new fresh",
        "white black brown red green",
        "fast slow lazy tired exhausted",
        "empty full overloaded",
        "hot cold",
        "dry fresh",
        "sour sweet bitter salty",
        "fatty dry",
        "hard ripe",
        "flooded dry damp muddy comfortable",
        "slippery dry",
        "beautiful dirty damaged",
    )
)


def compatible(first: str, second: str) -> bool:
    """Whether a sentence may apply both adjectives, by English name, to the same noun.

    No adjective is compatible with itself: "the tired dog was tired" is a tautology.
    """
    return first != second and not any({first, second} <= line for line in _CONTRARIES)
