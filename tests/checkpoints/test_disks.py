# SPDX-License-Identifier: Apache-2.0
"""A full or read-only disk results in one message and harms no checkpoint."""

import functools
import json
import logging
import os
import pathlib
import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.cli import command_line
from transformer.checkpoints.manager import Checkpoints
from transformer.config import TrainingConfig
from transformer.errors import InputError
from transformer.training.step import TrainState

REPOSITORY = pathlib.Path(__file__).parents[2]
CONFIG = TrainingConfig(keep_last=3)
SIZE = 1000


def state_at(step, size=SIZE):
    """A state that cannot be compressed."""
    numbers = np.random.default_rng(step).standard_normal(size, np.float32)
    params = {"kernel": jnp.asarray(numbers)}
    moments = optax.adam(1e-3).init(params)
    return TrainState(jnp.asarray(step, jnp.int32), params, moments, jax.random.key(step))


def abstract(size=SIZE):
    """Shapes, dtypes and shardings of a state on one device."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), state_at(0, size)
    )


def restored_step(workdir):
    """The step of the newest intact state, after checking its parameters."""
    with Checkpoints(workdir, CONFIG, writing=True) as checkpoints:
        state, _ = checkpoints.restore(abstract())
    step = int(state.step)
    np.testing.assert_array_equal(state.params["kernel"], state_at(step).params["kernel"])
    return step


def names(workdir):
    """Names in the directory of checkpoints."""
    return {path.name for path in (workdir / "checkpoints").iterdir()}


def fill_up(workdir, step):
    """Make writing the digests of a step fail for lack of space; returns a call that undoes it."""
    record = workdir / "checkpoints" / "digests" / f"{step}.json.partial"
    record.symlink_to("/dev/full")
    # A failed write removes the partial file, and the link with it.
    return functools.partial(record.unlink, missing_ok=True)


@pytest.fixture
def workdir(tmp_path):
    """A workdir with a checkpoint of step 10."""
    with Checkpoints(tmp_path, CONFIG, writing=True) as checkpoints:
        checkpoints.save(state_at(10), {})
    return tmp_path


def test_a_full_disk_is_reported_when_the_save_should_have_finished(workdir):
    with Checkpoints(workdir, CONFIG, writing=True) as checkpoints:
        fill_up(workdir, 20)
        checkpoints.save(state_at(20), {})
        with pytest.raises(InputError) as raised:
            checkpoints.finish()
    message = str(raised.value)
    assert f"step 20 could not be saved in {workdir / 'checkpoints'}" in message
    assert "(No space left on device)" in message
    assert "that of step 10 is intact" in message
    assert "free space there or make it writable, then run the same command to continue" in message
    assert "\n" not in message


def test_a_full_disk_is_reported_by_the_next_save_and_by_closing(workdir):
    with Checkpoints(workdir, CONFIG, writing=True) as checkpoints:
        fill_up(workdir, 20)
        checkpoints.save(state_at(20), {})
        with pytest.raises(InputError, match="step 20 could not be saved"):
            checkpoints.save(state_at(30), {})
        fill_up(workdir, 40)
        checkpoints.save(state_at(40), {})
        with pytest.raises(InputError, match="step 40 could not be saved"):
            checkpoints.close()


def test_a_partial_save_on_a_full_disk_is_removed_and_with_space_the_training_continues(workdir):
    with Checkpoints(workdir, CONFIG, writing=True) as checkpoints:
        free_up = fill_up(workdir, 20)
        checkpoints.save(state_at(20), {})
        with pytest.raises(InputError):
            checkpoints.finish()
        assert names(workdir) == {"10", "digests"}
        assert checkpoints.steps() == [10]
        free_up()
        checkpoints.save(state_at(20), {})
        checkpoints.save(state_at(30), {})
    assert names(workdir) == {"10", "20", "30", "digests"}
    assert restored_step(workdir) == 30


def test_the_first_save_may_meet_a_full_disk(tmp_path):
    with Checkpoints(tmp_path, CONFIG, writing=True) as checkpoints:
        fill_up(tmp_path, 10)
        checkpoints.save(state_at(10), {})
        with pytest.raises(InputError, match="no other was saved"):
            checkpoints.finish()
    with Checkpoints(tmp_path, CONFIG, writing=True) as checkpoints:
        assert checkpoints.restore(abstract()) is None


def test_a_workdir_that_cannot_be_written_is_named(tmp_path):
    """Not even root can make a directory in /proc."""
    (tmp_path / "file").write_text("")
    for workdir in ("/proc/self", tmp_path / "file"):
        with pytest.raises(InputError) as raised:
            Checkpoints(workdir, CONFIG, writing=True)
        assert f"{workdir}/checkpoints cannot be written (" in str(raised.value)
        assert "make it writable, or use another --workdir" in str(raised.value)


# TensorStore itself meets the limit, in a separate process.


def limited(workdir):
    """Save with files limited to 20 kB, then without a limit; print the outcome."""
    outcome = {}
    logging.basicConfig(handlers=[command_line.log_handler()], force=True)
    with Checkpoints(workdir, CONFIG, writing=True) as checkpoints:
        checkpoints.save(state_at(10), {})
        checkpoints.finish()
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, most))
        checkpoints.save(state_at(20, 100 * SIZE), {})
        try:
            checkpoints.finish()
        except InputError as error:
            outcome["problem"] = str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        outcome["left"] = checkpoints.steps()
        checkpoints.save(state_at(30), {})
    print(json.dumps(outcome))


TENSORSTORE_NOISE = {"Traceback (most recent call last):", "RuntimeError: Event loop is closed"}
"""Printed by TensorStore's threads for writes that fail after the first one."""


def test_an_app_does_not_log_the_writes_that_fail_after_the_first():
    """They are never awaited, so asyncio would log each with a traceback."""
    handler, logged = command_line.log_handler(), []
    for text in ('NOT_FOUND: Error writing "a" in OCDBT database', "another error"):
        error = (ValueError, ValueError(text), None)
        record = logging.LogRecord("asyncio", logging.ERROR, "x.py", 1, "", (), error)
        if handler.filter(record):
            logged.append(text)
    assert logged == ["another error"]


def test_checkpoints_change_no_logger(tmp_path):
    def settings():
        loggers = [logging.getLogger(name) for name in (None, *logging.root.manager.loggerDict)]
        return {one.name: (one.level, [*one.filters], [*one.handlers]) for one in loggers}

    before = settings()
    with Checkpoints(tmp_path, CONFIG, writing=True) as checkpoints:
        checkpoints.save(state_at(10), {})
        inside = settings()
    for name, setting in before.items():
        assert inside[name] == setting, name


def test_an_array_that_cannot_be_written_is_one_message(tmp_path):
    finished = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0
    printed = {line for line in finished.stderr.splitlines() if not line.startswith(" ")}
    assert printed <= TENSORSTORE_NOISE
    outcome = json.loads(finished.stdout)
    assert "step 20 could not be saved" in outcome["problem"]
    assert "(File too large); that of step 10 is intact; free space there" in outcome["problem"]
    assert outcome["left"] == [10]
    assert names(tmp_path) == {"10", "30", "digests"}
    assert restored_step(tmp_path) == 30


if __name__ == "__main__":
    limited(pathlib.Path(sys.argv[1]))
