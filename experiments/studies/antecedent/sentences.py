# SPDX-License-Identifier: Apache-2.0
"""Quadruples of ambiguous sentences: an event and two reasons, with two pairs of nouns.

    0  The cat didn't cross the path because it was too tired.     sie
    1  The cat didn't cross the path because it was too narrow.    er
    2  The dog didn't cross the street because it was too tired.   er
    3  The dog didn't cross the street because it was too narrow.  sie

Rows 0 and 1 are adjective twins, and so are 2 and 3; rows 0 and 2 are noun twins, and so are 1 and
3. Both kinds of twins have exchanged answers, but for different reasons: adjective twins refer to
different nouns, noun twins to the same role with a noun of the other gender. An activation that
carries the answer carries it between both kinds. One that carries only the adjective's identity, or
only a noun's, does so between one.
"""

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Any

from experiments.data.grammars.pronouns import Language, french, german, sentences
from experiments.data.grammars.pronouns.dictionary import Noun
from experiments.data.grammars.pronouns.grammar import (
    FramePool,
    all_frames,
    draw_twins,
    pick,
    published_twins,
)
from experiments.data.grammars.pronouns.meaning import Because
from experiments.data.grammars.pronouns.scenes import Frame, frames
from experiments.studies.antecedent import twins
from experiments.studies.antecedent.twins import Sentences
from transformer.text.tokenizer import Tokenizer

SEED = 17
"""Seed of the drawn sentences, which are the same for all models of a language."""

ADJECTIVE, NOUN = 1, 2
"""The twin of row r of either kind is row ``r ^ kind``."""

LENGTHS = {"source": 16, "target": 20}
"""Lengths to which all sentences are padded, so that models share a program; longer ones are left
out.
"""

_GRAMMARS = {"de": german, "fr": french}


def read(tokenizer: Tokenizer, language: Language, number: int) -> tuple[Sentences, Sentences]:
    """Quadruples of sentences that are not in the training split, and the published twins.

    All sentences of a quadruple have equally many source tokens and differ only in the nouns and
    the adjective, which are one token each.

    Args:
      tokenizer: tokenizer of the model.
      language: language of the targets.
      number: number of quadruples, 4 rows each.

    Returns:
      the quadruples, and "The animal didn't cross the street because it was too tired." with its
      twin; no rows if those differ in more than one token. All are padded to `LENGTHS`.
    """
    published = [_example(meaning, language) for meaning in published_twins()]
    training = {example.source for example in sentences.examples(language, "train")}
    rows: list[dict[str, Any]] = []
    used: set[str] = set()
    for four in _drawn(language):
        if len(rows) == 4 * number:
            break
        texts = {example["source"] for example in four}
        if texts & (training | used):
            continue
        new = [*twins.rows_of(tokenizer, four[:2]), *twins.rows_of(tokenizer, four[2:])]
        if len(new) < 4 or not all(map(_fits, new)):
            continue
        if _are_noun_twins(new[0], new[2]) and _are_noun_twins(new[1], new[3]):
            rows += new
            used |= texts
    headline = [row for row in twins.rows_of(tokenizer, published) if _fits(row)]
    batch = twins.stacked(tokenizer, rows + headline, LENGTHS)
    return batch[: len(rows)], batch[len(rows) :]


def _fits(row: dict[str, Any]) -> bool:
    return all(len(row[name]) <= size for name, size in LENGTHS.items())


def _are_noun_twins(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two rows differ in one token of each noun, and have exchanged answers."""
    if first["source_roles"] != second["source_roles"]:
        return False
    roles, tokens = first["source_roles"], zip(first["source"], second["source"], strict=True)
    different = {role for role, (a, b) in zip(roles, tokens, strict=True) if a != b}
    nouns = {twins.ROLES.index(noun) for noun in twins.NOUNS}
    one_token = all(roles.count(noun) == 1 for noun in nouns)
    answers = (first["pronoun"], first["other"]) == (second["other"], second["pronoun"])
    return different == nouns and one_token and answers


def _drawn(language: Language) -> Iterator[list[dict[str, Any]]]:
    """Quadruples of examples, without end."""
    rng, pronoun = Random(SEED), _GRAMMARS[language].pronoun

    def answers(frame: Frame) -> tuple[str, str]:
        return pronoun(frame.subject, False), pronoun(frame.object, False)

    def usable(frame: Frame) -> bool:
        first, second = answers(frame)
        trained = frame.pair not in sentences.unseen_pairs()
        return trained and first != second and frame.subject.countable and frame.object.countable

    pool = [frame for frame in all_frames() if usable(frame)]
    draws = FramePool(pool)
    while True:
        drawn = draw_twins(rng, draws)
        if drawn is None:
            continue
        event, reasons = drawn[0].event, [each.quality.adjective for each in drawn]
        [frame] = [
            frame
            for frame in pool
            if (frame.subject, frame.object) == (event.subject.noun, event.object.noun)
            and frame.scene.verb is event.verb
            and reasons[0] in frame.subject_reasons
            and reasons[1] in frame.object_reasons
        ][:1]
        others = [
            other
            for other in frames(frame.scene)
            if usable(other)
            and answers(other) == answers(frame)[::-1]
            and reasons[0] in other.subject_reasons
            and reasons[1] in other.object_reasons
        ]
        if not others:
            continue
        chosen = pick(rng, others)
        both = ((frame.subject, frame.object), (chosen.subject, chosen.object))
        yield [_example(_with_nouns(twin, *nouns), language) for nouns in both for twin in drawn]


def _example(meaning: Because, language: Language) -> dict[str, Any]:
    return dataclasses.asdict(sentences.example(meaning, language))


def _with_nouns(twin: Because, subject: Noun, thing: Noun) -> Because:
    """The same sentence about other nouns, without attributes, which the nouns may not allow."""
    event = twin.event
    return dataclasses.replace(
        twin,
        event=dataclasses.replace(
            event,
            subject=dataclasses.replace(event.subject, noun=subject, adjective=None),
            object=dataclasses.replace(event.object, noun=thing, adjective=None),
        ),
    )
