# SPDX-License-Identifier: Apache-2.0
"""The adjectives in three languages, and which of them contradict each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


# eq=False compares by identity: there is one object per adjective.
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
      degrees: which of "very", "so" and "too" may precede it.
      predicative: whether it may follow "be" (a new car is "nouvelle", but what is new is "neuf").
    """

    english: str
    german: str
    german_stem: str
    french_masculine: str
    french_feminine: str
    french_before_vowel: str
    precedes: bool
    degrees: tuple[str, ...]
    predicative: bool


_ALL_DEGREES = ("very", "so", "too")
# Extreme adjectives ("affamé", "épuisé") take no "very".
_EXTREME = ("so", "too")


def _adjective(
    english: str,
    german: str,
    french: str,
    *,
    precedes: bool = False,
    degrees: tuple[str, ...] = _ALL_DEGREES,
    predicative: bool = True,
) -> Adjective:
    predicate, *stem = german.split()
    masculine, *others = french.split()
    feminine = others[0] if others else masculine
    before_vowel = others[1] if len(others) > 1 else masculine
    return Adjective(
        english,
        predicate,
        stem[0].rstrip("-") if stem else predicate,
        masculine,
        feminine,
        before_vowel,
        precedes,
        degrees,
        predicative,
    )


# German: predicate form, and the stem where endings change it.  French: masculine, feminine where
# it differs, and the masculine before a vowel.
_ROWS = (
    # Of animals.
    _adjective("tired", "müde müd-", "fatigué fatiguée"),
    _adjective("exhausted", "erschöpft", "épuisé épuisée", degrees=_EXTREME),
    _adjective("weak", "schwach", "faible"),
    _adjective("ill", "krank", "malade"),
    _adjective("injured", "verletzt", "blessé blessée", degrees=()),
    _adjective("nervous", "nervös", "nerveux nerveuse"),
    _adjective("frightened", "verängstigt", "effrayé effrayée"),
    _adjective("hungry", "hungrig", "affamé affamée", degrees=_EXTREME),
    _adjective("thirsty", "durstig", "assoiffé assoiffée", degrees=_EXTREME),
    _adjective("curious", "neugierig", "curieux curieuse"),
    _adjective("lazy", "faul", "paresseux paresseuse"),
    _adjective("cautious", "vorsichtig", "prudent prudente"),
    _adjective("stubborn", "störrisch", "têtu têtue"),
    _adjective("slow", "langsam", "lent lente"),
    _adjective("fast", "schnell", "rapide"),
    _adjective("agile", "flink", "agile"),
    # Of ways and heights.
    _adjective("wide", "breit", "large"),
    _adjective("narrow", "schmal", "étroit étroite"),
    _adjective("cramped", "eng", "étroit étroite"),
    _adjective("long", "lang", "long longue", precedes=True),
    _adjective("steep", "steil", "pentu pentue"),
    _adjective("slippery", "rutschig", "glissant glissante"),
    _adjective("muddy", "schlammig", "boueux boueuse"),
    _adjective("deep", "tief", "profond profonde"),
    _adjective("rough", "unruhig", "agité agitée"),
    _adjective("high", "hoch hoh-", "haut haute", precedes=True),
    _adjective("smooth", "glatt", "lisse"),
    _adjective("flooded", "überflutet", "inondé inondée", degrees=()),
    # Of food and drink.
    _adjective("hard", "hart", "dur dure"),
    _adjective("dry", "trocken", "sec sèche"),
    _adjective("sour", "sauer saur-", "acide"),
    _adjective("bitter", "bitter", "amer amère"),
    _adjective("salty", "salzig", "salé salée"),
    _adjective("fatty", "fett", "gras grasse"),
    _adjective("sweet", "süß", "sucré sucrée"),
    _adjective("ripe", "reif", "mûr mûre"),
    _adjective("fresh", "frisch", "frais fraîche"),
    _adjective("hot", "heiß", "chaud chaude"),
    _adjective("cold", "kalt", "froid froide"),
    # Of vehicles, containers and places.
    _adjective("heavy", "schwer", "lourd lourde"),
    _adjective("overloaded", "überladen", "surchargé surchargée", degrees=()),
    _adjective("damaged", "beschädigt", "endommagé endommagée", degrees=()),
    _adjective("full", "voll", "plein pleine"),
    _adjective("empty", "leer", "vide", degrees=()),
    _adjective("locked", "verschlossen", "verrouillé verrouillée", degrees=()),
    _adjective("dirty", "schmutzig", "sale"),
    _adjective("damp", "feucht", "humide"),
    _adjective("dark", "dunkel dunkl-", "sombre"),
    _adjective("comfortable", "gemütlich", "confortable"),
    # Looks.
    _adjective("big", "groß", "grand grande", precedes=True),
    _adjective("small", "klein", "petit petite", precedes=True),
    _adjective("old", "alt", "vieux vieille vieil", precedes=True),
    _adjective("young", "jung", "jeune", precedes=True),
    _adjective("new", "neu", "nouveau nouvelle nouvel", precedes=True, predicative=False),
    _adjective("beautiful", "schön", "beau belle bel", precedes=True),
    _adjective("white", "weiß", "blanc blanche", degrees=()),
    _adjective("black", "schwarz", "noir noire", degrees=()),
    _adjective("brown", "braun", "brun brune", degrees=()),
    _adjective("red", "rot", "rouge", degrees=()),
    _adjective("green", "grün", "vert verte", degrees=()),
)

ADJECTIVES: Mapping[str, Adjective] = MappingProxyType({row.english: row for row in _ROWS})

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
    if first == second:
        return False
    return not any(first in line and second in line for line in _CONTRARIES)
