# SPDX-License-Identifier: Apache-2.0
"""The three grammars of the corpus `pronouns`: noun phrases, events, statements and reasons."""

import pytest

from experiments.data.grammars.pronouns import english, french, german, join, spans, words
from experiments.data.grammars.pronouns.dictionary import ADJECTIVES, NOUNS, VERBS
from experiments.data.grammars.pronouns.meaning import (
    Because,
    Event,
    Phrase,
    Quality,
    Role,
    Statement,
    Tense,
    realize,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The animal didn't sleep.", ["The", "animal", "didn't", "sleep", "."]),
        ("L'animal n'a pas dormi.", ["L'", "animal", "n'", "a", "pas", "dormi", "."]),
        ("parce qu'elle était", ["parce", "qu'", "elle", "était"]),
        ("Aujourd’hui, l’œuf", ["Aujourd’hui", ",", "l’", "œuf"]),
        ("Die Straße, weil", ["Die", "Straße", ",", "weil"]),
        ("", []),
    ],
)
def test_words_are_split_by_the_documented_rule(text, expected):
    assert words(text) == expected
    assert [text[start:end] for start, end in spans(text)] == expected


def phrase(text):
    """ "the old dogs" as a phrase, by the English forms."""
    determiner, *adjective, noun = text.split()
    noun_row = next(each for each in NOUNS.values() if noun in (each.singular, each.plural))
    return Phrase(
        noun_row,
        noun == noun_row.plural,
        {"an": "a", "these": "this"}.get(determiner, determiner),
        ADJECTIVES[adjective[0]] if adjective else None,
    )


def written(language, meaning):
    return join(token.text for token in realize(meaning, language))


def phrase_text(tokens):
    return join(token.text for token in tokens)


@pytest.mark.parametrize(
    ("text", "case", "expected"),
    [
        # Weak endings, after "der" and "dieser".
        ("the old dog", "nominative", "der alte Hund"),
        ("the old dog", "accusative", "den alten Hund"),
        ("the old cat", "accusative", "die alte Katze"),
        ("the old horse", "nominative", "das alte Pferd"),
        ("the old dogs", "accusative", "die alten Hunde"),
        ("this red bucket", "dative", "diesem roten Eimer"),
        ("this old box", "dative", "dieser alten Kiste"),
        ("these old barrels", "dative", "diesen alten Fässern"),
        ("these old chairs", "nominative", "diese alten Stühle"),
        # Mixed endings, after "ein".
        ("an old dog", "nominative", "ein alter Hund"),
        ("an old dog", "accusative", "einen alten Hund"),
        ("an old horse", "accusative", "ein altes Pferd"),
        ("an old cat", "nominative", "eine alte Katze"),
        ("an old bed", "dative", "einem alten Bett"),
        ("an old cat", "dative", "einer alten Katze"),
        # Weak nouns.
        ("the bear", "nominative", "der Bär"),
        ("the bear", "accusative", "den Bären"),
        ("a young hare", "accusative", "einen jungen Hasen"),
        ("this elephant", "accusative", "diesen Elefanten"),
        ("the lion", "accusative", "den Löwen"),
        ("the monkey", "accusative", "den Affen"),
        # The dative plural takes n, but not after n or s.
        ("the tents", "dative", "den Zelten"),
        ("the caves", "dative", "den Höhlen"),
        ("the sofas", "dative", "den Sofas"),
        # Stems that change before an ending.
        ("the high wall", "nominative", "die hohe Mauer"),
        ("a dark stable", "accusative", "einen dunklen Stall"),
        ("the sour apple", "accusative", "den sauren Apfel"),
        ("a tired animal", "nominative", "ein müdes Tier"),
    ],
)
def test_german_noun_phrases(text, case, expected):
    assert phrase_text(german.noun_phrase(phrase(text), case, Role.OBJECT)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Elision, and where an h prevents it.
        ("the animal", "l'animal"),
        ("the egg", "l'œuf"),
        ("the stable", "l'étable"),
        ("the hippopotamus", "l'hippopotame"),
        ("the hedgehog", "le hérisson"),
        ("this hippopotamus", "cet hippopotame"),
        ("this hedgehog", "ce hérisson"),
        ("this yacht", "ce yacht"),
        ("this goose", "cette oie"),
        ("these animals", "ces animaux"),
        ("a goose", "une oie"),
        # Before an adjective nothing elides, and the adjective itself changes before a vowel.
        ("the old animal", "le vieil animal"),
        ("the old hedgehog", "le vieux hérisson"),
        ("this old donkey", "ce vieil âne"),
        ("a beautiful elephant", "un bel éléphant"),
        ("the beautiful goose", "la belle oie"),
        ("the old animals", "les vieux animaux"),
        ("the beautiful donkeys", "les beaux ânes"),
        ("the new bridge", "le nouveau pont"),
        ("the new carts", "les nouvelles charrettes"),
        ("the new bridges", "les nouveaux ponts"),
        ("the high wall", "le haut mur"),
        # After the noun the article sees the noun.
        ("the brown animal", "l'animal brun"),
        ("this white bear", "cet ours blanc"),
        ("the white goose", "l'oie blanche"),
        # Agreement, and plurals of nouns and adjectives.
        ("the dry carrots", "les carottes sèches"),
        ("the nervous horses", "les chevaux nerveux"),
        ("the nervous goats", "les chèvres nerveuses"),
        ("the fresh milk", "le lait frais"),
        ("the fresh water", "l'eau fraîche"),
        ("the long bridges", "les longs ponts"),
        ("the small cakes", "les petits gâteaux"),
        ("the white mice", "les souris blanches"),
    ],
)
def test_french_noun_phrases(text, expected):
    assert phrase_text(french.noun_phrase(phrase(text), Role.SUBJECT)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a animal", "an animal"),
        ("a old dog", "an old dog"),
        ("a small egg", "a small egg"),
        ("a hippopotamus", "a hippopotamus"),
        ("this mice", "these mice"),
    ],
)
def test_english_noun_phrases(text, expected):
    assert phrase_text(english.noun_phrase(phrase(text), Role.SUBJECT)) == expected


