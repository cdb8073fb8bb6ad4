# SPDX-License-Identifier: Apache-2.0
"""The scenes from which sentences are drawn: verb, subjects, objects and reasons.

A scene has two lists of reasons. In "The animal didn't cross the street because it was too ...",
"tired" is a reason only of the animal and "wide" only of the street, so the adjective alone
determines the antecedent of "it". In most scenes the other noun cannot even have the quality. In
those of `RELATIONAL_VERBS` it can, but then it is no reason: a sofa that does not fit into a car is
too big for it, or the car is too small.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from experiments.corpora.pronouns.dictionary import ADJECTIVES, NOUNS, VERBS, Adjective, Noun, Verb

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


def _scene(
    subjects: str, verb: str, objects: str, subject_reasons: str, object_reasons: str, *, too: bool
) -> Scene:
    return Scene(
        VERBS[verb.removeprefix("not ")],
        _nouns(subjects),
        _nouns(objects),
        verb.startswith("not "),
        _DEGREES[too],
        tuple(subject_reasons.split()),
        tuple(object_reasons.split()),
    )


_SPENT = "tired exhausted weak ill injured lazy"
_AFRAID = "nervous frightened cautious"
_RESTLESS = "hungry thirsty curious nervous frightened"

# Subjects, verb, objects, reasons in the subject, reasons in the object; nouns by group or lemma.
# fmt: off
SCENES = (
    # Getting across, up, and away.
    _scene("animal", "not cross", "way", f"{_SPENT} {_AFRAID} slow",
           "wide steep slippery muddy deep long high flooded", too=True),
    _scene("animal", "cross", "street river", "hungry thirsty curious", "narrow", too=False),
    _scene("motor drawn", "not cross", "bridge", "heavy overloaded", "narrow slippery", too=True),
    _scene("motor cart carriage", "not cross", "land", "heavy overloaded",
           "muddy slippery flooded", too=True),
    _scene("motor cart carriage", "not use", "road", "heavy overloaded",
           "narrow steep muddy slippery flooded", too=True),
    _scene("motor cart carriage", "block", "road", "big", "narrow", too=True),
    _scene("ship", "not cross", "lake sea river", "slow small damaged overloaded", "rough wide",
           too=True),
    _scene("animal", "not climb", "slope", f"{_SPENT} {_AFRAID}", "steep high slippery muddy",
           too=True),
    _scene("climber", "not climb", "steep_thing", f"{_SPENT} {_AFRAID}",
           "steep high slippery smooth", too=True),
    _scene("animal", "avoid", "bridge river lake sea bog path cave stable hut garden forest",
           f"{_AFRAID} ill weak",
           "narrow cramped slippery steep muddy deep rough long high damp flooded", too=True),
    _scene("animal", "leave", "shelter place", _RESTLESS, "damp narrow cramped empty flooded",
           too=True),
    _scene("pet", "leave", "house room", _RESTLESS, "damp cramped empty flooded", too=True),
    _scene("pet", "leave", "ship", _RESTLESS, "damaged overloaded", too=False),
    _scene("animal", "not leave", "shelter", _SPENT, "comfortable", too=False),
    _scene("pet", "not leave", "house room bed basket", _SPENT, "comfortable", too=False),
    # Eating, drinking, sleeping.
    _scene("omnivore", "not eat", "food", f"{_SPENT} nervous frightened",
           "hard sour bitter salty dry fatty", too=True),
    _scene("grazer", "not eat", "fruit bread", f"{_SPENT} nervous frightened",
           "hard sour bitter dry", too=True),
    _scene("hunter", "not eat", "prey_food", f"{_SPENT} nervous frightened",
           "hard salty dry fatty", too=True),
    _scene("omnivore", "eat", "food", "hungry curious", "sweet ripe fresh", too=False),
    _scene("grazer", "eat", "fruit bread", "hungry curious", "sweet ripe fresh", too=False),
    _scene("hunter", "eat", "prey_food", "hungry curious", "fresh", too=False),
    _scene("animal", "not drink", "drink", f"{_SPENT} nervous frightened",
           "fatty sour bitter salty dirty", too=True),
    _scene("animal", "drink", "drink", "thirsty exhausted", "fresh sweet", too=False),
    _scene("animal", "not drink from", "vessel", f"{_AFRAID} ill weak", "dirty deep high",
           too=True),
    _scene("animal", "not drink from", "river lake", f"{_AFRAID} ill weak", "muddy", too=True),
    _scene("animal", "not sleep in", "shelter", _RESTLESS, "damp cramped", too=True),
    _scene("pet", "not sleep in", "bed", _RESTLESS, "hard narrow", too=True),
    _scene("pet", "not sleep on", "sofa chair carpet", _RESTLESS, "hard narrow damp", too=True),
    _scene("pet", "sleep in", "bed basket house room", "tired exhausted ill injured lazy",
           "comfortable", too=False),
    _scene("pet", "sleep on", "sofa chair", "tired exhausted ill injured lazy", "comfortable",
           too=False),
    _scene("animal", "sleep in", "shelter", "tired exhausted ill injured lazy", "comfortable",
           too=False),
    # Moving things.
    _scene("draught", "not pull", "drawn", f"{_SPENT} stubborn", "heavy full overloaded", too=True),
    _scene("tractor", "not pull", "drawn", "weak", "full overloaded", too=True),
    _scene("pusher", "not push", "lockable barrel table chair bed sofa piano",
           _SPENT, "heavy full", too=True),
    _scene("carrier", "not carry", "load table chair lamp carpet", f"{_SPENT} stubborn",
           "heavy full", too=True),
    _scene("transporter", "not transport", "table bed sofa piano carpet", "small full overloaded",
           "heavy big", too=True),
    _scene("opener", "not open", "lockable", f"{_SPENT} {_AFRAID}", "heavy locked", too=True),
    _scene("table chair bed sofa piano carpet", "not fit into",
           "car truck cart house room barn hut tent", "big", "small full cramped", too=True),
    _scene("ball lamp", "not fit into", "container", "big", "small full", too=True),
    # Hunting.
    _scene("wolf dog", "not catch", "cat hare rabbit goat pig hen goose monkey",
           "slow tired weak lazy exhausted", "fast agile", too=True),
    _scene("fox", "not catch", "hare rabbit hen goose mouse", "slow tired weak lazy exhausted",
           "fast agile", too=True),
    _scene("cat weasel", "not catch", "mouse frog rabbit hen", "slow tired weak lazy exhausted",
           "fast agile", too=True),
    _scene("lion panther", "not catch", "goat pig horse donkey monkey hare",
           "slow tired weak lazy exhausted", "fast agile", too=True),
    _scene("wolf dog fox", "not chase", "cat hare rabbit goat hen goose", _SPENT, "fast agile",
           too=True),
    _scene("cat weasel", "not chase", "mouse frog rabbit hen", _SPENT, "fast agile", too=True),
    _scene("lion panther", "not chase", "goat pig horse donkey monkey hare", _SPENT, "fast agile",
           too=True),
)

# Perception by animals, in events only: no adjective would determine the antecedent.
SIGHTS = tuple(
    (VERBS[verb], _nouns("animal"), _nouns(objects))
    for verb, objects in (
        ("see", "animal way slope building place vehicle ship sea"),
        ("watch", "animal vehicle ship"),
        ("find", "food drink container furniture small_thing cave path stable"),
    )
)
# fmt: on


def _reasons(names: Sequence[str], noun: Noun) -> tuple[Adjective, ...]:
    return tuple(ADJECTIVES[name] for name in names if name in noun.traits)


@cache
def frames(scene: Scene) -> tuple[Frame, ...]:
    """Return the frames of a scene: two different nouns, each with at least one reason."""
    chosen = []
    for subject in scene.subjects:
        for thing in scene.objects:
            subject_reasons = _reasons(scene.subject_reasons, subject)
            object_reasons = _reasons(scene.object_reasons, thing)
            if subject is not thing and subject_reasons and object_reasons:
                chosen.append(Frame(scene, subject, thing, subject_reasons, object_reasons))
    return tuple(chosen)
