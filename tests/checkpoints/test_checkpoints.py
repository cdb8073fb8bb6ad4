# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring bit for bit, retention, the best checkpoint, and averages."""

import dataclasses
import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saving import (
    KEEP_ALL,
    OPTIMIZERS,
    best_params,
    bits,
    contents,
    meta_at,
    restored,
    save,
    state_at,
    steps_in,
)

from transformer.checkpoints import selection
from transformer.checkpoints.identity import Identity
from transformer.checkpoints.manager import Checkpoints, average_params
from transformer.config import OptimizerConfig, TrainingConfig, TransformerConfig
from transformer.errors import InputError
from transformer.models import protocol
from transformer.nn.parameters import Parameter
from transformer.training import optimizers
from transformer.training.step import TrainState


def test_a_state_and_its_meta_are_restored_bit_for_bit(tmp_path, abstract):
    save(tmp_path, [7])
    state, meta = restored(tmp_path, abstract)
    assert bits(state) == bits(state_at(7))
    assert meta == meta_at(7)
    assert jax.random.uniform(state.rng) == jax.random.uniform(state_at(7).rng)


def test_a_path_that_orbax_would_take_for_a_pattern_is_refused(tmp_path):
    for name in ("run[1]", "run*", "a?b/run"):
        with pytest.raises(InputError, match="which Orbax takes for a pattern of names; use a dir"):
            Checkpoints(tmp_path / name, KEEP_ALL, writing=True)


def test_the_newest_parameters_are_read_back(tmp_path, abstract):
    save(tmp_path, [3, 7])
    with Checkpoints(tmp_path, KEEP_ALL, writing=True) as checkpoints:
        checkpoints.require_readable(abstract.weights)
        with pytest.raises(InputError, match="step 7: "):
            checkpoints.require_readable(abstract.weights | {"more": abstract.weights["scale"]})


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_field_of_the_state_is_restored(tmp_path, name):
    config = OptimizerConfig(name=name, schedule="constant")
    params = {"kernel": jnp.arange(24.0).reshape(4, 6), "scale": jnp.ones(6)}
    metadata = {
        "kernel": Parameter(params["kernel"], ("embed", "mlp"), kind="kernel", num_input_axes=1),
        "scale": Parameter(params["scale"], ("norm",), kind="scale"),
    }
    any_model = protocol.build(TransformerConfig(vocab_size=9, num_layers=1, d_model=8, d_ff=8))
    optimizer = optimizers.optimizer(any_model, config, 10, trained=metadata)
    gradients = jax.tree.map(lambda leaf: 0.1 * leaf + 1, params)
    _, opt_state = jax.jit(optimizer.update)(gradients, jax.jit(optimizer.init)(params), params)
    values = {
        "step": jnp.int32(7),
        "params": params,
        "opt_state": opt_state,
        "rng": jax.random.key(3),
        "average": jax.tree.map(lambda leaf: leaf / 3, params),
        "skipped": jnp.int32(2),
    }
    # The base of adapters is constant, and kept once in the workdir.
    fields = {field.name for field in dataclasses.fields(TrainState)} - {"base"}
    assert fields <= values.keys(), "a new field must be saved too"
    state = TrainState(**{field: values[field] for field in fields})
    with Checkpoints(tmp_path, KEEP_ALL, writing=True) as checkpoints:
        checkpoints.save(state, {})
    found, _ = restored(tmp_path, jax.eval_shape(lambda: state))
    assert bits(found) == bits(state)


def test_the_newest_state_is_restored_and_the_best_parameters_are_loaded(three, abstract):
    state, meta = restored(three, abstract)
    assert bits(state) == bits(state_at(30))
    assert meta == meta_at(30)
    for workdir in (three, str(three)):
        assert bits(best_params(workdir, abstract)) == bits(state_at(10).params)


def test_without_validation_the_newest_parameters_are_the_best(tmp_path, abstract):
    assert restored(tmp_path, abstract) is None, "an empty workdir"
    save(tmp_path, [1, 2])
    assert bits(best_params(tmp_path, abstract)) == bits(state_at(2).params)


def test_the_last_and_the_best_are_kept_and_the_rest_deleted(tmp_path, abstract):
    nll = {1: 5.0, 2: 1.0, 3: 4.0, 4: 3.0, 5: 2.0}
    save(tmp_path, range(1, 6), keep_last=2, nll=nll)
    assert steps_in(tmp_path) == [2, 4, 5]
    kept = sorted(path.name for path in (tmp_path / "checkpoints" / "digests").iterdir())
    assert kept == ["2.json", "4.json", "5.json"]
    assert bits(best_params(tmp_path, abstract)) == bits(state_at(2).params)