EVENTS = [
    # subject, verb, object, tense, negative, English, German, French
    ("the dog", "eat", "an apple", Tense.PRESENT, False,
     "The dog eats an apple.",
     "Der Hund frisst einen Apfel.",
     "Le chien mange une pomme."),
    ("the dogs", "eat", "the egg", Tense.PRESENT, True,
     "The dogs don't eat the egg.",
     "Die Hunde fressen das Ei nicht.",
     "Les chiens ne mangent pas l'œuf."),
    ("the lion", "catch", "the hare", Tense.PERFECT, True,
     "The lion hasn't caught the hare.",
     "Der Löwe hat den Hasen nicht gefangen.",
     "Le lion n'a pas attrapé le lièvre."),
    ("the cats", "avoid", "these bridges", Tense.PAST, True,
     "The cats didn't avoid these bridges.",
     "Die Katzen mieden diese Brücken nicht.",
     "Les chats n'ont pas évité ces ponts."),
    ("the monkey", "open", "the box", Tense.FUTURE, True,
     "The monkey won't open the box.",
     "Der Affe wird die Kiste nicht öffnen.",
     "Le singe n'ouvrira pas la boîte."),
    ("the cow", "drink from", "the old bucket", Tense.PRESENT, True,
     "The cow doesn't drink from the old bucket.",
     "Die Kuh trinkt nicht aus dem alten Eimer.",
     "La vache ne boit pas dans le vieux seau."),
    ("the cow", "sleep in", "the stable", Tense.PERFECT, True,
     "The cow hasn't slept in the stable.",
     "Die Kuh hat nicht im Stall geschlafen.",
     "La vache n'a pas dormi dans l'étable."),
    ("the cow", "sleep in", "this barn", Tense.PAST, False,
     "The cow slept in this barn.",
     "Die Kuh schlief in dieser Scheune.",
     "La vache a dormi dans cette grange."),
    ("the dog", "sleep on", "the sofas", Tense.FUTURE, False,
     "The dog will sleep on the sofas.",
     "Der Hund wird auf den Sofas schlafen.",
     "Le chien dormira sur les canapés."),
    ("the beds", "fit into", "the room", Tense.PAST, True,
     "The beds didn't fit into the room.",
     "Die Betten passten nicht ins Zimmer.",
     "Les lits ne tenaient pas dans la chambre."),
    ("the bed", "fit into", "the cart", Tense.FUTURE, True,
     "The bed won't fit into the cart.",
     "Das Bett wird nicht in den Karren passen.",
     "Le lit ne tiendra pas dans la charrette."),
]  # fmt: skip


