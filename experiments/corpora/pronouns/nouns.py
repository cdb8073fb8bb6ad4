# SPDX-License-Identifier: Apache-2.0
"""The nouns in three languages, with semantic groups and the adjectives they take.

No two rows share an English form, no English singular equals its plural ("sheep"), and no form is
also a verb ("leaves"), so the translation is a function of the English sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


# eq=False compares by identity: there is one object per noun, and hashing it is fast.
@dataclass(frozen=True, slots=True, eq=False)
class GermanNoun:
    """A German noun: `oblique` is the accusative and dative singular (weak nouns: den Bären)."""

    singular: str
    gender: Literal["m", "f", "n"]
    plural: str
    oblique: str


@dataclass(frozen=True, slots=True, eq=False)
class FrenchNoun:
    """A French noun: `elides` is whether le, la and ce change before its first sound."""

    singular: str
    gender: Literal["m", "f"]
    plural: str
    elides: bool


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun with the adjectives that it takes.

    Attributes:
      singular: English lemma; the key of the row.
      plural: English plural, or "" for mass nouns, which have no plural and take no "a".
      groups: names that the scenes use for it.
      traits: adjectives that can be a reason ("too tired"), as predicates.
      looks: adjectives that describe it and give no reason ("brown"), mostly as attributes.
    """

    singular: str
    plural: str
    german: GermanNoun
    french: FrenchNoun
    groups: frozenset[str]
    traits: tuple[str, ...]
    looks: tuple[str, ...]

    @property
    def countable(self) -> bool:
        """Whether the noun has a plural and may follow "a"."""
        return bool(self.plural)


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


def _merge(words: str, groups: list[str], common: dict[str, str]) -> tuple[str, ...]:
    shared = [word for group in groups for word in common.get(group, "").split()]
    return tuple(dict.fromkeys([*words.split(), *shared]))


def _noun(english: str, german: str, french: str, groups: str, traits: str, looks: str) -> Noun:
    singular, *plural = english.split()
    de, de_gender, de_plural, *oblique = german.split()
    fr, fr_gender, fr_plural, *aspirated = french.split()
    names = groups.split()
    return Noun(
        singular,
        "".join(plural),
        GermanNoun(de, de_gender, de_plural, oblique[0] if oblique else de),
        FrenchNoun(fr, fr_gender, fr_plural, fr[0] in "aeiouhâéœ" and not aspirated),
        frozenset([singular, *names]),
        _merge(traits, names, _GROUP_TRAITS),
        _merge(looks, names, _GROUP_LOOKS),
    )


