# SPDX-License-Identifier: Apache-2.0
"""Two real processes share one directory of checkpoints and agree on every decision."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer import processes
from transformer.checkpoints.manager import Checkpoints
from transformer.config import TrainingConfig
from transformer.errors import InputError
from transformer.training.step import TrainState

REPOSITORY = pathlib.Path(__file__).parents[2]
CONFIG = TrainingConfig(keep_last=2)


def numbers_at(step):
    """The arrays of a state as NumPy arrays, by name; every one depends on the step."""
    generator = np.random.default_rng(step)
    return {
        "divided": generator.standard_normal((8, 3), np.float32),
        "whole": generator.standard_normal(5, np.float32),
        "moment": generator.standard_normal((8, 3), np.float32),
        "key": np.asarray(jax.random.key_data(jax.random.key(step))),
    }


def state_of(numbers, step, leaf):
    """A training state whose arrays are `leaf(name, numbers)`."""
    made = {name: leaf(name, values) for name, values in numbers.items()}
    return TrainState(
        step=leaf("step", np.int32(step)),
        params={"divided": made["divided"], "whole": made["whole"]},
        opt_state={"moment": made["moment"]},
        rng=jax.random.wrap_key_data(made["key"]),
    )


def sharding(mesh, name):
    """Two arrays are sharded along their first axis; the others are replicated."""
    axes = ("data",) if name in ("divided", "moment") else ()
    return NamedSharding(mesh, PartitionSpec(*axes))


def state_at(step, mesh):
    """The state of a step on a mesh."""

    def leaf(name, values):
        where = sharding(mesh, name)
        return jax.make_array_from_callback(values.shape, where, lambda index: values[index])

    return state_of(numbers_at(step), step, leaf)


def abstract_on(mesh):
    """Shapes, dtypes and shardings on a mesh."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
        state_at(0, mesh),
    )


def is_that_of(state, step):
    """Whether the local shards of every array are those of the step, bit for bit."""
    expected = state_of(numbers_at(step), step, lambda name, values: jnp.asarray(values))

    def same(leaf, whole):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, whole = jax.random.key_data(leaf), jax.random.key_data(whole)
        whole = np.asarray(whole)
        return all(
            np.asarray(shard.data).tobytes() == whole[shard.index].tobytes()
            for shard in leaf.addressable_shards
        )

    return all(jax.tree.leaves(jax.tree.map(same, state, expected)))


def flip_a_byte(workdir, step):
    """Flip a byte in the largest file of a checkpoint."""
    files = [p for p in (workdir / "checkpoints" / str(step)).rglob("*") if p.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)


def one_of_two(process, port, folder):
    """Run one of the two processes, which prints its results."""
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(
        f"127.0.0.1:{port}", num_processes=2, process_id=process, initialization_timeout=30
    )
    mesh = Mesh(np.array(jax.devices()), ("data",))
    found = {}
    with Checkpoints(folder / "two", CONFIG, writing=True) as checkpoints:
        for step in (10, 20, 30):
            meta = {"position": step}
            checkpoints.save(state_at(step, mesh), meta, {"nll": 1 / step})
    found["kept"] = checkpoints.steps()
    if process == 0:
        flip_a_byte(folder / "two", 30)
    processes.from_main_process(lambda: None)
    with Checkpoints(folder / "two", CONFIG, writing=True) as checkpoints:
        state, found["meta"] = checkpoints.restore(abstract_on(mesh))
        found["restored"] = is_that_of(state, 20)
        found["left"] = checkpoints.steps()
        checkpoints.save(state_at(30, mesh), {"position": 30}, {"nll": 9.0})
    with Checkpoints(folder / "two", CONFIG) as checkpoints:
        params = checkpoints.restore_params(abstract_on(mesh).params)
        found["best"] = checkpoints.best()
        expected = numbers_at(20)
        found["best_params"] = all(
            np.array_equal(shard.data, expected[name][shard.index])
            for name, leaf in params.items()
            for shard in leaf.addressable_shards
        )
    with Checkpoints(folder / "one", CONFIG, writing=True) as checkpoints:
        state, _ = checkpoints.restore(abstract_on(mesh))
        found["of_one"] = is_that_of(state, 40)

    def fails():
        raise OSError(f"only process {process} knows")

    try:
        processes.from_main_process(fails)
    except (InputError, OSError) as error:
        found["error"] = [type(error).__name__, str(error)]
    found["problem"] = processes.first_error("my own" if process == 1 else None, "read it")
    print(json.dumps(found))
    jax.distributed.shutdown()


@pytest.fixture(scope="module")
def one_device():
    """A mesh of one local device."""
    return Mesh(np.array(jax.devices()[:1]), ("data",))


@pytest.fixture(scope="module")
def both(tmp_path_factory, one_device):
    """The folder, the results of each process, and both standard errors."""
    folder = tmp_path_factory.mktemp("processes")
    with Checkpoints(folder / "one", CONFIG, writing=True) as checkpoints:
        checkpoints.save(state_at(40, one_device), {"position": 40})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(process), str(port), str(folder)],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in (0, 1)
    ]
    try:
        finished = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    errors = "".join(err for _, err in finished)
    assert [process.returncode for process in started] == [0, 0], errors
    return folder, [json.loads(out.splitlines()[-1]) for out, _ in finished], errors


@pytest.mark.slow
def test_two_processes_keep_and_restore_the_same(both):
    _, found, _ = both
    for process in found:
        assert process["kept"] == [20, 30]
        assert process["restored"]
        assert process["meta"] == {"position": 20}
        assert process["left"] == [20]
        assert process["best"] == 20
        assert process["best_params"]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_set_aside_once_and_reported(both):
    folder, _, errors = both
    names = {path.name for path in (folder / "two" / "checkpoints").iterdir()}
    assert names == {"20", "30", "damaged-30", "digests"}
    assert "step 30: file " in errors
    assert "does not match its digest; not used" in errors


@pytest.mark.slow
def test_one_process_restores_a_save_of_two(both, one_device):
    folder, _, _ = both
    with Checkpoints(folder / "two", CONFIG, writing=True) as checkpoints:
        state, meta = checkpoints.restore(abstract_on(one_device))
    assert is_that_of(state, 30)
    assert meta == {"position": 30}


@pytest.mark.slow
def test_two_processes_restore_a_save_of_one(both):
    _, found, _ = both
    assert all(process["of_one"] for process in found)


@pytest.mark.slow
def test_an_error_in_process_0_stops_both_and_one_of_any_process_is_reported_in_all(both):
    _, (first, second), _ = both
    assert first["error"] == ["OSError", "only process 0 knows"]
    assert second["error"] == ["InputError", "only process 0 knows"]
    assert first["problem"] == "process 1 cannot read it"
    assert second["problem"] == "my own"


def test_with_one_process_calls_return_at_once():
    assert processes.from_main_process(lambda: {"a": [1, None]}) == {"a": [1, None]}
    assert processes.first_error("x", "do it") == "x"
    assert processes.first_error(None, "do it") is None
    with pytest.raises(OSError, match="as it is"):
        processes.from_main_process(lambda: (_ for _ in ()).throw(OSError("as it is")))


if __name__ == "__main__":
    one_of_two(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]))
