# SPDX-License-Identifier: Apache-2.0
"""The corpus: sentences in both languages with what is known of them, in four splits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from types import MappingProxyType
from typing import Literal

from experiments.datasets.pronouns import english, french, german
from experiments.datasets.pronouns.grammar import (
    FramePool,
    all_frames,
    draw_event,
    draw_statement,
    draw_twins,
    published_twins,
    shuffled,
)
from experiments.datasets.pronouns.meaning import (
    Because,
    Event,
    Meaning,
    Role,
    Statement,
    alignment,
    position,
)
from experiments.datasets.pronouns.scenes import Frame
from experiments.datasets.pronouns.words import join

Language = Literal["de", "fr"]

_TARGETS = MappingProxyType({"de": german, "fr": french})
LANGUAGES = tuple(_TARGETS)
SPLITS = ("train", "validation", "test", "test_unseen")

_SEED = 20170612
_UNSEEN_SHARE = 0.12
# No noun loses more than this share of its partners to `test_unseen`.
_UNSEEN_SHARE_PER_NOUN = 0.2


@dataclass(frozen=True, slots=True)
class Quota:
    """How many sentences of each kind a split has; the last two come in twins."""

    statements: int
    events: int
    resolutions: int
    others: int


_QUOTAS: Mapping[str, Quota] = MappingProxyType(
    {
        "train": Quota(statements=6_000, events=9_000, resolutions=25_000, others=6_000),
        "validation": Quota(statements=80, events=140, resolutions=660, others=120),
        "test": Quota(statements=160, events=280, resolutions=1_320, others=240),
        "test_unseen": Quota(statements=0, events=360, resolutions=1_400, others=240),
    }
)
# The numbers of subject and object in because-sentences that are no resolution sentences.
_OTHER_NUMBERS = ((False, False), (True, True), (True, False), (False, True))


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence pair. Indices count the words of `words.words`; -1 means there is none.

    Attributes:
      source, target: the English sentence and its only translation.
      shape: "statement", "event", "because" or "because_first".
      pronoun: index of "it" or "they" in the source.
      antecedent: index of the noun it refers to, in the source.
      distractor: index of the other noun.
      target_pronoun: index of the pronoun in the target.
      resolution: 1 for "it" between two nouns in the singular whose pronouns differ in the target
        language, so that only the meaning tells which pronoun is right; 0 for all others.
      subject_pronoun: the pronoun of the main clause's subject in the target language, "" where
        the source has no pronoun.
      twin: a number that two sentences share which differ in the reason alone, and whose pronouns
        refer to the one noun and to the other.
      alignment: (source index, target index) of every aligned pair of words.
    """

    source: str
    target: str
    shape: str
    pronoun: int
    antecedent: int
    distractor: int
    target_pronoun: int
    resolution: int
    subject_pronoun: str
    twin: int
    alignment: tuple[tuple[int, int], ...]


def _shape(meaning: Meaning) -> str:
    match meaning:
        case Statement():
            return "statement"
        case Event():
            return "event"
        case Because():
            return "because_first" if meaning.clause_first else "because"


def resolving(event: Event, language: Language) -> bool:
    """Return whether "it" in a reason for the event takes meaning to translate."""
    pronoun = _TARGETS[language].pronoun
    singular = not (event.subject.plural or event.object.plural)
    return singular and pronoun(event.subject) != pronoun(event.object)


def example(meaning: Meaning, language: Language, twin: int = -1) -> Example:
    """Return the sentence pair of a meaning with all that is known of it."""
    target_language = _TARGETS[language]
    source, target = english.sentence(meaning), target_language.sentence(meaning)
    antecedent = distractor = -1
    resolution, subject_pronoun = 0, ""
    if isinstance(meaning, Because):
        subject, thing = (position(source, f"{role}.noun") for role in Role)
        of_subject = meaning.antecedent is Role.SUBJECT
        antecedent, distractor = (subject, thing) if of_subject else (thing, subject)
        resolution = int(resolving(meaning.event, language))
        subject_pronoun = target_language.pronoun(meaning.event.subject)
    return Example(
        source=join(token.text for token in source),
        target=join(token.text for token in target),
        shape=_shape(meaning),
        pronoun=position(source, "pronoun"),
        antecedent=antecedent,
        distractor=distractor,
        target_pronoun=position(target, "pronoun"),
        resolution=resolution,
        subject_pronoun=subject_pronoun,
        twin=twin,
        alignment=alignment(source, target),
    )


@lru_cache(maxsize=1)
def unseen_pairs() -> frozenset[frozenset[str]]:
    """Return the pairs of lemmas that are kept for `test_unseen`, in both languages the same."""
    pairs = list(dict.fromkeys(frame.pair for frame in all_frames()))
    published = published_twins()[0].event
    kept_back = {published.subject.noun.singular, published.object.noun.singular}
    partners = Counter(lemma for pair in pairs for lemma in pair)
    lost: Counter[str] = Counter()
    unseen: list[frozenset[str]] = []
    for pair in shuffled(Random(_SEED), pairs):
        if len(unseen) >= _UNSEEN_SHARE * len(pairs):
            break
        spared = any(lost[noun] + 1 > _UNSEEN_SHARE_PER_NOUN * partners[noun] for noun in pair)
        if pair != kept_back and not spared:
            unseen.append(pair)
            lost.update(pair)
    return frozenset(unseen)


class _Drawer:
    """Draws examples of one language that no split has yet."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._rng = Random(f"{_SEED} {language}")
        self._taken: set[str] = set()
        self._twins = 0

    def _differs(self, frame: Frame) -> bool:
        genders = [
            noun.german.gender if self._language == "de" else noun.french.gender
            for noun in (frame.subject, frame.object)
        ]
        return genders[0] != genders[1]
