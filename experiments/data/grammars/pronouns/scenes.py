# SPDX-License-Identifier: Apache-2.0
"""The scenes of ``scenes.tsv``, from which sentences are drawn: verb, subjects, objects, reasons.

A scene has two lists of reasons. In "The animal didn't cross the street because it was too ...",
"tired" is a reason only of the animal and "wide" only of the street, so the adjective alone
determines the antecedent of "it". In most scenes the other noun cannot even have the quality. In
those of `RELATIONAL_VERBS` it can, but then it is no reason: a sofa that does not fit into a car is
too big for it, or the car is too small.
"""

from dataclasses import dataclass
from functools import cache

from experiments.data.grammars.pronouns.dictionary import (
    ADJECTIVES,
    NOUNS,
    VERBS,
    Adjective,
    Noun,
    Verb,
    rows,
)

RELATIONAL_VERBS = frozenset({"fit into", "transport", "block", "catch", "chase"})

# Degrees of a reason. Only an excess prevents an event ("too tired to cross").
_DEGREES = {True: ("too", "too", "so", "very", ""), False: ("so", "very", "")}


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A verb with its possible subjects, objects and reasons.

    Attributes:
      verb: the verb.
      subjects, objects: the nouns, in the order of the lexicon.
      negative: whether the event does not take place.
      degrees: degrees of a reason; more frequent ones occur more than once.
      subject_reasons, object_reasons: English names of the adjectives of the subject or the object
        that explain the event.
    """

    verb: Verb
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]
    negative: bool
    degrees: tuple[str, ...]
    subject_reasons: tuple[str, ...]
    object_reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A scene with chosen nouns, and the reasons that these nouns allow."""

    scene: Scene
    subject: Noun
    object: Noun
    subject_reasons: tuple[Adjective, ...]
    object_reasons: tuple[Adjective, ...]

    @property
    def pair(self) -> frozenset[str]:
        """The two lemmas, unordered."""
        return frozenset((self.subject.singular, self.object.singular))


def _nouns(names: str) -> tuple[Noun, ...]:
    wanted = set(names.split())
    nouns = tuple(noun for noun in NOUNS.values() if noun.groups & wanted)
    unknown = wanted.difference(*(noun.groups for noun in nouns))
    assert not unknown, f"no noun or group of nouns.tsv is called {sorted(unknown)}"
    return nouns


def _scene(row: dict[str, str]) -> Scene:
    return Scene(
        VERBS[row["verb"].removeprefix("not ")],
        _nouns(row["subjects"]),
        _nouns(row["objects"]),
        row["verb"].startswith("not "),
        _DEGREES[bool(row["too"])],
        tuple(row["subject_reasons"].split()),
        tuple(row["object_reasons"].split()),
    )


SCENES = tuple(map(_scene, rows("scenes.tsv")))

# Perception by animals, in events only: no adjective would determine the antecedent.
SIGHTS = tuple(
    (VERBS[verb], _nouns("animal"), _nouns(objects))
    for verb, objects in (
        ("see", "animal way slope building place vehicle ship sea"),
        ("watch", "animal vehicle ship"),
        ("find", "food drink container furniture small_thing cave path stable"),
    )
)


@cache
def frames(scene: Scene) -> tuple[Frame, ...]:
    """Return the frames of a scene: two different nouns, each with at least one reason."""
    chosen = []
    for subject in scene.subjects:
        for thing in scene.objects:
            sides = ((subject, scene.subject_reasons), (thing, scene.object_reasons))
            reasons = [
                tuple(ADJECTIVES[name] for name in names if name in noun.traits)
                for noun, names in sides
            ]
            if subject is not thing and all(reasons):
                chosen.append(Frame(scene, subject, thing, *reasons))
    return tuple(chosen)
