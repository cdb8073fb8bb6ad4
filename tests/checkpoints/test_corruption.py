# SPDX-License-Identifier: Apache-2.0
"""No damage to the files of checkpoints results in a wrong state without a warning.

Every test damages a directory of three checkpoints at random. Then either the newest state (for
apps: the best parameters) is restored bit for bit, or a warning names it and another one is
restored bit for bit.
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

DEFAULT, ALL = 16, 200  # twice every kind of damage, and many times
STEPS = (10, 20, 30)
BEST, NEWEST = 10, 30


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A workdir with three validated checkpoints; the oldest is the best."""
    workdir = tmp_path_factory.mktemp("saved")
    save(workdir, STEPS, nll={10: 1.0, 20: 3.0, 30: 2.0})
    return workdir


@pytest.fixture(scope="module")
def as_saved():
    """The bits of every saved state, by step."""
    return {step: bits(state_at(step)) for step in STEPS}


def flip_a_bit(file, generator, others):
    """Flip one bit."""
    data = bytearray(file.read_bytes())
    if not data:
        return False
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    file.write_bytes(data)
    return True


def change_a_byte(file, generator, others):
    """Change one byte."""
    data = bytearray(file.read_bytes())
    if not data:
        return False
    data[generator.randrange(len(data))] ^= generator.randrange(1, 256)
    file.write_bytes(data)
    return True


def cut_short(file, generator, others):
    """Truncate the file."""
    data = file.read_bytes()
    if not data:
        return False
    file.write_bytes(data[: generator.randrange(len(data))])
    return True


def empty(file, generator, others):
    """Empty the file."""
    changes = file.stat().st_size > 0
    file.write_bytes(b"")
    return changes


def append(file, generator, others):
    """Append bytes to the file."""
    file.write_bytes(file.read_bytes() + generator.randbytes(generator.randrange(1, 100)))
    return True


def remove(file, generator, others):
    """Remove the file."""
    file.unlink()
    return True


def remove_the_folder(file, generator, others):
    """Remove one of the folders that contain the file."""
    folders = [path for path in file.parents if "checkpoints" in path.parent.parts]
    shutil.rmtree(generator.choice(folders))
    return True


def swap(file, generator, others):
    """Swap the content of two files."""
    other = generator.choice(others)
    contents = file.read_bytes(), other.read_bytes()
    file.write_bytes(contents[1])
    other.write_bytes(contents[0])
    return contents[0] != contents[1]


DAMAGES = (
    *(flip_a_bit, change_a_byte, cut_short, empty, append),
    *(remove, remove_the_folder, swap),
)


def damage(workdir, number):
    """Apply the damage of this number to a file that it changes, half of the time to arrays."""
    generator = random.Random(number)
    files = sorted(path for path in (workdir / "checkpoints").rglob("*") if path.is_file())
    arrays = [path for path in files if path.parent.name == "d"]
    while True:
        file = generator.choice(generator.choice((files, arrays)))
        others = [path for path in files if path != file]
        if DAMAGES[number % len(DAMAGES)](file, generator, others):
            return


@pytest.mark.parametrize(
    "numbers",
    [range(DEFAULT), pytest.param(range(DEFAULT, ALL), marks=pytest.mark.slow)],
    ids=["a few", "many"],
)
def test_damage_is_reported_or_harmless(numbers, saved, as_saved, abstract, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    for number in numbers:
        workdir = shutil.copytree(saved, tmp_path / "run")
        damage(workdir, number)
        caplog.clear()
        params = bits(best_params(workdir, abstract))
        [used] = [step for step in STEPS if params == as_saved[step].params]
        assert used == BEST or f"step {BEST}" in caplog.text, number
        caplog.clear()
        with Checkpoints(workdir, TrainingConfig(keep_last=2), writing=True) as checkpoints:
            state, meta = checkpoints.restore(abstract)
            checkpoints.save(state_at(40), meta_at(40), {"nll": 9.0})
        [used] = [step for step in STEPS if bits(state) == as_saved[step]]
        assert meta == meta_at(used)
        assert used == NEWEST or f"step {NEWEST}" in caplog.text, number
        state, _ = restored(workdir, abstract)
        assert bits(state) == bits(state_at(40)), f"{number}: the training continues"
        shutil.rmtree(workdir)