@pytest.mark.parametrize("average", [None, 1])
def test_a_reader_whose_checkpoint_was_deleted_meanwhile_uses_those_of_now(
    tmp_path, abstract, caplog, average
):
    save(tmp_path, [1, 2], keep_last=1, nll={1: 1.0, 2: 2.0})
    with Checkpoints(tmp_path, KEEP_ALL) as reader:
        save(tmp_path, [3], keep_last=1, nll={3: 0.5})
        assert steps_in(tmp_path) == [3]
        params = reader.restore_params(abstract.params, average)
        assert reader.restored_steps == [3]
    assert bits(params) == bits(state_at(3).params)
    assert not caplog.records


# TensorStore's threads report reads that fail after the first one to a closed event loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_checkpoints_are_read_while_a_training_saves_and_deletes_them(tmp_path, abstract):
    save(tmp_path, [1], keep_last=1)
    writer = threading.Thread(target=save, args=(tmp_path, range(2, 60), 1))
    writer.start()
    steps = []
    while writer.is_alive():
        with Checkpoints(tmp_path, KEEP_ALL) as reader:
            params = reader.restore_params(abstract.params)
            [step] = reader.restored_steps
        assert bits(params) == bits(state_at(step).params)
        steps.append(step)
    writer.join()
    assert steps == sorted(steps)
    assert len(set(steps)) > 5, "otherwise nothing has been tested"
    assert steps_in(tmp_path)[-1] == 59
    gc.collect()  # Else another test has what the reads left.


def test_a_better_checkpoint_replaces_the_best(tmp_path):
    save(tmp_path, [1, 2, 3, 4], keep_last=1, nll={1: 2.0, 2: 1.0, 3: 3.0, 4: 3.0})
    assert steps_in(tmp_path) == [2, 4]
    save(tmp_path, [5, 6], keep_last=1, nll={5: 0.5, 6: 3.0})
    assert steps_in(tmp_path) == [5, 6]


def test_the_best_is_still_known_after_a_restart(tmp_path, abstract):
    save(tmp_path, [1, 2], keep_last=1, nll={1: 1.0, 2: 2.0})
    save(tmp_path, [3, 4], keep_last=1, nll={3: 3.0, 4: 4.0})
    assert steps_in(tmp_path) == [1, 4]
    assert bits(best_params(tmp_path, abstract)) == bits(state_at(1).params)


def test_a_checkpoint_without_validation_is_not_the_best(tmp_path, abstract):
    save(tmp_path, [1, 2, 3], keep_last=1, nll={1: 9.0})
    assert steps_in(tmp_path) == [1, 3]
    assert bits(best_params(tmp_path, abstract)) == bits(state_at(1).params)


def test_a_saved_step_is_not_saved_again(three):
    before = contents(three)
    save(three, [30])
    assert contents(three) == before


def test_averaging_by_hand():
    averaged = average_params(
        [{"a": jnp.array([1.0, 2.0]), "b": jnp.array(x)} for x in (1.0, 2.0, 6.0)]
    )
    np.testing.assert_array_equal(averaged["a"], [1.0, 2.0])
    assert averaged["b"] == 3.0


def test_the_last_checkpoints_are_averaged(three, abstract):
    for count in (1, 2, 3):
        averaged = best_params(three, abstract, average=count)
        params = [state_at(step).params for step in (30, 20, 10)[:count]]
        expected = jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), averaged, expected)
    for count in (0, -1, 4):
        with pytest.raises(InputError) as raised:
            best_params(three, abstract, average=count)
        words = f"--average={count}", "holds 3 checkpoints", "training.keep_last"
        assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_is_not_the_best(tmp_path, score):
    save(tmp_path, [1, 2, 3], nll={1: 5.0, 2: -score, 3: score})
    with Checkpoints(tmp_path, KEEP_ALL) as checkpoints:
        assert checkpoints.best() == 1


# The identity of the model and its vocabularies.

MODEL = TransformerConfig(num_layers=2)


def open_as(workdir, model=MODEL, source=b"one", target=b"two", writing=False):
    """The checkpoints, opened for a model with vocabularies."""
    return Checkpoints(workdir, KEEP_ALL, Identity.of(model, source, target), writing=writing)


@pytest.fixture
def identified(tmp_path):
    """A workdir with the steps 10 and 20 of `MODEL`."""
    with open_as(tmp_path, writing=True) as checkpoints:
        for step in (10, 20):
            checkpoints.save(state_at(step), meta_at(step))
    return tmp_path


