# SPDX-License-Identifier: Apache-2.0
"""Draw random meanings: statements, events, and twins of because-sentences.

Every choice uses `random.Random.random`, the only method whose sequence Python guarantees, so a
seed gives the same sentences in every version.
"""

import math
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import TypeVar

from experiments.data.grammars.pronouns.dictionary import (
    ADJECTIVES,
    NOUNS,
    VERBS,
    Adjective,
    Noun,
    Verb,
    compatible,
)
from experiments.data.grammars.pronouns.meaning import (
    Because,
    Event,
    Phrase,
    Quality,
    Role,
    Statement,
    Tense,
)
from experiments.data.grammars.pronouns.scenes import SCENES, SIGHTS, Frame, Scene, frames

T = TypeVar("T")

# Repeated entries have a higher probability.
_TENSES = (Tense.PAST,) * 4 + (Tense.PRESENT,) * 3 + (Tense.FUTURE,) * 2 + (Tense.PERFECT,) * 2
_STATEMENT_TENSES = (Tense.PAST,) * 2 + (Tense.PRESENT,) * 2 + (Tense.FUTURE,)
_DETERMINERS = ("the",) * 5 + ("this",) * 2 + ("a",) * 2

_ATTRIBUTE_IN_STATEMENT = 0.3
_ATTRIBUTE_IN_EVENT = 0.4
_ATTRIBUTE_IN_BECAUSE = 0.2
_PLURAL = 0.35
_NEGATIVE = 0.4
_SIGHT = 0.3
_CLAUSE_FIRST = 0.4

_ALL_NOUNS = tuple(NOUNS.values())


def pick(rng: Random, options: Sequence[T]) -> T:
    """Return one of the options, chosen uniformly."""
    return options[int(rng.random() * len(options))]


def shuffled(rng: Random, items: Sequence[T]) -> list[T]:
    """Return the items in a random order."""
    keys = [rng.random() for _ in items]
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]


class FramePool:
    """Frames to draw from: first a scene, then one of its frames.

    A scene's probability is proportional to the square root of its number of frames, a compromise
    between uniform over scenes and uniform over frames.
    """

    def __init__(self, chosen: Sequence[Frame]) -> None:
        """Group the frames by scene."""
        by_scene: dict[Scene, list[Frame]] = {}
        for frame in chosen:
            by_scene.setdefault(frame.scene, []).append(frame)
        self._groups = list(by_scene.values())
        self._weights = list(accumulate(math.sqrt(len(group)) for group in self._groups))

    def draw(self, rng: Random) -> Frame:
        """Return a random frame."""
        at = bisect(self._weights, rng.random() * self._weights[-1])
        return pick(rng, self._groups[min(at, len(self._groups) - 1)])


def all_frames() -> list[Frame]:
    """Return every frame of every scene, in the order of the table."""
    return [frame for scene in SCENES for frame in frames(scene)]


def _determiner(rng: Random, noun: Noun, plural: bool, *, definite: bool) -> str:
    determiner = pick(rng, _DETERMINERS)
    if determiner == "a" and (definite or plural or not noun.countable):
        return "the"
    return determiner


def _attribute(
    rng: Random, probability: float, names: Sequence[str], others: Sequence[str]
) -> Adjective | None:
    """Return an attribute that is compatible with all other adjectives, or none."""
    if rng.random() >= probability:
        return None
    fitting = [name for name in names if all(compatible(name, other) for other in others)]
    return ADJECTIVES[pick(rng, fitting)] if fitting else None


def draw_statement(rng: Random) -> Statement:
    """Return a statement about a random noun: "The small dogs aren't very tired."."""
    noun = pick(rng, _ALL_NOUNS)
    adjectives = (ADJECTIVES[name] for name in dict.fromkeys(noun.traits + noun.looks))
    quality = pick(rng, [adjective for adjective in adjectives if adjective.predicative])
    plural = noun.countable and rng.random() < _PLURAL
    determiner = _determiner(rng, noun, plural, definite=False)
    # A degree needs a definite subject: "a goat is too big" leaves open for what.
    degree = pick(rng, ("", "", *quality.degrees)) if determiner != "a" else ""
    attribute = _attribute(rng, _ATTRIBUTE_IN_STATEMENT, noun.looks, [quality.english])
    return Statement(
        Phrase(noun, plural, determiner, attribute),
        pick(rng, _STATEMENT_TENSES),
        rng.random() < _NEGATIVE,
        Quality(degree, quality),
    )


