# SPDX-License-Identifier: Apache-2.0
"""SCAN (Lake and Baroni 2018, arXiv:1711.00350): commands, to translate into sequences of actions.

"look after jump around left" is "I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP
I_TURN_LEFT I_JUMP I_LOOK". The published grammar has 20,910 commands; they are generated here from
its rules. What is trained on and what is tested is published too, in several ways:

simple             Four fifths and one fifth at random, here by a seed of our own.
length             Trains on outputs of up to 22 actions, tests the longer ones, of 24 to 48.
addprim_jump       Trains on the commands without "jump" and on that word alone, repeated until it
                   is a tenth of all; tests the other commands with "jump".
addprim_turn_left  The same with "turn left".

All but `simple` follow from a rule, so they are the published ones, repetitions included. None of
them has commands for validation. So that `train` stays whole, `validation` is a sample of it: it
tells whether what was trained on is known, and a checkpoint chosen by it owes nothing to the test.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow_datasets as tfds

PRIMITIVES = ("walk", "look", "run", "jump")
DIRECTIONS = ("left", "right")
TIMES = {"twice": 2, "thrice": 3}
LONGEST_TRAINED = 22
"""Actions of a training output of `length`."""
VALIDATION_SIZE = 500
CONFIGS = ("simple", "length", "addprim_jump", "addprim_turn_left")


def commands() -> list[str]:
    """Every command of the grammar, once.

    A command C is S, ``S and S`` or ``S after S``; S is V, ``V twice`` or ``V thrice``; V is a
    primitive, or a primitive or ``turn`` followed by a direction, before which may stand
    ``opposite`` or ``around``.
    """
    verb_phrases = [
        *PRIMITIVES,
        *(
            f"{verb}{manner} {direction}"
            for verb in (*PRIMITIVES, "turn")
            for manner in ("", " opposite", " around")
            for direction in DIRECTIONS
        ),
    ]
    sentences = [
        f"{phrase}{times}" for phrase in verb_phrases for times in ("", " twice", " thrice")
    ]
    return sentences + [
        f"{first} {conjunction} {second}"
        for first in sentences
        for conjunction in ("and", "after")
        for second in sentences
    ]


def actions(command: str) -> list[str]:
    """The interpretation of a command: what to do, in order.

    Args:
      command: one of `commands`.
    """
    if " after " in command:
        first, second = command.split(" after ")
        return _of_sentence(second) + _of_sentence(first)
    return [action for sentence in command.split(" and ") for action in _of_sentence(sentence)]


def _of_sentence(sentence: str) -> list[str]:
    """S: a verb phrase, done once, twice or three times."""
    *phrase, last = sentence.split()
    if last in TIMES:
        return _of_verb_phrase(phrase) * TIMES[last]
    return _of_verb_phrase([*phrase, last])


def _of_verb_phrase(words: list[str]) -> list[str]:
    """V: ``opposite`` turns twice before it acts, ``around`` turns and acts four times."""
    act = [] if words[0] == "turn" else [f"I_{words[0].upper()}"]
    if len(words) == 1:
        return act
    turn = [f"I_TURN_{words[-1].upper()}"]
    if words[1] == "around":
        return (turn + act) * 4
    if words[1] == "opposite":
        return turn + turn + act
    return turn + act


def splits(config: str) -> dict[str, list[str]]:
    """The commands of ``train`` (with the published repetitions), ``validation`` and ``test``.

    Args:
      config: one of `CONFIGS`.
    """
    generator = random.Random(0)
    every = commands()
    if config == "simple":
        generator.shuffle(every)
        border = len(every) * 4 // 5
        train, test = every[:border], every[border:]
    elif config == "length":
        train = [each for each in every if len(actions(each)) <= LONGEST_TRAINED]
        test = [each for each in every if len(actions(each)) > LONGEST_TRAINED]
    else:
        primitive = config.removeprefix("addprim_").replace("_", " ")
        others = [each for each in every if primitive not in each]
        # A ninth of the others is a tenth of all.
        train = others + [primitive] * (len(others) // 9)
        test = [each for each in every if primitive in each and each != primitive]
    distinct = list(dict.fromkeys(train))
    return {
        "train": train,
        "validation": generator.sample(distinct, VALIDATION_SIZE),
        "test": test,
    }


def exact_match(
    examples: Sequence[Mapping[str, Any]], hypotheses: Sequence[str]
) -> dict[str, float]:
    """SCAN's metric: the share of commands all of whose actions are right.

    Args:
      examples: of the data source, texts as `str`.
      hypotheses: the translation of each.
    """
    pairs = zip(examples, hypotheses, strict=True)
    right = sum(hypothesis == example["target"] for example, hypothesis in pairs)
    return {"exact_match": right / len(examples)}


class ScanGrammar(tfds.core.GeneratorBasedBuilder):
    """TFDS builder ``scan_grammar`` with the configs `CONFIGS`."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in CONFIGS]

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({"source": text, "target": text}),
            supervised_keys=("source", "target"),
            disable_shuffling=True,  # Each epoch of training is shuffled.
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        del dl_manager  # Nothing is downloaded.
        found = splits(self.builder_config.name)
        return {name: self._generate_examples(chosen) for name, chosen in found.items()}

    def _generate_examples(self, chosen: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
        for index, command in enumerate(chosen):
            yield index, {"source": command, "target": " ".join(actions(command))}
