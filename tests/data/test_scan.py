# SPDX-License-Identifier: Apache-2.0
"""The embedded corpus `scan`: its commands, their actions, and the published splits."""

import hashlib
from collections import Counter

import pytest
import tensorflow_datasets as tfds

from experiments.cli.config_flags import load_config_file as load
from experiments.data import registry
from experiments.data.grammars.scan import (
    CONFIGS,
    VALIDATION_SIZE,
    ScanGrammar,
    actions,
    commands,
    splits,
)
from transformer.errors import InputError
from transformer.fields import difference

COMMANDS = commands()

SHORT = {
    "W": "I_WALK",
    "K": "I_LOOK",
    "R": "I_RUN",
    "J": "I_JUMP",
    "<": "I_TURN_LEFT",
    ">": "I_TURN_RIGHT",
}

WORKED = {
    # Primitives, turns, and repetitions.
    "jump": "J",
    "turn left": "<",
    "walk right": "> W",
    "look thrice": "K K K",
    "turn right twice": "> >",
    "run left twice": "< R < R",
    # Opposite turns twice, around turns and acts four times.
    "jump opposite left": "< < J",
    "turn opposite right": "> >",
    "walk around right": "> W > W > W > W",
    "turn around left": "< < < <",
    "look opposite right thrice": "> > K > > K > > K",
    "run around left twice": "< R < R < R < R < R < R < R < R",
    # "twice" and "thrice" modify one part.
    "run and look twice": "R K K",
    "jump twice and walk": "J J W",
    # The part after "after" comes first.
    "jump thrice after walk": "W J J J",
    "turn left after run right thrice": "> R > R > R <",
    "jump around left after walk opposite right thrice": "> > W > > W > > W < J < J < J < J",
    "look around right twice and turn opposite left thrice": (
        "> K > K > K > K > K > K > K > K < < < < < <"
    ),
}  # fmt: skip

PUBLISHED = {
    # Pairs and bytes of the published files, in which a line is "IN: command OUT: actions".
    "length": {"train": (16_990, 2_723_418), "test": (3_920, 1_356_970)},
    "addprim_jump": {"train": (14_670, 2_579_619), "test": (7_706, 1_531_555)},
    "addprim_turn_left": {"train": (21_890, 3_974_537), "test": (1_208, 173_679)},
}
ALL_PUBLISHED = (20_910, 4_080_388)

SIMPLE_TEST_DIGEST = "c926ab1b66e432e31b48aa6c662a278c4664d5cbb30e2d1e9a068a8536110d65"


def size(chosen):
    """The number of pairs and of bytes in the format of the published files."""
    return len(chosen), sum(len(f"IN: {each} OUT: {' '.join(actions(each))}\n") for each in chosen)


# ----------------------------------------------------------------------------------- commands


def test_the_grammar_has_20910_commands_each_with_one_derivation():
    assert size(COMMANDS) == ALL_PUBLISHED
    assert len(COMMANDS) == len(set(COMMANDS)) == 20_910
    assert max(len(command.split()) for command in COMMANDS) == 9
    words = Counter(word for command in COMMANDS for word in command.split())
    assert len(words) == 13


def test_outputs_have_1_to_48_actions_of_6_kinds():
    outputs = [actions(command) for command in COMMANDS]
    assert {len(output) for output in outputs} >= {1, 48}
    assert max(map(len, outputs)) == 48
    assert {action for output in outputs for action in output} == set(SHORT.values())


def test_actions_worked_by_hand():
    for command, short in WORKED.items():
        assert command in COMMANDS
        assert actions(command) == [SHORT[each] for each in short.split()], command


def test_and_keeps_the_order_of_its_parts_and_after_reverses_it():
    for command in COMMANDS:
        if " and " in command:
            first, second = command.split(" and ")
            assert actions(command) == actions(first) + actions(second)
            assert actions(f"{first} after {second}") == actions(second) + actions(first)


