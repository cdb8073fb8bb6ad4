# SPDX-License-Identifier: Apache-2.0
"""What is saved comes back bit for bit; what is damaged is named, set aside and never used."""

import dataclasses
import hashlib
import json
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer import optimizers
from transformer.checkpoints import Checkpoints, average_params
from transformer.config import OptimizerConfig, TrainingConfig
from transformer.errors import InputError
from transformer.training import TrainState

OPTIMIZER = optax.adam(1e-3)
OPTIMIZERS = ("adam", "adafactor", "muon", "schedule_free")
"""Those whose states have different shapes."""
KEEP_ALL = TrainingConfig(keep_last=9)


def state_at(step):
    """A state of three leaves whose every number depends on the step.

    The kernel is too large to be held in the nodes of the database, which have checksums.
    """
    keys = jax.random.split(jax.random.key(step), 7)
    params = {
        "encoder": {
            "kernel": jax.random.uniform(keys[0], (30, 40)),
            "bias": jnp.arange(4.0) + step,
        },
        "scale": jax.random.uniform(keys[1], ()),
    }
    gradients = jax.tree.map(lambda leaf: leaf * 0.1 + step, params)
    _, opt_state = OPTIMIZER.update(gradients, OPTIMIZER.init(params))
    return TrainState(jnp.asarray(step, jnp.int32), params, opt_state, keys[2])


def meta_at(step):
    """What is saved beside it."""
    return {"seconds": step / 3, "train_loss": None, "validation": {"nll": 1.5, "text": "für"}}


