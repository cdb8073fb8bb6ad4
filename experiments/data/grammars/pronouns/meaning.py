# SPDX-License-Identifier: Apache-2.0
"""Language-independent meanings, and the tokens that express them in a language.

The grammar draws a `Meaning`; `english`, `german` and `french` each turn it into `Token`s. A token
lists the slots of the meaning that it expresses. Two words of different languages are aligned if
they share a slot: "didn't" (tense, negation) is aligned with "nicht" (negation) and "überquerte"
(verb, tense), or with "n'", "a" and "pas".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import NamedTuple

from experiments.data.grammars.pronouns.dictionary import Adjective, Noun, Verb


class Tense(StrEnum):
    """An English tense; each target language has one equivalent."""

    PRESENT = "present"
    PAST = "past"
    FUTURE = "future"
    PERFECT = "perfect"


class Role(StrEnum):
    """The grammatical role of a noun phrase in the main clause; the prefix of its slots."""

    SUBJECT = "subject"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase: "the old dogs" is determiner "the", adjective old, noun dog, plural."""

    noun: Noun
    plural: bool
    determiner: str
    adjective: Adjective | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """A predicate: degree ("", "very", "so" or "too") and adjective."""

    degree: str
    adjective: Adjective


@dataclass(frozen=True, slots=True)
class Statement:
    """ "The old dog wasn't very tired." """

    subject: Phrase
    tense: Tense
    negative: bool
    quality: Quality


@dataclass(frozen=True, slots=True)
class Event:
    """ "The old dog didn't cross the street." """

    subject: Phrase
    verb: Verb
    object: Phrase
    tense: Tense
    negative: bool

    def phrase(self, role: Role) -> Phrase:
        """Return the noun phrase that has this role."""
        return self.subject if role is Role.SUBJECT else self.object


@dataclass(frozen=True, slots=True)
class Because:
    """An event and its reason: a quality of its subject or object, which is a pronoun."""

    event: Event
    antecedent: Role
    quality: Quality
    clause_first: bool

    @property
    def tense(self) -> Tense:
        """The tense of the because-clause: past after past, otherwise present."""
        return Tense.PAST if self.event.tense is Tense.PAST else Tense.PRESENT


Meaning = Statement | Event | Because


class Token(NamedTuple):
    """One word of a sentence, and the slots of the meaning that it expresses."""

    text: str
    slots: tuple[str, ...]


COMMA = Token(",", ("comma",))


def realize(meaning: Meaning, language: ModuleType) -> list[Token]:
    """Return the sentence in a language (`english`, ...), from the capital to the full stop."""
    match meaning:
        case Statement():
            tokens = language.realize_statement(meaning)
        case Event():
            tokens = language.realize_event(meaning)
        case Because():
            tokens = language.realize_because(meaning)
    first, *rest = tokens
    capitalized = first.text[0].upper() + first.text[1:]
    return [Token(capitalized, first.slots), *rest, Token(".", ("stop",))]


def position(tokens: Sequence[Token], slot: str) -> int:
    """Return the index of the first token that expresses `slot`, or -1 when none does."""
    return next((index for index, token in enumerate(tokens) if slot in token.slots), -1)


def alignment(source: Sequence[Token], target: Sequence[Token]) -> tuple[tuple[int, int], ...]:
    """Return every (source index, target index) whose tokens share a slot, in source order."""
    holders: dict[str, list[int]] = {}
    for index, token in enumerate(target):
        for slot in token.slots:
            holders.setdefault(slot, []).append(index)
    return tuple(
        (i, j)
        for i, token in enumerate(source)
        for j in sorted({j for slot in token.slots for j in holders.get(slot, ())})
    )