@pytest.mark.parametrize("row", EVENTS, ids=lambda row: row[5])
def test_events_in_three_languages(row):
    subject, verb, thing, tense, negative, *expected = row
    event = Event(phrase(subject), VERBS[verb], phrase(thing), tense, negative)
    assert [written(language, event) for language in (english, german, french)] == expected


STATEMENTS = [
    # subject, tense, negative, degree, adjective, English, German, French
    ("the old goats", Tense.PAST, True, "very", "tired",
     "The old goats weren't very tired.",
     "Die alten Ziegen waren nicht sehr müde.",
     "Les vieilles chèvres n'étaient pas très fatiguées."),
    ("an animal", Tense.FUTURE, True, "", "hungry",
     "An animal won't be hungry.",
     "Ein Tier wird nicht hungrig sein.",
     "Un animal ne sera pas affamé."),
    ("this water", Tense.PRESENT, True, "too", "cold",
     "This water isn't too cold.",
     "Dieses Wasser ist nicht zu kalt.",
     "Cette eau n'est pas trop froide."),
    ("these trucks", Tense.FUTURE, False, "so", "full",
     "These trucks will be so full.",
     "Diese Lastwagen werden so voll sein.",
     "Ces camions seront si pleins."),
]  # fmt: skip


@pytest.mark.parametrize("row", STATEMENTS, ids=lambda row: row[5])
def test_statements_in_three_languages(row):
    subject, tense, negative, degree, adjective, *expected = row
    statement = Statement(phrase(subject), tense, negative, Quality(degree, ADJECTIVES[adjective]))
    assert [written(language, statement) for language in (english, german, french)] == expected


REASONS = [
    # subject, verb, object, tense, antecedent, degree, adjective, clause first, three languages
    ("the animal", "cross", "the street", Tense.PAST, Role.SUBJECT, "too", "tired", True,
     "Because it was too tired, the animal didn't cross the street.",
     "Weil es zu müde war, überquerte das Tier die Straße nicht.",
     "Parce qu'il était trop fatigué, l'animal n'a pas traversé la rue."),
    ("the goats", "climb", "the walls", Tense.FUTURE, Role.OBJECT, "so", "smooth", False,
     "The goats won't climb the walls because they are so smooth.",
     "Die Ziegen werden die Mauern nicht erklimmen, weil sie so glatt sind.",
     "Les chèvres n'escaladeront pas les murs parce qu'ils sont si lisses."),
    ("the horse", "pull", "the carts", Tense.PERFECT, Role.SUBJECT, "too", "weak", True,
     "Because it is too weak, the horse hasn't pulled the carts.",
     "Weil es zu schwach ist, hat das Pferd die Karren nicht gezogen.",
     "Parce qu'il est trop faible, le cheval n'a pas tiré les charrettes."),
    ("the bed", "fit into", "the tent", Tense.PRESENT, Role.OBJECT, "too", "cramped", True,
     "Because it is too cramped, the bed doesn't fit into the tent.",
     "Weil es zu eng ist, passt das Bett nicht ins Zelt.",
     "Parce qu'elle est trop étroite, le lit ne tient pas dans la tente."),
]  # fmt: skip


@pytest.mark.parametrize("row", REASONS, ids=lambda row: row[8])
def test_reasons_in_three_languages(row):
    subject, verb, thing, tense, role, degree, adjective, first, *expected = row
    event = Event(phrase(subject), VERBS[verb], phrase(thing), tense, negative=True)
    reason = Because(event, role, Quality(degree, ADJECTIVES[adjective]), first)
    assert [written(language, reason) for language in (english, german, french)] == expected
