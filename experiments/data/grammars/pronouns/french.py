# SPDX-License-Identifier: Apache-2.0
"""Realization of meanings as French sentences: gender, agreement, elision, and "ne ... pas"."""

from functools import cache

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

# Singular determiners: (name, gender) -> form; "le", "la" and "ce" change before a vowel sound.
_DETERMINERS = {
    ("the", "m"): "le",
    ("the", "f"): "la",
    ("a", "m"): "un",
    ("a", "f"): "une",
    ("this", "m"): "ce",
    ("this", "f"): "cette",
}
_BEFORE_VOWEL = {"le": "l'", "la": "l'", "ce": "cet"}
_PLURAL_DETERMINERS = {"the": "les", "this": "ces"}
_PRONOUNS = {("m", False): "il", ("f", False): "elle", ("m", True): "ils", ("f", True): "elles"}
_DEGREES = {"very": "très", "so": "si", "too": "trop"}
_BE = {
    (Tense.PRESENT, False): "est",
    (Tense.PRESENT, True): "sont",
    (Tense.PAST, False): "était",
    (Tense.PAST, True): "étaient",
    (Tense.FUTURE, False): "sera",
    (Tense.FUTURE, True): "seront",
}
# No verb form here begins with an h, so its first letter decides whether "ne" elides.
_VOWELS = "aeéèêiouœ"


def agreeing(adjective: Adjective, phrase: Phrase, *, before_vowel: bool = False) -> str:
    """Return the form of the adjective that agrees with the noun of `phrase`.

    Args:
      adjective: the adjective.
      phrase: the phrase that it modifies, as attribute or predicate.
      before_vowel: whether a vowel sound follows ("un vieil âne").
    """
    if phrase.noun.french_gender == "f":
        return adjective.french_feminine + ("s" if phrase.plural else "")
    form = adjective.french_masculine
    if not phrase.plural:
        return adjective.french_before_vowel if before_vowel else form
    if form.endswith(("s", "x")):
        return form
    return form + ("x" if form.endswith("eau") else "s")


@cache
def noun_phrase(phrase: Phrase, role: Role) -> tuple[Token, ...]:
    """Return "les vieux chiens" as tokens whose slots carry the role."""
    noun = phrase.noun
    described = [Token(noun.french_plural if phrase.plural else noun.french, (f"{role}.noun",))]
    elides = noun.elides
    if phrase.adjective:
        precedes = phrase.adjective.precedes
        form = agreeing(phrase.adjective, phrase, before_vowel=precedes and elides)
        described.insert(0 if precedes else 1, Token(form, (f"{role}.adjective",)))
        # No adjective that precedes its noun begins with a vowel sound ("haut" is aspirated).
        elides = elides and not precedes
    if phrase.plural:
        determiner = _PLURAL_DETERMINERS[phrase.determiner]
    else:
        determiner = _DETERMINERS[phrase.determiner, noun.french_gender]
        if elides:
            determiner = _BEFORE_VOWEL.get(determiner, determiner)
    return (Token(determiner, (f"{role}.determiner",)), *described)


def pronoun(noun: Noun, plural: bool) -> str:
    """Return the subject pronoun of the noun."""
    return _PRONOUNS[noun.french_gender, plural]


def quality(predicate: Quality, phrase: Phrase) -> list[Token]:
    """Return "trop fatiguée" as tokens, agreeing with `phrase`."""
    degree = [Token(_DEGREES[predicate.degree], ("degree",))] if predicate.degree else []
    return [*degree, Token(agreeing(predicate.adjective, phrase), ("quality",))]


def _negated(finite: Token, negative: bool) -> list[Token]:
    """Put "ne" and "pas" around the finite verb of a negative clause."""
    if not negative:
        return [finite]
    ne = "n'" if finite.text[0] in _VOWELS else "ne"
    return [Token(ne, ("negation",)), finite, Token("pas", ("negation",))]


def _verb(event: Event) -> list[Token]:
    verb, tense, plural = event.verb, event.tense, event.subject.plural
    if tense is Tense.PAST and verb.state:
        imperfect = verb.french_imperfect_plural if plural else verb.french_imperfect
        finite = Token(imperfect, ("tense", "verb"))
    elif tense in (Tense.PAST, Tense.PERFECT):
        have = Token("ont" if plural else "a", ("tense",))
        # With "avoir", the participle agrees only with a preceding object, which never occurs here.
        return [*_negated(have, event.negative), Token(verb.french_participle, ("verb",))]
    elif tense is Tense.FUTURE:
        future = verb.french_future_plural if plural else verb.french_future
        finite = Token(future, ("tense", "verb"))
    else:
        present = verb.french_plural if plural else verb.french
        finite = Token(present, ("tense", "verb"))
    return _negated(finite, event.negative)


def realize_event(event: Event) -> list[Token]:
    """Return the main clause as tokens."""
    preposition = event.verb.french_preposition
    return [
        *noun_phrase(event.subject, Role.SUBJECT),
        *_verb(event),
        *([Token(preposition, ("preposition",))] if preposition else []),
        *noun_phrase(event.object, Role.OBJECT),
    ]


def _be(tense: Tense, plural: bool) -> Token:
    slots = ("tense", "be") if tense is Tense.FUTURE else ("be",)
    return Token(_BE[tense, plural], slots)


def realize_statement(statement: Statement) -> list[Token]:
    """Return "The old dog is tired" as tokens."""
    subject = statement.subject
    return [
        *noun_phrase(subject, Role.SUBJECT),
        *_negated(_be(statement.tense, subject.plural), statement.negative),
        *quality(statement.quality, subject),
    ]


def realize_because(sentence: Because) -> list[Token]:
    """Return an event and its reason as tokens, in either order."""
    antecedent = sentence.event.phrase(sentence.antecedent)
    clause = [
        Token("parce", ("because",)),
        Token("qu'", ("because",)),  # Every third-person pronoun begins with a vowel.
        Token(pronoun(antecedent.noun, antecedent.plural), ("pronoun",)),
        _be(sentence.tense, antecedent.plural),
        *quality(sentence.quality, antecedent),
    ]
    event = realize_event(sentence.event)
    return [*clause, COMMA, *event] if sentence.clause_first else [*event, *clause]