# English: singular plural (none for mass nouns).  German: singular gender plural, and the oblique
# singular of weak nouns.  French: singular gender plural, and "aspirated" where nothing elides.
# A mass noun has "-" for its plurals.
# fmt: off
_ROWS = (
    # Animals.
    _noun("animal animals", "Tier n Tiere", "animal m animaux",
          "animal omnivore", "", "brown"),
    _noun("dog dogs", "Hund m Hunde", "chien m chiens",
          "animal omnivore carrier pusher opener pet", "fast", "white black brown"),
    _noun("cat cats", "Katze f Katzen", "chat m chats",
          "animal hunter climber opener pet", "fast agile", "white black brown"),
    _noun("horse horses", "Pferd n Pferde", "cheval m chevaux",
          "animal grazer draught carrier pusher", "fast stubborn", "white black brown"),
    _noun("cow cows", "Kuh f Kühe", "vache f vaches",
          "animal grazer draught pusher", "", "white black brown"),
    _noun("goat goats", "Ziege f Ziegen", "chèvre f chèvres",
          "animal grazer climber pusher", "agile stubborn", "white black brown"),
    _noun("pig pigs", "Schwein n Schweine", "cochon m cochons",
          "animal omnivore pusher", "fast", "black white"),
    _noun("mouse mice", "Maus f Mäuse", "souris f souris",
          "animal omnivore climber opener pet", "fast agile", "white brown"),
    _noun("fox foxes", "Fuchs m Füchse", "renard m renards",
          "animal omnivore opener", "fast", "red white"),
    _noun("wolf wolves", "Wolf m Wölfe", "loup m loups",
          "animal hunter", "fast", "white black"),
    _noun("bear bears", "Bär m Bären Bären", "ours m ours",
          "animal omnivore climber carrier pusher opener", "", "brown black"),
    _noun("lion lions", "Löwe m Löwen Löwen", "lion m lions",
          "animal hunter", "fast", "white"),
    _noun("elephant elephants", "Elefant m Elefanten Elefanten", "éléphant m éléphants",
          "animal grazer draught carrier pusher", "", "white"),
    _noun("hare hares", "Hase m Hasen Hasen", "lièvre m lièvres",
          "animal grazer", "fast agile", "brown white"),
    _noun("rabbit rabbits", "Kaninchen n Kaninchen", "lapin m lapins",
          "animal grazer pet", "fast agile", "white black brown"),
    _noun("hedgehog hedgehogs", "Igel m Igel", "hérisson m hérissons aspirated",
          "animal omnivore pet", "", "brown"),
    _noun("turtle turtles", "Schildkröte f Schildkröten", "tortue f tortues",
          "animal grazer pet", "", "green brown"),
    _noun("frog frogs", "Frosch m Frösche", "grenouille f grenouilles",
          "animal", "agile fast", "green brown"),
    _noun("hippopotamus hippopotamuses", "Nilpferd n Nilpferde", "hippopotame m hippopotames",
          "animal grazer pusher", "", ""),
    _noun("donkey donkeys", "Esel m Esel", "âne m ânes",
          "animal grazer draught carrier pusher", "stubborn fast", "brown black"),
    _noun("hen hens", "Henne f Hennen", "poule f poules",
          "animal omnivore pet", "fast", "white brown black red"),
    _noun("goose geese", "Gans f Gänse", "oie f oies",
          "animal grazer", "fast", "white"),
    _noun("monkey monkeys", "Affe m Affen Affen", "singe m singes",
          "animal omnivore climber carrier pusher opener pet", "agile fast", "brown black"),
    _noun("mule mules", "Maultier n Maultiere", "mule f mules",
          "animal grazer draught carrier", "stubborn", "brown black"),
    _noun("weasel weasels", "Wiesel n Wiesel", "belette f belettes",
          "animal hunter climber opener", "fast agile", "brown white"),
    _noun("panther panthers", "Panther m Panther", "panthère f panthères",
          "animal hunter climber", "fast", "black"),
    # Ways, and what else is crossed.
    _noun("street streets", "Straße f Straßen", "rue f rues",
          "way road", "wide steep slippery muddy flooded narrow", "old new beautiful"),
    _noun("bridge bridges", "Brücke f Brücken", "pont m ponts",
          "way road", "long high narrow slippery", "old new beautiful"),
    _noun("river rivers", "Fluss m Flüsse", "rivière f rivières",
          "way water_way", "wide deep narrow muddy", "beautiful"),
    _noun("field fields", "Feld n Felder", "champ m champs",
          "way land", "wide muddy flooded slippery", "green brown"),
    _noun("path paths", "Weg m Wege", "chemin m chemins",
          "way road", "muddy slippery steep flooded narrow", "old new beautiful"),
    _noun("square squares", "Platz m Plätze", "place f places",
          "way land", "slippery flooded muddy", "old new beautiful"),
    _noun("valley valleys", "Tal n Täler", "vallée f vallées",
          "way", "wide deep flooded muddy", "green beautiful"),
    _noun("bog bogs", "Moor n Moore", "tourbière f tourbières",
          "way", "muddy deep flooded", "brown"),
    _noun("meadow meadows", "Wiese f Wiesen", "prairie f prairies",
          "way land", "wide muddy slippery flooded", "green beautiful"),
    _noun("lake lakes", "See m Seen", "lac m lacs",
          "way water_way", "wide deep rough muddy", "beautiful"),
    _noun("sea seas", "Meer n Meere", "mer f mers",
          "water_way", "rough deep", "beautiful"),
    # Heights.
    _noun("hill hills", "Hügel m Hügel", "colline f collines",
          "slope", "steep high slippery muddy", "green beautiful"),
    _noun("mountain mountains", "Berg m Berge", "montagne f montagnes",
          "slope", "steep high", "white beautiful"),
    _noun("dune dunes", "Düne f Dünen", "dune f dunes",
          "slope", "steep high", "white beautiful"),
    _noun("wall walls", "Mauer f Mauern", "mur m murs",
          "steep_thing", "high smooth slippery", "old new white red"),
    _noun("roof roofs", "Dach n Dächer", "toit m toits",
          "steep_thing", "high steep smooth slippery", "old new red black"),
    # Food and drink.
    _noun("apple apples", "Apfel m Äpfel", "pomme f pommes",
          "food fruit", "hard sour sweet ripe", "red green small"),
    _noun("pear pears", "Birne f Birnen", "poire f poires",
          "food fruit", "hard sour sweet ripe", "green small"),
    _noun("carrot carrots", "Karotte f Karotten", "carotte f carottes",
          "food fruit", "hard bitter dry sweet fresh", "small"),
    _noun("radish radishes", "Radieschen n Radieschen", "radis m radis",
          "food fruit", "hard bitter fresh", "red white small"),
    _noun("nut nuts", "Nuss f Nüsse", "noix f noix",
          "food snack", "hard bitter dry fresh", "brown small"),
    _noun("bread", "Brot n -", "pain m -",
          "food snack", "hard dry salty fresh", "white black"),
    _noun("cake cakes", "Kuchen m Kuchen", "gâteau m gâteaux",
          "food snack", "hard dry bitter sweet fresh", "small big beautiful"),
    _noun("cheese", "Käse m -", "fromage m -",
          "food snack", "hard dry salty fatty fresh", "white old"),
    _noun("egg eggs", "Ei n Eier", "œuf m œufs",
          "food prey_food", "hard salty fresh", "white brown small"),
    _noun("fish", "Fisch m -", "poisson m -",
          "food prey_food", "dry salty fatty fresh", "red small"),
    _noun("meat", "Fleisch n -", "viande f -",
          "food prey_food", "dry hard salty fatty fresh", "red white"),
    _noun("milk", "Milch f -", "lait m -",
          "drink", "hot cold fatty bitter sweet fresh", ""),
    _noun("water", "Wasser n -", "eau f -",
          "drink", "hot cold salty dirty fresh", ""),
    _noun("juice", "Saft m -", "jus m -",
          "drink", "cold sour bitter sweet fresh", "red"),
    # Vehicles and ships.
    _noun("car cars", "Auto n Autos", "voiture f voitures",
          "vehicle motor transporter", "big small full overloaded", "white"),
    _noun("truck trucks", "Lastwagen m Lastwagen", "camion m camions",
          "vehicle motor transporter", "big small full overloaded", "white"),
    _noun("bus buses", "Bus m Busse", "bus m bus",
          "vehicle motor", "big full overloaded", "white"),
    _noun("tractor tractors", "Traktor m Traktoren", "tracteur m tracteurs",
          "vehicle motor", "big weak slow", "green"),
    _noun("motorbike motorbikes", "Motorrad n Motorräder", "moto f motos",
          "vehicle motor", "slow big", ""),
    _noun("cart carts", "Karren m Karren", "charrette f charrettes",
          "vehicle drawn transporter", "big small full overloaded", "brown"),
    _noun("carriage carriages", "Kutsche f Kutschen", "carrosse m carrosses",
          "vehicle drawn", "big full overloaded", "white"),
    _noun("sledge sledges", "Schlitten m Schlitten", "traîneau m traîneaux",
          "vehicle drawn transporter", "small full overloaded", "brown"),
    _noun("boat boats", "Boot n Boote", "bateau m bateaux",
          "ship transporter", "small full slow overloaded damaged", "red"),
    _noun("ship ships", "Schiff n Schiffe", "navire m navires",
          "ship transporter", "small full slow overloaded damaged", ""),
    _noun("yacht yachts", "Jacht f Jachten", "yacht m yachts",
          "ship", "small slow overloaded damaged", ""),
    # Containers.
    _noun("box boxes", "Kiste f Kisten", "boîte f boîtes",
          "container lockable load", "locked", "white red"),
    _noun("chest chests", "Truhe f Truhen", "coffre m coffres",
          "container lockable load", "locked", "beautiful"),
    _noun("suitcase suitcases", "Koffer m Koffer", "valise f valises",
          "container lockable load", "locked", "red"),
    _noun("bag bags", "Tasche f Taschen", "sac m sacs",
          "container load", "", "red white"),
    _noun("basket baskets", "Korb m Körbe", "panier m paniers",
          "container load", "comfortable", "beautiful"),
    _noun("barrel barrels", "Fass n Fässer", "tonneau m tonneaux",
          "container load vessel", "dirty deep high", "red"),
    _noun("bucket buckets", "Eimer m Eimer", "seau m seaux",
          "container load vessel", "dirty deep high", "red white"),
    # Furniture and other movable things.
    _noun("table tables", "Tisch m Tische", "table f tables",
          "furniture", "", "black small"),
    _noun("chair chairs", "Stuhl m Stühle", "chaise f chaises",
          "furniture", "hard narrow comfortable", "red"),
    _noun("bed beds", "Bett n Betten", "lit m lits",
          "furniture", "hard narrow comfortable", "small"),
    _noun("sofa sofas", "Sofa n Sofas", "canapé m canapés",
          "furniture", "hard narrow comfortable", "red black"),
    _noun("carpet carpets", "Teppich m Teppiche", "tapis m tapis",
          "furniture", "hard damp", "red"),
    _noun("piano pianos", "Klavier n Klaviere", "piano m pianos",
          "furniture", "", "black"),
    _noun("lamp lamps", "Lampe f Lampen", "lampe f lampes",
          "furniture small_thing", "", "red"),
    _noun("ball balls", "Ball m Bälle", "ballon m ballons",
          "small_thing", "big", "red white old new"),
    # Places.
    _noun("house houses", "Haus n Häuser", "maison f maisons",
          "building", "damp empty flooded comfortable small", "white red"),
    _noun("stable stables", "Stall m Ställe", "étable f étables",
          "building shelter", "damp cramped empty flooded comfortable dark", ""),
    _noun("barn barns", "Scheune f Scheunen", "grange f granges",
          "building shelter", "damp empty flooded comfortable dark small full", "red"),
    _noun("hut huts", "Hütte f Hütten", "cabane f cabanes",
          "building shelter", "damp cramped empty flooded comfortable dark small full", "brown"),
    _noun("cave caves", "Höhle f Höhlen", "grotte f grottes",
          "shelter", "damp cramped empty flooded comfortable dark deep", "old beautiful"),
    _noun("tent tents", "Zelt n Zelte", "tente f tentes",
          "building shelter", "damp cramped empty flooded comfortable dark small full",
          "green white"),
    _noun("room rooms", "Zimmer n Zimmer", "chambre f chambres",
          "building", "damp cramped empty flooded comfortable dark small full", "white"),
    _noun("garden gardens", "Garten m Gärten", "jardin m jardins",
          "place", "flooded damp narrow muddy small", "old new beautiful green"),
    _noun("forest forests", "Wald m Wälder", "forêt f forêts",
          "place", "flooded damp dark", "old beautiful green"),
)
# fmt: on

NOUNS: Mapping[str, Noun] = MappingProxyType({noun.singular: noun for noun in _ROWS})
