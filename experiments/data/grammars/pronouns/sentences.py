# SPDX-License-Identifier: Apache-2.0
"""The four splits of the corpus: sentence pairs with antecedents, twins and word alignment."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Literal, NamedTuple

from experiments.data.grammars.pronouns import english, french, german
from experiments.data.grammars.pronouns.dictionary import Noun
from experiments.data.grammars.pronouns.grammar import (
    FramePool,
    all_frames,
    draw_event,
    draw_statement,
    draw_twins,
    pick,
    published_twins,
    shuffled,
)
from experiments.data.grammars.pronouns.meaning import (
    Because,
    Event,
    Meaning,
    Role,
    Statement,
    alignment,
    position,
    realize,
)
from experiments.data.grammars.pronouns.scenes import Frame
from experiments.data.grammars.pronouns.word_forms import join

Language = Literal["de", "fr"]

_TARGETS = {"de": german, "fr": french}
LANGUAGES = tuple(_TARGETS)
SPLITS = ("train", "validation", "test", "test_unseen")

_SEED = 20170612
_UNSEEN_SHARE = 0.12
# Maximum number of draws per requested sentence.
_PATIENCE = 50
# No noun loses more than this share of its partners to `test_unseen`.
_UNSEEN_SHARE_PER_NOUN = 0.2


class Quota(NamedTuple):
    """Number of sentences of each kind in a split; the last two kinds come in twins."""

    statements: int
    events: int
    resolutions: int
    others: int


_QUOTAS = {
    "train": Quota(statements=6_000, events=9_000, resolutions=25_000, others=6_000),
    "validation": Quota(statements=80, events=140, resolutions=660, others=120),
    "test": Quota(statements=160, events=280, resolutions=1_318, others=240),
    "test_unseen": Quota(statements=0, events=360, resolutions=1_400, others=240),
}
# Whether subject and object are plural, in because-sentences that are no resolution sentences.
_OTHER_NUMBERS = ((False, False), (True, True), (True, False), (False, True))


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence pair. Indices count the words of `word_forms.words`; -1 means there is none.

    Attributes:
      source, target: the English sentence and its only translation.
      shape: "statement", "event", "because" or "because_first".
      pronoun: index of "it" or "they" in the source.
      antecedent: index of the noun it refers to, in the source.
      distractor: index of the other noun.
      target_pronoun: index of the pronoun in the target.
      resolution: 1 if "it" may refer to two singular nouns whose pronouns differ in the target
        language, so only the meaning decides which is right; otherwise 0.
      subject_pronoun: the pronoun of the main clause's subject in the target language; "" if the
        source has no pronoun.
      twin: a number shared by two sentences that differ only in the reason and whose pronouns refer
        to different nouns.
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


def _resolving(subject: Noun, thing: Noun, language: Language) -> bool:
    """Whether two nouns have different pronouns, so only the meaning decides which is right."""
    pronoun = _TARGETS[language].pronoun
    return pronoun(subject, plural=False) != pronoun(thing, plural=False)


def example(meaning: Meaning, language: Language, twin: int = -1) -> Example:
    """Return the annotated sentence pair of a meaning."""
    target_language = _TARGETS[language]
    source, target = realize(meaning, english), realize(meaning, target_language)
    antecedent = distractor = -1
    resolution, subject_pronoun = 0, ""
    if isinstance(meaning, Because):
        subject, thing = (position(source, f"{role}.noun") for role in Role)
        of_subject = meaning.antecedent is Role.SUBJECT
        antecedent, distractor = (subject, thing) if of_subject else (thing, subject)
        phrases = (meaning.event.subject, meaning.event.object)
        singular = not any(phrase.plural for phrase in phrases)
        nouns = (phrase.noun for phrase in phrases)
        resolution = int(singular and _resolving(*nouns, language))
        subject_pronoun = target_language.pronoun(phrases[0].noun, phrases[0].plural)
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
    """Return the noun pairs reserved for `test_unseen`, the same for both languages."""
    pairs = list(dict.fromkeys(frame.pair for frame in all_frames()))
    published = published_twins()[0].event
    required_in_training = {published.subject.noun.singular, published.object.noun.singular}
    partners = Counter(lemma for pair in pairs for lemma in pair)
    lost: Counter[str] = Counter()
    unseen: list[frozenset[str]] = []
    for pair in shuffled(Random(_SEED), pairs):
        if len(unseen) >= _UNSEEN_SHARE * len(pairs):
            break
        exhausted = any(lost[noun] + 1 > _UNSEEN_SHARE_PER_NOUN * partners[noun] for noun in pair)
        if pair != required_in_training and not exhausted:
            unseen.append(pair)
            lost.update(pair)
    return frozenset(unseen)


def _fill(
    count: int,
    draw: Callable[[], tuple[Meaning, ...] | None],
    language: Language,
    used: set[str],
    label: str,
) -> list[Example]:
    """Draw until there are `count` examples whose English sentence is not in `used`.

    `draw` returns one meaning, or two that become twins, or None to be called again.
    """
    filled: list[Example] = []
    draws = 0
    while len(filled) < count:
        draws += 1
        assert draws <= _PATIENCE * count, f"the grammar has too few sentences for {label}"
        meanings = draw()
        if meanings is None:
            continue
        # The number of sentences so far identifies these twins.
        twin = len(used) if len(meanings) > 1 else -1
        fresh = [example(meaning, language, twin) for meaning in meanings]
        if used.isdisjoint(each.source for each in fresh):
            used.update(each.source for each in fresh)
            filled += fresh
    return filled


def _pair(event: Event) -> frozenset[str]:
    return frozenset((event.subject.noun.singular, event.object.noun.singular))


def _split(
    name: str, language: Language, rng: Random, split_frames: Sequence[Frame], used: set[str]
) -> list[Example]:
    """Return the examples of one split, drawn from the given frames."""
    quota = _QUOTAS[name]
    unseen = name == "test_unseen"
    differing, same = [], []
    for frame in split_frames:
        group = differing if _resolving(frame.subject, frame.object, language) else same
        group.append(frame)
    every_pool, differing_pool, same_pool = map(FramePool, (split_frames, differing, same))

    def statement() -> tuple[Meaning, ...]:
        return (draw_statement(rng),)

    def event() -> tuple[Meaning, ...] | None:
        drawn = draw_event(rng, every_pool, sights=not unseen)
        return None if not unseen and _pair(drawn) in unseen_pairs() else (drawn,)

    def resolution() -> tuple[Meaning, ...] | None:
        return draw_twins(rng, differing_pool)

    def other() -> tuple[Meaning, ...] | None:
        plurals = pick(rng, _OTHER_NUMBERS)
        return draw_twins(rng, every_pool if any(plurals) else same_pool, plurals)

    examples: list[Example] = []
    for count, draw in (
        (quota.statements, statement),
        (quota.events, event),
        (quota.resolutions, resolution),
        (quota.others, other),
    ):
        examples += _fill(count, draw, language, used, f"{name}, {draw.__name__}")
    return examples


@lru_cache(maxsize=len(LANGUAGES))
def _corpus(language: Language) -> Mapping[str, tuple[Example, ...]]:
    rng = Random(_SEED + LANGUAGES.index(language))
    published = [example(meaning, language, twin=0) for meaning in published_twins()]
    used = {each.source for each in published}
    seen_frames, unseen_frames = [], []
    for frame in all_frames():
        (unseen_frames if frame.pair in unseen_pairs() else seen_frames).append(frame)
    splits = {}
    for name in SPLITS:
        split_frames = unseen_frames if name == "test_unseen" else seen_frames
        examples = _split(name, language, rng, split_frames, used)
        if name == "test":
            examples += published
        splits[name] = tuple(shuffled(rng, examples))
    return splits


def examples(language: Language, split: str) -> list[Example]:
    """Return the sentence pairs of one split, always the same in the same order."""
    return list(_corpus(language)[split])
