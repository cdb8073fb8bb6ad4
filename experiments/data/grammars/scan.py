# SPDX-License-Identifier: Apache-2.0
"""SCAN (Lake and Baroni 2018, arXiv:1711.00350): translate commands into sequences of actions.

"look after jump around left" is "I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP
I_TURN_LEFT I_JUMP I_LOOK". The 20,910 commands are generated from the published grammar. There are
several published splits:

simple             Four fifths and one fifth at random; the seed is ours.
length             Train on outputs of up to 22 actions, test on the longer ones, of 24 to 48.
length26           The same with up to 26 actions (the cutoff of Csordas et al. 2021, "The Devil is
                   in the Detail").
addprim_jump       Train on the commands without "jump" and on that word alone, repeated until it
                   is a tenth of all; test on the other commands with "jump".
addprim_turn_left  The same with "turn left".

All except `simple` follow from a rule and equal the published ones, repetitions included. None has
a validation split, so `validation` is a sample of `train`, which stays complete. It measures
memorization only, and a checkpoint chosen by it has not seen the test split.
"""

import random
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

PRIMITIVES = ("walk", "look", "run", "jump")
DIRECTIONS = ("left", "right")
TIMES = {"twice": 2, "thrice": 3}
LONGEST_TRAINED = {"length": 22, "length26": 26}
"""Maximum number of actions of a training output."""
VALIDATION_SIZE = 500
CONFIGS = ("simple", *LONGEST_TRAINED, "addprim_jump", "addprim_turn_left")


def commands() -> list[str]:
    """All commands of the grammar.

    A command C is S, ``S and S`` or ``S after S``; S is V, ``V twice`` or ``V thrice``; V is a
    primitive, or a primitive or ``turn`` followed by an optional ``opposite`` or ``around`` and a
    direction.
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
    """The actions of a command, in order.

    Args:
      command: one of `commands`.
    """
    if " after " in command:
        first, second = command.split(" after ")
        return _sentence_actions(second) + _sentence_actions(first)
    return [action for sentence in command.split(" and ") for action in _sentence_actions(sentence)]


def _sentence_actions(sentence: str) -> list[str]:
    """The actions of S: a verb phrase, repeated once, twice or three times."""
    *phrase, last = sentence.split()
    if last in TIMES:
        return _verb_actions(phrase) * TIMES[last]
    return _verb_actions([*phrase, last])


def _verb_actions(words: list[str]) -> list[str]:
    """The actions of V: ``opposite`` turns twice first, ``around`` turns and acts four times."""
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
    elif config in LONGEST_TRAINED:
        longest = LONGEST_TRAINED[config]
        train = [each for each in every if len(actions(each)) <= longest]
        test = [each for each in every if len(actions(each)) > longest]
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
            disable_shuffling=True,  # Training shuffles every epoch.
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        del dl_manager  # There is no download.
        return {
            name: self._generate_examples(commands)
            for name, commands in splits(self.builder_config.name).items()
        }

    def _generate_examples(self, commands: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
        for index, command in enumerate(commands):
            yield index, {"source": command, "target": " ".join(actions(command))}