@pytest.fixture(scope="module")
def abstract():
    """Shapes, dtypes and places of the state."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), state_at(0)
    )


def save(workdir, steps, keep_last=9, nll=None):
    """Saves the states of these steps; `nll` maps a step to its validation, if it had one."""
    config = TrainingConfig(keep_last=keep_last)
    with Checkpoints(workdir, config, writing=True) as checkpoints:
        for step in steps:
            metrics = {"nll": nll[step]} if step in (nll or {}) else None
            checkpoints.save(state_at(step), meta_at(step), metrics)


def restored(workdir, abstract):
    """(state, meta) as a training that starts would have them."""
    with Checkpoints(workdir, KEEP_ALL, writing=True) as checkpoints:
        return checkpoints.restore(abstract)


def best_params(workdir, abstract, average=None):
    """Parameters as an app that reads would have them."""
    with Checkpoints(workdir, KEEP_ALL) as checkpoints:
        return checkpoints.restore_params(abstract.params, average)


def bits(tree):
    """Every leaf's dtype, shape and bytes, random keys included."""

    def of(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        leaf = np.asarray(leaf)
        return leaf.dtype.name, leaf.shape, leaf.tobytes()

    return jax.tree.map(of, tree)


def steps_in(workdir):
    """The steps that have a directory."""
    paths = (workdir / "checkpoints").iterdir()
    return sorted(int(path.name) for path in paths if path.name.isdigit())


def contents(workdir):
    """The digest of every file, by its path."""
    return {
        str(path.relative_to(workdir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in workdir.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def three(tmp_path, saved_three):
    """A workdir with the intact steps 10, 20 and 30, of which 10 is the best."""
    return shutil.copytree(saved_three, tmp_path / "run")


@pytest.fixture(scope="module")
def saved_three(tmp_path_factory):
    """What `three` copies."""
    workdir = tmp_path_factory.mktemp("three")
    save(workdir, (10, 20, 30), nll={10: 1.0, 20: 3.0, 30: 2.0})
    return workdir


def flip(workdir, step):
    """Flips one bit in the middle of the largest file of a checkpoint's numbers."""
    files = (workdir / "checkpoints" / str(step) / "params").rglob("d/*")
    largest = max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    return "is not what was written"


def truncate(workdir, step):
    """Cuts a file of the optimizer's moments in half."""
    folder = workdir / "checkpoints" / str(step) / "progress"
    path = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return "is not what was written"


def lose(workdir, step):
    """Removes the meta file."""
    (workdir / "checkpoints" / str(step) / "meta" / "metadata").unlink()
    return "file meta/metadata is missing"


def digests(text):
    """Overwrites the file of digests."""

    def damage(workdir, step):
        path = workdir / "checkpoints" / "digests" / f"{step}.json"
        path.write_bytes(text)
        return f"digests/{step}.json is not what was written"

    return damage


DAMAGES = {
    "a flipped bit": flip,
    "a file cut short": truncate,
    "a file missing": lose,
    "digests empty": digests(b""),
    "digests cut short": digests(b'{"params/_METADATA": "ab'),
    "digests not text": digests(b"\xff\xfe{}"),
    "digests not an object": digests(b"[]"),
}
damaged = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())


def test_a_state_comes_back_bit_for_bit_with_its_meta(tmp_path, abstract):
    save(tmp_path, [7])
    state, meta = restored(tmp_path, abstract)
    assert bits(state) == bits(state_at(7))
    assert meta == meta_at(7)
    assert jax.random.uniform(state.rng) == jax.random.uniform(state_at(7).rng)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_field_of_the_state_comes_back(tmp_path, name):
    config = OptimizerConfig(name=name, schedule="constant")
    optimizer = optimizers.build(config, d_model=4, steps=10)
    params = {"kernel": jnp.arange(24.0).reshape(4, 6), "scale": jnp.ones(6)}
    gradients = jax.tree.map(lambda leaf: 0.1 * leaf + 1, params)
    _, opt_state = optimizer.update(gradients, optimizer.init(params), params)
    values = {
        "step": jnp.int32(7),
        "params": params,
        "opt_state": opt_state,
        "rng": jax.random.key(3),
        "average": jax.tree.map(lambda leaf: leaf / 3, params),
        "skipped": jnp.int32(2),
    }
    fields = {field.name for field in dataclasses.fields(TrainState)}
    assert fields <= values.keys(), "a new field must be saved too"
    state = TrainState(**{field: values[field] for field in fields})
    with Checkpoints(tmp_path, KEEP_ALL, writing=True) as checkpoints:
        checkpoints.save(state, {})
    found, _ = restored(tmp_path, jax.eval_shape(lambda: state))
    assert bits(found) == bits(state)


def test_the_newest_is_restored_though_another_is_the_best(three, abstract):
    state, meta = restored(three, abstract)
    assert bits(state) == bits(state_at(30))
    assert meta == meta_at(30)


def test_nothing_saved_is_nothing_restored(tmp_path, abstract):
    assert restored(tmp_path, abstract) is None


def test_the_parameters_are_those_of_the_best_validation(three, abstract):
    assert bits(best_params(three, abstract)) == bits(state_at(10).params)


def test_without_validation_the_newest_parameters_are_the_best(tmp_path, abstract):
    save(tmp_path, [1, 2])
    assert bits(best_params(tmp_path, abstract)) == bits(state_at(2).params)


def test_the_last_and_the_best_are_kept_and_the_rest_deleted(tmp_path, abstract):
    nll = {1: 5.0, 2: 1.0, 3: 4.0, 4: 3.0, 5: 2.0}
    save(tmp_path, range(1, 6), keep_last=2, nll=nll)
    assert steps_in(tmp_path) == [2, 4, 5]
    kept = sorted(path.name for path in (tmp_path / "checkpoints" / "digests").iterdir())
    assert kept == ["2.json", "4.json", "5.json"]
    assert bits(best_params(tmp_path, abstract)) == bits(state_at(2).params)


def test_a_better_one_takes_the_place_of_the_best(tmp_path):
    save(tmp_path, [1, 2, 3, 4], keep_last=1, nll={1: 2.0, 2: 1.0, 3: 3.0, 4: 3.0})
    assert steps_in(tmp_path) == [2, 4]
    save(tmp_path, [5, 6], keep_last=1, nll={5: 0.5, 6: 3.0})
    assert steps_in(tmp_path) == [5, 6]


def test_the_best_is_still_known_after_a_restart(tmp_path, abstract):
    save(tmp_path, [1, 2], keep_last=1, nll={1: 1.0, 2: 2.0})
    save(tmp_path, [3, 4], keep_last=1, nll={3: 3.0, 4: 4.0})
    assert steps_in(tmp_path) == [1, 4]
    assert bits(best_params(tmp_path, abstract)) == bits(state_at(1).params)


def test_one_without_validation_is_not_the_best(tmp_path, abstract):
    save(tmp_path, [1, 2, 3], keep_last=1, nll={1: 9.0})
    assert steps_in(tmp_path) == [1, 3]
    assert bits(best_params(tmp_path, abstract)) == bits(state_at(1).params)


def test_a_step_that_is_saved_already_stays_as_it_is(three):
    before = contents(three)
    save(three, [30])
    assert contents(three) == before


def test_averaging_by_hand():
    averaged = average_params(
        [{"a": jnp.array([1.0, 2.0]), "b": jnp.array(x)} for x in (1.0, 2.0, 6.0)]
    )
    np.testing.assert_array_equal(averaged["a"], [1.0, 2.0])
    assert averaged["b"] == 3.0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_last_checkpoints_are_averaged(three, abstract, count):
    averaged = best_params(three, abstract, average=count)
    params = [state_at(step).params for step in (30, 20, 10)[:count]]
    expected = jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), averaged, expected)


@pytest.mark.parametrize("count", [0, -1, 4])
def test_averaging_other_than_what_is_there_names_both_numbers(three, abstract, count):
    with pytest.raises(InputError) as raised:
        best_params(three, abstract, average=count)
    message = str(raised.value)
    assert f"--average={count}" in message
    assert "holds 3 checkpoints" in message
    assert "training.keep_last" in message


@damaged
def test_a_damaged_newest_is_named_set_aside_and_the_one_before_used(
    three, abstract, damage, caplog
):
    problem = damage(three, 30)
    with caplog.at_level(logging.WARNING, logger="transformer"):
        state, meta = restored(three, abstract)
    assert bits(state) == bits(state_at(20))
    assert meta == meta_at(20)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "step 30" in warning
    assert str(three / "checkpoints") in warning
    assert problem in warning
    assert steps_in(three) == [10, 20]
    assert (three / "checkpoints" / "damaged-30").is_dir()


def test_the_step_of_a_damaged_checkpoint_can_be_saved_and_restored_again(three, abstract):
    flip(three, 30)
    with Checkpoints(three, KEEP_ALL, writing=True) as checkpoints:
        checkpoints.restore(abstract)
        checkpoints.save(state_at(30), meta_at(30), {"nll": 0.5})
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(30))
    assert bits(best_params(three, abstract)) == bits(state_at(30).params)


