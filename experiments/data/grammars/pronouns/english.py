# SPDX-License-Identifier: Apache-2.0
"""Realization of meanings as English sentences."""

from functools import cache

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

# Negated auxiliary: (tense, plural) -> word. "do" occurs only in negation.
_NOT = {
    (Tense.PRESENT, False): "doesn't",
    (Tense.PRESENT, True): "don't",
    (Tense.PAST, False): "didn't",
    (Tense.PAST, True): "didn't",
    (Tense.PERFECT, False): "hasn't",
    (Tense.PERFECT, True): "haven't",
    (Tense.FUTURE, False): "won't",
    (Tense.FUTURE, True): "won't",
}
_BE = {
    (Tense.PRESENT, False): "is",
    (Tense.PRESENT, True): "are",
    (Tense.PAST, False): "was",
    (Tense.PAST, True): "were",
}
_BE_NOT = {key: f"{form}n't" for key, form in _BE.items()}
_PLURAL_DETERMINERS = {"the": "the", "this": "these"}


def _determiner(name: str, plural: bool, following: str) -> str:
    if name == "a":
        return "an" if following[0] in "aeiou" else "a"
    return _PLURAL_DETERMINERS[name] if plural else name


@cache
def noun_phrase(phrase: Phrase, role: Role) -> tuple[Token, ...]:
    """Return "the old dogs" as tokens whose slots carry the role."""
    noun = phrase.noun.plural if phrase.plural else phrase.noun.singular
    described = [Token(noun, (f"{role}.noun",))]
    if phrase.adjective:
        described.insert(0, Token(phrase.adjective.english, (f"{role}.adjective",)))
    determiner = _determiner(phrase.determiner, phrase.plural, described[0].text)
    return (Token(determiner, (f"{role}.determiner",)), *described)


def quality(predicate: Quality) -> list[Token]:
    """Return "too tired" as tokens."""
    degree = [Token(predicate.degree, ("degree",))] if predicate.degree else []
    return [*degree, Token(predicate.adjective.english, ("quality",))]


def _verb(event: Event) -> list[Token]:
    verb, tense, plural = event.verb, event.tense, event.subject.plural
    if event.negative:
        full = verb.english_participle if tense is Tense.PERFECT else verb.english
        return [Token(_NOT[tense, plural], ("tense", "negation")), Token(full, ("verb",))]
    if tense is Tense.FUTURE:
        return [Token("will", ("tense",)), Token(verb.english, ("verb",))]
    if tense is Tense.PERFECT:
        have = "have" if plural else "has"
        return [Token(have, ("tense",)), Token(verb.english_participle, ("verb",))]
    if tense is Tense.PAST:
        return [Token(verb.english_past, ("tense", "verb"))]
    return [Token(verb.english if plural else verb.english_third, ("tense", "verb"))]


def realize_event(event: Event) -> list[Token]:
    """Return the main clause as tokens."""
    preposition = event.verb.english_preposition
    return [
        *noun_phrase(event.subject, Role.SUBJECT),
        *_verb(event),
        *([Token(preposition, ("preposition",))] if preposition else []),
        *noun_phrase(event.object, Role.OBJECT),
    ]


def _be(tense: Tense, plural: bool, negative: bool) -> list[Token]:
    if tense is Tense.FUTURE:
        will = Token("won't", ("tense", "negation")) if negative else Token("will", ("tense",))
        return [will, Token("be", ("be",))]
    if negative:
        return [Token(_BE_NOT[tense, plural], ("be", "negation"))]
    return [Token(_BE[tense, plural], ("be",))]


def realize_statement(statement: Statement) -> list[Token]:
    """Return "The old dog is tired" as tokens."""
    return [
        *noun_phrase(statement.subject, Role.SUBJECT),
        *_be(statement.tense, statement.subject.plural, statement.negative),
        *quality(statement.quality),
    ]


def realize_because(sentence: Because) -> list[Token]:
    """Return an event and its reason as tokens, in either order."""
    antecedent = sentence.event.phrase(sentence.antecedent)
    clause = [
        Token("because", ("because",)),
        Token("they" if antecedent.plural else "it", ("pronoun",)),
        *_be(sentence.tense, antecedent.plural, negative=False),
        *quality(sentence.quality),
    ]
    event = realize_event(sentence.event)
    return [*clause, COMMA, *event] if sentence.clause_first else [*event, *clause]