# ------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize("config", PUBLISHED)
def test_train_and_test_have_the_pairs_and_bytes_of_the_published_files(config):
    parts = splits(config)
    assert {name: size(parts[name]) for name in ("train", "test")} == PUBLISHED[config]


@pytest.mark.parametrize("config", CONFIGS)
def test_train_and_test_are_disjoint_and_cover_all_commands(config):
    parts = splits(config)
    assert not set(parts["train"]) & set(parts["test"])
    assert set(parts["train"]) | set(parts["test"]) == set(COMMANDS)
    assert len(set(parts["test"])) == len(parts["test"])
    # Every word and every action of the test occurs in training.
    for words in (str.split, actions):
        seen = {word for command in parts["train"] for word in words(command)}
        assert {word for command in parts["test"] for word in words(command)} <= seen
    # The validation is a part of train without repetitions.
    assert len(set(parts["validation"])) == len(parts["validation"]) == VALIDATION_SIZE
    assert set(parts["validation"]) <= set(parts["train"])


def test_simple_has_the_published_sizes_and_is_the_same_everywhere():
    parts = splits("simple")
    assert (len(set(parts["train"])), len(parts["train"])) == (16_728, 16_728)
    assert len(parts["test"]) == 4_182
    text = "\n".join(parts["test"]).encode()
    assert hashlib.sha256(text).hexdigest() == SIMPLE_TEST_DIGEST


def test_the_lengths_of_the_length_splits():
    for config, longest, shortest in (("length", 22, 24), ("length26", 26, 27)):
        parts = splits(config)
        assert max(len(actions(command)) for command in parts["train"]) == longest
        assert min(len(actions(command)) for command in parts["test"]) == shortest
        assert len(set(parts["train"])) == len(parts["train"])
    assert (len(parts["train"]), len(parts["test"])) == (18_286, 2_624)


@pytest.mark.parametrize(
    ("config", "primitive", "repetitions"),
    [("addprim_jump", "jump", 1_467), ("addprim_turn_left", "turn left", 2_189)],
)
def test_an_added_primitive_occurs_alone_in_a_tenth_of_training(config, primitive, repetitions):
    parts = splits(config)
    times = Counter(parts["train"])
    assert times.pop(primitive) == repetitions == len(parts["train"]) / 10
    assert set(times.values()) == {1}
    assert not any(primitive in command for command in times)
    assert all(primitive in command for command in parts["test"])
    assert {"walk left", "turn opposite left", "turn around left", "turn right"} <= times.keys()


# ------------------------------------------------------------------------------------ builder


@pytest.mark.parametrize("config", CONFIGS)
def test_the_builder_writes_the_splits_in_order(config, tmp_path):
    tfds.disable_progress_bar()
    builder = ScanGrammar(config=config, data_dir=tmp_path, file_format="array_record")
    assert builder.name == "scan_grammar"
    few = tfds.download.DownloadConfig(max_examples_per_split=50)
    builder.download_and_prepare(download_config=few)
    for split, chosen in splits(config).items():
        source = builder.as_data_source(split)
        read = [(each["source"].decode(), each["target"].decode()) for each in source]
        assert read == [(command, " ".join(actions(command))) for command in chosen[:50]]


# ------------------------------------------------------------------------------------ configs


def test_the_configs_differ_only_in_the_split_and_fit_every_pair_and_word():
    for config in CONFIGS[1:]:
        assert difference(load("scan"), load(f"scan:{config}")) == {
            "data.dataset": ("scan_grammar/simple", f"scan_grammar/{config}")
        }
    data, model = load("scan").data, load("scan").model
    outputs = {action for command in COMMANDS for action in actions(command)}
    words = {word for command in COMMANDS for word in command.split()}
    assert data.max_length == max(len(actions(command)) for command in COMMANDS) + 1
    assert model.vocab_size == len(words) + len(outputs) + 4
    with pytest.raises(
        InputError, match="'scan_grammar/jump'.*scan_grammar/simple, scan_grammar/len"
    ):
        registry.sentence_pairs(load("scan:jump").data, "train")