def test_a_state_is_restored_for_the_function_and_vocabularies_it_was_saved_with(
    identified, abstract
):
    with open_as(identified, writing=True) as checkpoints:
        state, meta = checkpoints.restore(abstract)
    assert bits(state) == bits(state_at(20))
    assert meta == meta_at(20)
    # These fields do not change the function.
    other = MODEL.replace(compute_dtype="bfloat16", attention_kernel="chunked", dropout=0.3)
    with open_as(identified, other) as checkpoints:
        assert bits(checkpoints.restore_params(abstract.params)) == bits(state_at(20).params)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": MODEL.replace(norm_epsilon=1e-5)},
            r"model.norm_epsilon is 1e-05, but checkpoint .*/20 was trained with 1e-06; leave",
        ),
        (
            {"model": MODEL.replace(d_model=64)},
            "model.d_model is 64, but checkpoint .*/20 was trained with 512",
        ),
        (
            # SHA-256 of b"three" and b"two"
            {"target": b"three"},
            "^tokenizer.model has the SHA-256 8b5b9db0c13db242..., but checkpoint .*/20 was "
            "trained with the vocabulary 3fc4ccfe745870e2...; restore tokenizer.model from a copy",
        ),
        ({"source": b"three"}, "^tokenizer.source.model has the SHA-256"),
    ],
    ids=["function", "shape", "target vocabulary", "source vocabulary"],
)
def test_parameters_of_another_model_or_vocabulary_are_refused(
    identified, abstract, change, message
):
    before = contents(identified)
    for writing in (False, True):
        with open_as(identified, **change, writing=writing) as checkpoints:
            with pytest.raises(InputError, match=message):
                checkpoints.restore_params(abstract.params)
            with pytest.raises(InputError, match=message):
                checkpoints.restore(abstract)
    with (
        open_as(identified, **change) as checkpoints,
        pytest.raises(InputError, match=message.replace("20", "10")),
    ):
        checkpoints.restore_params(abstract.params, average=2)
    assert contents(identified) == before, "nothing is damaged"


def test_checkpoints_of_earlier_versions_have_no_identity_and_are_used(three, abstract):
    with open_as(three) as checkpoints:
        assert bits(checkpoints.restore_params(abstract.params)) == bits(state_at(10).params)
        assert checkpoints.restored_steps == [10]


# The workdir.


def test_a_workdir_without_checkpoints_is_refused(tmp_path, abstract):
    with pytest.raises(InputError, match="has no checkpoints; train first") as raised:
        best_params(tmp_path, abstract)
    assert str(tmp_path) in str(raised.value)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="checkpoints holds no checkpoint yet; the first valid"):
        best_params(tmp_path, abstract)


# Running averages, and the best by another score.


def averaged(state):
    """The same state with an average that differs from its parameters."""
    return state.replace(average=jax.tree.map(lambda leaf: leaf + 0.5, state.params))


def test_the_running_average_is_loaded_and_both_are_restored(tmp_path, abstract):
    state = averaged(state_at(10))
    with Checkpoints(tmp_path, KEEP_ALL, writing=True) as checkpoints:
        checkpoints.save(state, meta_at(10))
    assert bits(best_params(tmp_path, abstract)) == bits(state.average)
    found, _ = restored(tmp_path, abstract.replace(average=abstract.params))
    assert bits(found) == bits(state)


def test_neighbours_of_a_best_that_comes_later_are_there():
    assert selection.retained([], KEEP_ALL) == []
    config = TrainingConfig(keep_last=1, keep_around_best=2)
    kept = []
    for step, nll in enumerate([5.0, 6.0, 6.0, 6.0, 6.0, 4.0, 6.0, 6.0, 6.0], start=1):
        kept = selection.retained([*kept, selection.Checkpoint(step, -nll)], config)
    assert [one.step for one in kept] == [4, 5, 6, 7, 8, 9]


def test_neighbours_of_the_best_by_bleu_are_kept_and_averaged(tmp_path, abstract):
    """Step 30 has the best BLEU and 50 the best NLL."""
    config = TrainingConfig(keep_last=1, best_by="bleu", keep_around_best=1)
    with Checkpoints(tmp_path, config, writing=True) as checkpoints:
        for step in range(10, 80, 10):
            metrics = {"nll": abs(step - 50.0), "bleu": -abs(step - 30.0)}
            checkpoints.save(state_at(step), meta_at(step), metrics)
    assert steps_in(tmp_path) == [20, 30, 40, 70]
    with Checkpoints(tmp_path, config) as checkpoints:
        assert checkpoints.best() == 30
        found = checkpoints.restore_params(abstract.params, 3, "best")
        last = checkpoints.restore_params(abstract.params, 3)
    expected = average_params([state_at(step).params for step in (20, 30, 40)])
    assert bits(found) == bits(expected)
    assert bits(last) == bits(average_params([state_at(step).params for step in (30, 40, 70)]))