def test_a_step_may_be_damaged_twice(three, abstract):
    for _ in range(2):
        flip(three, 30)
        with Checkpoints(three, KEEP_ALL, writing=True) as checkpoints:
            state, _ = checkpoints.restore(abstract)
            assert bits(state) == bits(state_at(20))
            checkpoints.save(state_at(30), meta_at(30))
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(30))


def test_several_damaged_ones_are_all_set_aside(three, abstract):
    flip(three, 30)
    truncate(three, 20)
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(10))
    assert steps_in(three) == [10]


def test_a_file_too_many_is_a_damage(three, abstract):
    (three / "checkpoints" / "30" / "params" / "stray").write_text("?")
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(20))


def test_without_digests_what_can_be_read_is_used_with_a_warning(three, abstract, caplog):
    shutil.rmtree(three / "checkpoints" / "digests")
    assert bits(best_params(three, abstract)) == bits(state_at(10).params)
    assert "that of step 10 is used although it cannot be verified" in caplog.text
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(30))
    assert "that of step 30 is used although it cannot be verified" in caplog.text
    averaged = best_params(three, abstract, average=1)
    assert bits(averaged) == bits(state_at(30).params)


def test_damaged_digests_alone_make_no_run_unusable(tmp_path, abstract, caplog):
    save(tmp_path, [10])
    (tmp_path / "checkpoints" / "digests" / "10.json").write_text("{")
    state, _ = restored(tmp_path, abstract)
    assert bits(state) == bits(state_at(10))
    assert "digests/10.json is not what was written" in caplog.text
    assert "step 10 is used although it cannot be verified" in caplog.text


