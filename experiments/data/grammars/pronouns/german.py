# SPDX-License-Identifier: Apache-2.0
"""Realization of meanings as German sentences: gender, case, verb-second and verb-final order."""

from functools import cache
from typing import Literal

from experiments.data.grammars.pronouns.dictionary import Adjective, Noun
from experiments.data.grammars.pronouns.meaning import (
    COMMA,
    Because,
    Event,
    Phrase,
    Quality,
    Role,
    Statement,
    Tense,
    Token,
)

Case = Literal["nominative", "accusative", "dative"]

# Columns: masculine, feminine, neuter, plural ("a" has no plural).
_COLUMNS = ("m", "f", "n", "plural")
_DETERMINERS = {
    ("the", "nominative"): ("der", "die", "das", "die"),
    ("the", "accusative"): ("den", "die", "das", "die"),
    ("the", "dative"): ("dem", "der", "dem", "den"),
    ("this", "nominative"): ("dieser", "diese", "dieses", "diese"),
    ("this", "accusative"): ("diesen", "diese", "dieses", "diese"),
    ("this", "dative"): ("diesem", "dieser", "diesem", "diesen"),
    ("a", "nominative"): ("ein", "eine", "ein"),
    ("a", "accusative"): ("einen", "eine", "ein"),
    ("a", "dative"): ("einem", "einer", "einem"),
}
# Adjective endings: weak after "der" and "dieser", mixed after "ein".
_WEAK = {
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en", "en", "en", "en"),
}
_MIXED = {
    "nominative": ("er", "e", "es"),
    "accusative": ("en", "e", "es"),
    "dative": ("en", "en", "en"),
}
_CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins"}
_PRONOUNS = {"m": "er", "f": "sie", "n": "es"}
_DEGREES = {"very": "sehr", "so": "so", "too": "zu"}
_BE = {
    (Tense.PRESENT, False): "ist",
    (Tense.PRESENT, True): "sind",
    (Tense.PAST, False): "war",
    (Tense.PAST, True): "waren",
}


def _column(phrase: Phrase) -> int:
    return _COLUMNS.index("plural" if phrase.plural else phrase.noun.german_gender)


def _noun(phrase: Phrase, case: Case) -> str:
    noun = phrase.noun
    if not phrase.plural:
        return noun.german if case == "nominative" else noun.german_oblique
    if case == "dative" and not noun.german_plural.endswith(("n", "s")):
        return f"{noun.german_plural}n"
    return noun.german_plural


def attribute(adjective: Adjective, phrase: Phrase, case: Case) -> str:
    """Return the adjective inflected as attribute of the noun of `phrase`."""
    endings = _MIXED if phrase.determiner == "a" else _WEAK
    return adjective.german_stem + endings[case][_column(phrase)]


@cache
def noun_phrase(phrase: Phrase, case: Case, role: Role) -> tuple[Token, ...]:
    """Return "den alten Hund" as tokens whose slots carry the role."""
    determiner = _DETERMINERS[phrase.determiner, case][_column(phrase)]
    tokens = [Token(determiner, (f"{role}.determiner",))]
    if phrase.adjective:
        attributive = attribute(phrase.adjective, phrase, case)
        tokens.append(Token(attributive, (f"{role}.adjective",)))
    return (*tokens, Token(_noun(phrase, case), (f"{role}.noun",)))


def prepositional(preposition: str, phrase: tuple[Token, ...]) -> list[Token]:
    """Return "aus dem Eimer", or the contraction "im": one token with two slots."""
    determiner, *rest = phrase
    contraction = _CONTRACTIONS.get((preposition, determiner.text))
    if contraction:
        return [Token(contraction, ("preposition", *determiner.slots)), *rest]
    return [Token(preposition, ("preposition",)), *phrase]


def pronoun(noun: Noun, plural: bool) -> str:
    """Return the nominative pronoun of the noun."""
    return "sie" if plural else _PRONOUNS[noun.german_gender]


def quality(predicate: Quality) -> list[Token]:
    """Return "zu müde" as tokens."""
    degree = [Token(_DEGREES[predicate.degree], ("degree",))] if predicate.degree else []
    return [*degree, Token(predicate.adjective.german, ("quality",))]


def _verb(event: Event) -> tuple[Token, list[Token]]:
    """Return the finite verb and the verb tokens at the end of the clause."""
    verb, plural = event.verb, event.subject.plural
    if event.tense is Tense.FUTURE:
        will = Token("werden" if plural else "wird", ("tense",))
        return will, [Token(verb.german, ("verb",))]
    if event.tense is Tense.PERFECT:
        have = Token("haben" if plural else "hat", ("tense",))
        return have, [Token(verb.german_participle, ("verb",))]
    if event.tense is Tense.PAST:
        finite = verb.german_past_plural if plural else verb.german_past
    else:
        finite = verb.german if plural else verb.german_present
    return Token(finite, ("tense", "verb")), []


def realize_event(event: Event, *, verb_first: bool = False) -> list[Token]:
    """Return the main clause; the verb comes first after a preceding clause."""
    finite, last = _verb(event)
    subject = noun_phrase(event.subject, "nominative", Role.SUBJECT)
    described = noun_phrase(event.object, event.verb.german_case, Role.OBJECT)
    negation = [Token("nicht", ("negation",))] if event.negative else []
    # "nicht" follows a definite object but precedes a prepositional phrase.
    if preposition := event.verb.german_preposition:
        middle = [*negation, *prepositional(preposition, described)]
    else:
        middle = [*described, *negation]
    opening = [finite, *subject] if verb_first else [*subject, finite]
    return [*opening, *middle, *last]


def realize_statement(statement: Statement) -> list[Token]:
    """Return "The old dog is tired" as tokens."""
    subject = noun_phrase(statement.subject, "nominative", Role.SUBJECT)
    negation = [Token("nicht", ("negation",))] if statement.negative else []
    predicate = [*negation, *quality(statement.quality)]
    plural = statement.subject.plural
    if statement.tense is Tense.FUTURE:
        will = Token("werden" if plural else "wird", ("tense",))
        return [*subject, will, *predicate, Token("sein", ("be",))]
    return [*subject, Token(_BE[statement.tense, plural], ("be",)), *predicate]


def realize_because(sentence: Because) -> list[Token]:
    """Return an event and its reason as tokens, in either order."""
    antecedent = sentence.event.phrase(sentence.antecedent)
    clause = [
        Token("weil", ("because",)),
        Token(pronoun(antecedent.noun, antecedent.plural), ("pronoun",)),
        *quality(sentence.quality),
        Token(_BE[sentence.tense, antecedent.plural], ("be",)),
    ]
    event = realize_event(sentence.event, verb_first=sentence.clause_first)
    return [*clause, COMMA, *event] if sentence.clause_first else [*event, COMMA, *clause]