def _tense(rng: Random, verb: Verb) -> Tense:
    tense = pick(rng, _TENSES)
    return Tense.PAST if tense is Tense.PERFECT and verb.state else tense


def _event(
    rng: Random,
    verb: Verb,
    nouns: tuple[Noun, Noun],
    plurals: tuple[bool, bool],
    tense: Tense,
    negative: bool,
    attributes: tuple[Adjective | None, Adjective | None],
    *,
    definite: bool = False,
) -> Event:
    # A negated indefinite object would need "kein" and "pas de", which are left out.
    subject, thing = (
        Phrase(noun, plural, _determiner(rng, noun, plural, definite=only_definite), attribute)
        for noun, plural, only_definite, attribute in zip(
            nouns, plurals, (definite, definite or negative), attributes, strict=True
        )
    )
    return Event(subject, verb, thing, tense, negative)


def draw_event(rng: Random, pool: FramePool, *, sights: bool) -> Event:
    """Return an event without a reason: "A hungry cat hasn't seen the brown mouse.".

    Args:
      rng: random number generator.
      pool: the frames to draw from.
      sights: whether an animal may also see, watch or find something.
    """
    if sights and rng.random() < _SIGHT:
        verb, subjects, objects = pick(rng, SIGHTS)
        subject = pick(rng, subjects)
        nouns = (subject, pick(rng, [noun for noun in objects if noun is not subject]))
    else:
        frame = pool.draw(rng)
        verb, nouns = frame.scene.verb, (frame.subject, frame.object)
    plurals = tuple(noun.countable and rng.random() < _PLURAL for noun in nouns)
    # With "fit", a size may contradict the event ("a big sofa fits into a small car").
    negative = verb.state or rng.random() < _NEGATIVE
    attributes = tuple(
        _attribute(
            rng,
            _ATTRIBUTE_IN_EVENT,
            noun.looks if verb.state else noun.looks + noun.traits,
            ["big", "small"] if verb.state else [],
        )
        for noun in nouns
    )
    return _event(rng, verb, nouns, plurals, _tense(rng, verb), negative, attributes)


def draw_twins(
    rng: Random, pool: FramePool, plurals: tuple[bool, bool] = (False, False)
) -> tuple[Because, Because] | None:
    """Return one event with two reasons: a quality of its subject, and one of its object.

    Args:
      rng: random number generator.
      pool: the frames to draw from.
      plurals: whether the subject and the object are in the plural.

    Returns:
      The twins; None when a noun has no plural or the reasons do not allow the same degree. Draw
      again then.
    """
    frame = pool.draw(rng)
    nouns = (frame.subject, frame.object)
    if any(plural and not noun.countable for noun, plural in zip(nouns, plurals, strict=True)):
        return None
    reasons = (pick(rng, frame.subject_reasons), pick(rng, frame.object_reasons))
    degree = pick(rng, frame.scene.degrees)
    if degree and not all(degree in reason.degrees for reason in reasons):
        return None
    tense = _tense(rng, frame.scene.verb)
    if tense is Tense.PERFECT and not frame.scene.negative:
        # Food that has been eaten is no longer fresh: "has eaten" would need "was" in the reason.
        tense = Tense.PAST
    names = [reason.english for reason in reasons]
    attributes = tuple(_attribute(rng, _ATTRIBUTE_IN_BECAUSE, noun.looks, names) for noun in nouns)
    clause_first = rng.random() < _CLAUSE_FIRST
    event = _event(
        rng,
        frame.scene.verb,
        nouns,
        plurals,
        tense,
        frame.scene.negative,
        attributes,
        # A pronoun before its noun refers to something known, so the noun cannot have "a".
        definite=clause_first,
    )
    return (
        Because(event, Role.SUBJECT, Quality(degree, reasons[0]), clause_first),
        Because(event, Role.OBJECT, Quality(degree, reasons[1]), clause_first),
    )


def published_twins() -> tuple[Because, Because]:
    """Return "The animal didn't cross the street because it was too tired / wide."."""
    event = Event(
        Phrase(NOUNS["animal"], False, "the"),
        VERBS["cross"],
        Phrase(NOUNS["street"], False, "the"),
        Tense.PAST,
        negative=True,
    )
    return (
        Because(event, Role.SUBJECT, Quality("too", ADJECTIVES["tired"]), clause_first=False),
        Because(event, Role.OBJECT, Quality("too", ADJECTIVES["wide"]), clause_first=False),
    )