def test_what_is_known_to_be_damaged_is_not_used_even_if_it_is_all_there_is(tmp_path, abstract):
    save(tmp_path, [10])
    flip(tmp_path, 10)
    with pytest.raises(InputError, match="step 10: file .* is not what was written"):
        restored(tmp_path, abstract)


def test_digests_that_changed_places_are_both_noticed(three, abstract, caplog):
    folder = three / "checkpoints" / "digests"
    for old, new in (("20.json", "x"), ("30.json", "20.json"), ("x", "30.json")):
        (folder / old).rename(folder / new)
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(10))
    assert "step 20: digests/20.json" in caplog.text
    assert "step 30: digests/30.json" in caplog.text


def worse_metrics(three):
    """The best checkpoint's score is no longer the best."""
    path = three / "checkpoints" / "10" / "metrics" / "metrics"
    path.write_text(path.read_text().replace("1.0", "9.0"))


def no_metrics(three):
    """The best checkpoint's score is gone."""
    shutil.rmtree(three / "checkpoints" / "10" / "metrics")


@pytest.mark.parametrize("harm", [worse_metrics, no_metrics])
def test_the_best_never_changes_without_a_word(three, abstract, caplog, harm):
    harm(three)
    with Checkpoints(three, KEEP_ALL) as checkpoints:
        assert checkpoints.best() == 30
    [warning] = [record.getMessage() for record in caplog.records]
    assert "step 10: file metrics/metrics is " in warning
    assert bits(best_params(three, abstract)) == bits(state_at(30).params)


def test_damaged_metrics_do_not_make_a_worse_one_the_best(three):
    path = three / "checkpoints" / "30" / "metrics" / "metrics"
    path.write_text(path.read_text().replace("2.0", "0.0"))
    with Checkpoints(three, KEEP_ALL) as checkpoints:
        assert checkpoints.best() == 10


def test_a_damaged_one_is_set_aside_where_another_would_be_deleted(three):
    worse_metrics(three)
    save(three, [40], keep_last=1, nll={40: 0.5})
    assert steps_in(three) == [40]
    assert (three / "checkpoints" / "damaged-10").is_dir()
    kept = sorted(path.name for path in (three / "checkpoints" / "digests").iterdir())
    assert kept == ["40.json"]


def test_a_removed_checkpoint_is_missed(three, abstract, caplog):
    shutil.rmtree(three / "checkpoints" / "30")
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(20))
    assert "the checkpoint of step 30 is not there" in caplog.text


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_is_not_the_best(tmp_path, score):
    save(tmp_path, [1, 2, 3], nll={1: 5.0, 2: -score, 3: score})
    with Checkpoints(tmp_path, KEEP_ALL) as checkpoints:
        assert checkpoints.best() == 1


def test_the_directory_may_be_named_by_text(three, abstract):
    assert bits(best_params(str(three), abstract)) == bits(state_at(10).params)


def test_without_digests_what_cannot_be_read_is_not_used(three, abstract, caplog):
    shutil.rmtree(three / "checkpoints" / "digests")
    for path in (three / "checkpoints" / "30" / "params").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    state, _ = restored(three, abstract)
    assert bits(state) == bits(state_at(20))
    assert "checkpoint of step 30" in caplog.text


@damaged
def test_a_reader_passes_over_a_damaged_best_one(three, abstract, damage, caplog):
    problem = damage(three, 10)
    assert bits(best_params(three, abstract)) == bits(state_at(30).params)
    assert "step 10" in caplog.text
    assert problem in caplog.text


def test_damaged_progress_keeps_its_parameters_from_being_used(three, abstract):
    truncate(three, 10)
    assert bits(best_params(three, abstract)) == bits(state_at(30).params)


def test_none_intact_is_an_error_that_names_every_problem(three, abstract):
    for step, damage in ((10, flip), (20, truncate), (30, lose)):
        damage(three, step)
    before = contents(three)
    for read in (restored, best_params):
        with pytest.raises(InputError, match="no intact checkpoint left") as raised:
            read(three, abstract)
        message = str(raised.value)
        assert all(f"step {step}: file " in message for step in (10, 20, 30))
        assert str(three / "checkpoints") in message
        assert "restore the directory from a copy" in message
    assert contents(three) == before, "what may still be repaired by hand must stay"


