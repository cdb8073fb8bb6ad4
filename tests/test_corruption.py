# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to the files of checkpoints, no wrong state comes of it without a word.

Every test does one random damage to a directory of three checkpoints. Then either what was saved
last (for a reader: what is the best) comes back bit for bit, or it is named in a warning and
another one comes back bit for bit.
"""

import logging
import random
import shutil

import pytest
from saving import (
    best_params,
    bits,
    meta_at,
    restored,
    save,
    state_at,
)

from transformer.checkpoints.manager import Checkpoints
from transformer.config import TrainingConfig

DEFAULT, ALL = 20, 200
STEPS = (10, 20, 30)
BEST, NEWEST = 10, 30


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A workdir with three validated checkpoints, of which the oldest is the best."""
    workdir = tmp_path_factory.mktemp("saved")
    save(workdir, STEPS, nll={10: 1.0, 20: 3.0, 30: 2.0})
    return workdir


@pytest.fixture(scope="module")
def as_saved():
    """Every state's bits, by its step."""
    return {step: bits(state_at(step)) for step in STEPS}


def flip_a_bit(file, generator, others):
    """A cosmic ray."""
    data = bytearray(file.read_bytes())
    if not data:
        return False
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    file.write_bytes(data)
    return True


def change_a_byte(file, generator, others):
    """Another value in one place."""
    data = bytearray(file.read_bytes())
    if not data:
        return False
    data[generator.randrange(len(data))] ^= generator.randrange(1, 256)
    file.write_bytes(data)
    return True


def cut_short(file, generator, others):
    """The first part of it alone."""
    data = file.read_bytes()
    if not data:
        return False
    file.write_bytes(data[: generator.randrange(len(data))])
    return True


def empty(file, generator, others):
    """Nothing of it."""
    changes = file.stat().st_size > 0
    file.write_bytes(b"")
    return changes


def append(file, generator, others):
    """Bytes at its end."""
    file.write_bytes(file.read_bytes() + generator.randbytes(generator.randrange(1, 100)))
    return True


def remove(file, generator, others):
    """The file is gone."""
    file.unlink()
    return True


def remove_the_folder(file, generator, others):
    """One of the folders that the file is in is gone."""
    folders = [path for path in file.parents if "checkpoints" in path.parent.parts]
    shutil.rmtree(generator.choice(folders))
    return True


def swap(file, generator, others):
    """Two files have each other's content."""
    other = generator.choice(others)
    contents = file.read_bytes(), other.read_bytes()
    file.write_bytes(contents[1])
    other.write_bytes(contents[0])
    return contents[0] != contents[1]


DAMAGES = (
    *(flip_a_bit, change_a_byte, cut_short, empty, append),
    *(remove, remove_the_folder, swap),
)


CASES = [
    pytest.param(
        number,
        id=f"{number}-{DAMAGES[number % len(DAMAGES)].__name__}",
        marks=() if number < DEFAULT else pytest.mark.slow,
    )
    for number in range(ALL)
]


def damage(workdir, number):
    """Does the damage of this number to some file that it changes; to arrays every other time."""
    generator = random.Random(number)
    files = sorted(path for path in (workdir / "checkpoints").rglob("*") if path.is_file())
    arrays = [path for path in files if path.parent.name == "d"]
    while True:
        file = generator.choice(generator.choice((files, arrays)))
        others = [path for path in files if path != file]
        if DAMAGES[number % len(DAMAGES)](file, generator, others):
            return


@pytest.mark.parametrize("number", CASES)
def test_a_damage_is_named_or_does_no_harm(number, saved, as_saved, abstract, tmp_path, caplog):
    workdir = shutil.copytree(saved, tmp_path / "run")
    damage(workdir, number)
    with caplog.at_level(logging.WARNING):
        params = bits(best_params(workdir, abstract))
    [used] = [step for step in STEPS if params == as_saved[step].params]
    assert used == BEST or f"step {BEST}" in caplog.text
    caplog.clear()
    config = TrainingConfig(keep_last=2)
    with (
        caplog.at_level(logging.WARNING),
        Checkpoints(workdir, config, writing=True) as checkpoints,
    ):
        state, meta = checkpoints.restore(abstract)
        checkpoints.save(state_at(40), meta_at(40), {"nll": 9.0})
    [used] = [step for step in STEPS if bits(state) == as_saved[step]]
    assert meta == meta_at(used)
    assert used == NEWEST or f"step {NEWEST}" in caplog.text
    state, _ = restored(workdir, abstract)
    assert bits(state) == bits(state_at(40)), "the training goes on"
