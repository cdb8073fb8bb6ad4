# SPDX-License-Identifier: Apache-2.0
"""A training killed at any moment, even during a save, loses only that save."""

import itertools
import logging
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import test_disks
from saving import (
    best_params,
    bits,
    contents,
    restored,
    save,
    state_at,
    steps_in,
)

from transformer.checkpoints.manager import Checkpoints
from transformer.config import TrainingConfig

REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A workdir with checkpoints of steps 10, 20 and 30, and an unfinished one of step 40."""
    workdir = tmp_path_factory.mktemp("saved")
    save(workdir, (10, 20, 30, 40))
    (workdir / "checkpoints" / "40").rename(workdir / "checkpoints" / "40.orbax-checkpoint-tmp")
    return workdir


@pytest.fixture
def run(saved, tmp_path):
    """A copy: the digests of step 40 are written, but it does not have its final name yet."""
    return shutil.copytree(saved, tmp_path / "run")


@pytest.fixture
def directory(run):
    """The checkpoints of `run`."""
    return run / "checkpoints"


def lose_half(folder):
    """Remove every other file of a folder."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file())[::2]:
        file.unlink()


def names(directory):
    """Names in the directory and in its directory of digests."""
    return {path.name for folder in (directory, directory / "digests") for path in folder.iterdir()}


THREE = {"10", "20", "30", "digests", "10.json", "20.json", "30.json"}


def test_an_unfinished_save_is_no_checkpoint_and_is_removed(run, directory, abstract):
    (directory / "digests" / "40.json").unlink()
    lose_half(directory / "40.orbax-checkpoint-tmp")
    (directory / "digests" / "40.json.partial").write_text('{"step": 4')
    assert bits(best_params(run, abstract)) == bits(state_at(30).params)
    state, _ = restored(run, abstract)
    assert bits(state) == bits(state_at(30))
    assert names(directory) == THREE


def test_a_kill_between_the_digests_and_the_final_name(run, directory, abstract, caplog):
    with caplog.at_level(logging.WARNING):
        state, _ = restored(run, abstract)
    assert bits(state) == bits(state_at(30))
    assert names(directory) == THREE
    [warning] = [record.getMessage() for record in caplog.records]
    assert "step 40: missing: its save did not finish" in warning
    save(run, [40])
    state, _ = restored(run, abstract)
    assert bits(state) == bits(state_at(40))


@pytest.mark.parametrize("left", ["all", "half"])
def test_a_kill_during_the_deletion_of_an_old_checkpoint(run, directory, abstract, caplog, left):
    """Orbax has moved it, and its digests still exist."""
    (directory / "deleted").mkdir()
    (directory / "10").rename(directory / "deleted" / "10")
    if left == "half":
        lose_half(directory / "deleted" / "10")
    assert bits(best_params(run, abstract)) == bits(state_at(30).params)
    (directory / "digests" / "40.json").unlink()
    caplog.clear()
    restored(run, abstract)
    assert names(directory) == THREE - {"10", "10.json"}
    assert caplog.text == ""


def test_a_kill_while_a_damaged_checkpoint_is_set_aside(run, directory, abstract):
    """It has its new name, and its digests still exist."""
    (directory / "30").rename(directory / "damaged-30")
    state, _ = restored(run, abstract)
    assert bits(state) == bits(state_at(20))
    assert names(directory) == THREE - {"30", "30.json"} | {"damaged-30"}


def test_a_reader_does_not_remove_unfinished_saves(run, directory, abstract):
    (directory / "deleted").mkdir()
    (directory / "10").rename(directory / "deleted" / "10")
    before = contents(run)
    assert bits(best_params(run, abstract)) == bits(state_at(30).params)
    assert contents(run) == before


# A process that is really killed.

SIZE = 200_000
KEEP_TWO = TrainingConfig(keep_last=2)


def save_on(workdir):
    """Save every step after the newest; print each when the previous save has finished."""
    signal.alarm(60)
    with Checkpoints(workdir, KEEP_TWO, writing=True) as checkpoints:
        newest = max(checkpoints.steps(), default=0)
        for step in itertools.count(newest + 1):
            checkpoints.save(test_disks.state_at(step, SIZE), {"step": step})
            os.write(1, f"{step}\n".encode())  # unbuffered


def serve():
    """For each workdir on standard input, fork a process that saves; print its id and its end."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            print(os.getpid(), flush=True)
            save_on(pathlib.Path(line.strip()))
        os.waitpid(child, 0)
        print("ended", flush=True)


@pytest.fixture
def server():
    """The server process, which has imported the libraries but not used them."""
    paths = [str(REPOSITORY), str(pathlib.Path(__file__).parents[1])]
    process = subprocess.Popen(
        [sys.executable, __file__],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait(timeout=300)


def kill(server, workdir, saves, seconds):
    """Kill a process some seconds after a number of saves; return the last step that it printed."""
    server.stdin.write(f"{workdir}\n")
    server.stdin.flush()
    child = int(server.stdout.readline())
    try:
        printed = [int(server.stdout.readline()) for _ in range(saves)]
        time.sleep(seconds)
    finally:
        os.kill(child, signal.SIGKILL)
    return max([*printed, *map(int, iter(server.stdout.readline, "ended\n"))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "seed"),
    [pytest.param(3, 0, id="few"), pytest.param(40, 1, id="many", marks=pytest.mark.slow)],
)
def test_a_kill_at_any_moment_loses_only_the_save_in_progress(server, tmp_path, times, seed):
    generator = random.Random(seed)
    for _ in range(times):
        printed = kill(server, tmp_path, generator.randint(2, 3), generator.uniform(0, 0.2))
        with Checkpoints(tmp_path, KEEP_TWO, writing=True) as checkpoints:
            state, meta = checkpoints.restore(test_disks.abstract(SIZE))
            newest = checkpoints.steps()[-1]
        # The save before the printed one had finished; the next one may have.
        assert printed - 1 <= newest <= printed + 1
        assert meta == {"step": newest}
        assert bits(state) == bits(test_disks.state_at(newest, SIZE))
        assert names(tmp_path / "checkpoints") == {
            "digests",
            *(f"{step}{end}" for step in steps_in(tmp_path) for end in ("", ".json")),
        }


if __name__ == "__main__":
    serve()