def test_an_average_over_a_damaged_one_is_refused_by_its_name(three, abstract):
    flip(three, 20)
    with pytest.raises(InputError, match="step 20"):
        best_params(three, abstract, average=2)
    best_params(three, abstract, average=1)


def test_another_shape_is_an_input_error(three, abstract):
    wider = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*leaf.shape, 2), leaf.dtype, sharding=leaf.sharding),
        abstract.params,
    )
    with Checkpoints(three, KEEP_ALL) as checkpoints, pytest.raises(InputError, match="shape"):
        checkpoints.restore_params(wider)


def test_a_reader_changes_nothing_on_disk(three, abstract):
    flip(three, 10)
    before = contents(three)
    best_params(three, abstract)
    best_params(three, abstract, average=2)
    with Checkpoints(three, KEEP_ALL) as checkpoints:
        assert checkpoints.steps() == [10, 20, 30]
        assert checkpoints.best() == 10
    assert contents(three) == before


def test_a_workdir_without_checkpoints_is_an_input_error_for_a_reader(tmp_path, abstract):
    with pytest.raises(InputError, match="has no checkpoints; train first") as raised:
        best_params(tmp_path, abstract)
    assert str(tmp_path) in str(raised.value)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="no intact checkpoint left"):
        best_params(tmp_path, abstract)


def test_digests_name_every_file_of_a_checkpoint(three):
    folder = three / "checkpoints" / "30"
    record = json.loads((three / "checkpoints" / "digests" / "30.json").read_text())
    assert record["step"] == 30
    # Older releases of Orbax do not write the second.
    written_last = {"_CHECKPOINT_METADATA", "commit_success.txt"}
    assert contents(folder).keys() - record["files"].keys() <= written_last
    assert record["files"].items() <= contents(folder).items()
    items = {name.split("/")[0] for name in record["files"]}
    assert items == {"params", "progress", "meta", "metrics"}


# Running averages, and the best by another score.


def averaged(state):
    """The same state with an average that is not its parameters."""
    return state.replace(average=jax.tree.map(lambda leaf: leaf + 0.5, state.params))


def test_a_running_average_is_what_is_used_and_both_come_back(tmp_path, abstract):
    state = averaged(state_at(10))
    with Checkpoints(tmp_path, KEEP_ALL, writing=True) as checkpoints:
        checkpoints.save(state, meta_at(10))
    assert bits(best_params(tmp_path, abstract)) == bits(state.average)
    found, _ = restored(tmp_path, abstract.replace(average=abstract.params))
    assert bits(found) == bits(state)


def three_by_bleu(tmp_path, config):
    """Checkpoints of steps 10 to 70, of which 30 has the best BLEU and 50 the best NLL."""
    with Checkpoints(tmp_path, config, writing=True) as checkpoints:
        for step in range(10, 80, 10):
            metrics = {"nll": abs(step - 50.0), "bleu": -abs(step - 30.0)}
            checkpoints.save(state_at(step), meta_at(step), metrics)


@pytest.mark.parametrize(("best_by", "best"), [("nll", 50), ("bleu", 30)])
def test_the_best_is_the_best_by_the_score_that_the_config_names(tmp_path, best_by, best):
    config = TrainingConfig(keep_last=1, best_by=best_by)
    three_by_bleu(tmp_path, config)
    with Checkpoints(tmp_path, config) as checkpoints:
        assert checkpoints.best() == best
    assert steps_in(tmp_path) == sorted({best, 70})


def test_neighbours_of_the_best_are_kept_and_averaged(tmp_path, abstract):
    config = TrainingConfig(keep_last=1, best_by="bleu", keep_around_best=1)
    three_by_bleu(tmp_path, config)
    assert steps_in(tmp_path) == [20, 30, 40, 70]
    with Checkpoints(tmp_path, config) as checkpoints:
        found = checkpoints.restore_params(abstract.params, 3, "best")
        last = checkpoints.restore_params(abstract.params, 3)
    expected = average_params([state_at(step).params for step in (20, 30, 40)])
    assert bits(found) == bits(expected)
    assert bits(last) == bits(average_params([state_at(step).params for step in (30, 40, 70)]))
