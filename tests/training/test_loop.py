# SPDX-License-Identifier: Apache-2.0
"""Between training steps: skipped steps are counted and kept, and too many end the training."""

import json
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from test_train import config  # noqa: F401 - a fixture

from experiments.console.progress import TrainingProgress
from experiments.training import compile_ahead, compose, metrics_log
from experiments.training.monitor import Monitor, Totals, validation_losses
from experiments.training.profiling import Profile
from transformer.batch import Batch
from transformer.checkpoints.manager import Checkpoints
from transformer.errors import InputError
from transformer.provenance import provenance
from transformer.training.losses import Sums


@pytest.fixture(scope="module")
def experiment(config, tmp_path_factory):  # noqa: F811
    """A tiny one, which validates every third step and reports every second."""
    training = config.training.replace(
        steps=12, validate_every=3, max_skipped=3, validation_sentences=2
    )
    config = config.replace(
        training=training,
        logging=config.logging.replace(log_every=2, samples=0),
        decode=config.decode.replace(beams=1, max_length=4),
    )
    built = compose.build(config, tmp_path_factory.mktemp("loop"))
    built.__dict__["first_state"] = built.init_state()
    return built


def train(experiment, directory, skipping, steps=None):
    """The monitor of a training from a fresh start; these steps are not finite."""

    @jax.jit
    def step(state, batch):
        del batch
        finite = ~jnp.isin(state.step + 1, jnp.array([*skipping, -1]))
        sums = jax.tree.map(lambda _: jnp.where(finite, 2.0, 0.0), Sums.zero())
        sums = sums.replace(gradient_norm=finite * (state.step + 1.0))
        return state.replace(step=state.step + 1), sums

    directory, training = epath.Path(directory), experiment.config.training
    state = experiment.__dict__["first_state"]
    with (
        Checkpoints(directory, training, writing=True) as checkpoints,
        metrics_log.MetricsLog(directory, 0, False) as log,
        TrainingProgress(0, training.steps) as progress,
    ):
        monitor = Monitor(experiment, 0, Totals(), directory, checkpoints, log, progress)
        for index in range(steps or training.steps):
            state, sums = step(state, experiment.data.train[index])
            monitor.after_step(state, sums)
    return monitor


def test_on_a_cpu_a_checkpoint_is_complete_before_the_next_step(experiment, tmp_path):
    with (
        Checkpoints(tmp_path, experiment.config.training, writing=True) as checkpoints,
        metrics_log.MetricsLog(tmp_path, 0, False) as log,
        TrainingProgress(0, 1) as progress,
    ):
        monitor = Monitor(experiment, 0, Totals(), tmp_path, checkpoints, log, progress)
        monitor.save(experiment.__dict__["first_state"])
        assert checkpoints.steps() == [0]


def test_the_first_checkpoint_alone_is_read_back(experiment, tmp_path, monkeypatch):
    read_back = []
    monkeypatch.setattr(Checkpoints, "require_readable", lambda self, _: read_back.append(self))
    train(experiment, tmp_path, [])
    assert len(read_back) == 1


@pytest.fixture
def compilations(caplog):
    """The log, with the compilations of all threads; nothing is compiled yet."""
    jax.clear_caches()
    jax.config.update("jax_log_compiles", True)
    yield caplog
    jax.config.update("jax_log_compiles", False)


@pytest.mark.slow
def test_what_is_compiled_ahead_is_not_compiled_again_and_its_time_is_not_training_time(
    experiment, tmp_path, compilations
):
    """`jax.jit` has to find what `lower().compile()` compiled, or every shape compiles twice."""
    state, batch = experiment.init_state(), experiment.put_batch(experiment.data.train[0])
    with (
        Checkpoints(tmp_path, experiment.config.training, writing=True) as checkpoints,
        metrics_log.MetricsLog(tmp_path, 0, False) as log,
        TrainingProgress(0, 1) as progress,
    ):
        began = time.monotonic()
        monitor = Monitor(experiment, 0, Totals(), tmp_path, checkpoints, log, progress)
        monitor.compile_ahead(state, batch)
        compiling = time.monotonic() - began
        assert "Compiling jit(train_step)" in compilations.text
        assert "Compiling jit(eval_step)" in compilations.text
        compilations.clear()
        monitor.compile_ahead(state, batch)
        validation_losses(experiment, experiment.model_params(state))
        state, sums = experiment.train_step(state, batch)
        assert "Compiling jit(train_step)" not in compilations.text
        assert "Compiling jit(eval_step)" not in compilations.text
        monitor.after_step(state, sums)
        monitor.save(state)
        elapsed = time.monotonic() - began
    assert float(sums.tokens) == monitor.totals.tokens > 0
    assert 0 < monitor.totals.step_seconds < elapsed - 0.9 * compiling


@pytest.mark.parametrize(
    ("threads", "steps", "evaluations"),
    [(1, [(4, 8), (16, 2)], []), (2, [(4, 8), (8, 4), (16, 2)], [(4, 8)])],
)
def test_idle_cores_compile_what_is_needed_later(
    experiment, tmp_path, monkeypatch, threads, steps, evaluations
):
    compiled, evaluated = [], []
    experiment_class, batches_class = type(experiment), type(experiment.data.train)

    def lowering_to(shapes):
        return lambda _, *shape: SimpleNamespace(compile=lambda: shapes.append(shape))

    monkeypatch.setattr(experiment_class, "lower_step", lowering_to(compiled))
    monkeypatch.setattr(experiment_class, "lower_eval_step", lowering_to(evaluated))
    monkeypatch.setattr(batches_class, "shapes_between", lambda *_: [(8, 4), (4, 8)])
    monkeypatch.setattr(compile_ahead, "_threads", lambda _: threads)
    with TrainingProgress(0, 1) as progress:
        monitor = Monitor(experiment, 0, Totals(), tmp_path, None, None, progress)
        for shape in [(4, 8), (4, 8), (16, 2)]:
            ids = np.zeros(shape, np.int32)
            monitor.compile_ahead(experiment.__dict__["first_state"], Batch(ids, ids))
    assert sorted(compiled) == steps
    assert evaluated == evaluations


def test_skipped_steps_are_counted_and_reported(experiment, tmp_path, capsys):
    totals = train(experiment, tmp_path, skipping=(2, 3, 5)).totals
    assert (totals.skipped, totals.skipped_in_a_row) == (3, 0)
    assert totals.tokens == 9 * 2
    printed = capsys.readouterr().err
    assert [f"step {step} is skipped" in printed for step in (1, 2, 3, 4, 5, 6)] == [
        *(False, True, True, False, True, False)
    ]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    counts = [line.get("skipped", 0) for line in lines if line["split"] == "train"]
    assert counts == [1, 2, 2, 3, 3, 3, 3, 3]  # after the steps 2, 3, 4, 6, 8, 9, 10, 12


def test_the_mean_gradient_norm_of_the_steps_that_counted_is_logged(experiment, tmp_path):
    """The norm of step n is n; step 3 and both of the steps 7 and 8 are skipped."""
    train(experiment, tmp_path, skipping=(3, 7, 8))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    norms = {line["step"]: line.get("gradient_norm") for line in lines if line["split"] == "train"}
    assert norms == {2: 1.5, 3: None, 4: 4.0, 6: 5.5, 8: None, 9: 9.0, 10: 10.0, 12: 11.5}


def test_the_batch_of_a_skipped_step_is_kept_as_text(experiment, tmp_path):
    train(experiment, tmp_path, skipping=(5,))
    [kept] = (tmp_path / "skipped").iterdir()
    assert kept.name == "5.tsv"
    pairs = [row.split("\t") for row in kept.read_text().splitlines()]
    batch, vocabularies = experiment.data.train[4], experiment.data.vocabularies
    sources = [ids[ids != 0].tolist() for ids in batch.source if ids.any()]
    assert vocabularies.source.encode([source for source, _ in pairs]) == sources
    assert all(source.upper() == target for source, target in pairs)


def test_too_many_skipped_in_a_row_end_training_and_keep_the_last_checkpoint(experiment, tmp_path):
    """Seven is one after a validation; the steps from there on are not saved."""
    with pytest.raises(InputError, match="step 9 is the last of 3 in a row") as error:
        train(experiment, tmp_path, skipping=(7, 8, 9, 10))
    assert "the checkpoint of step 6 is intact" in str(error.value)
    with Checkpoints(tmp_path, experiment.config.training) as checkpoints:
        assert checkpoints.steps() == [3, 6]


def test_a_training_in_which_no_step_counted_has_no_result(experiment, tmp_path):
    monitor = train(experiment, tmp_path, skipping=(1, 2), steps=2)
    with pytest.raises(InputError, match="all 2 steps were skipped") as error:
        monitor.result()
    assert str(tmp_path / "skipped") in str(error.value)


@pytest.mark.slow
def test_a_share_of_skipped_steps_above_one_percent_is_in_the_result_and_reported(
    experiment, tmp_path, capsys
):
    result = train(experiment, tmp_path, skipping=(5,)).result()
    assert (result["step"], result["skipped"]) == (12, 1)
    assert "warning: 1 of 12 steps (8.3%) were skipped" in capsys.readouterr().err
    monitor = train(experiment, tmp_path / "finite", skipping=())
    assert monitor.result()["skipped"] == 0
    monitor.totals.skipped, monitor.step = 1, 100
    monitor.result()
    assert "were skipped" not in capsys.readouterr().err


def test_a_result_names_what_made_it(experiment, tmp_path):
    result = train(experiment, tmp_path, skipping=()).result()
    assert result["provenance"] == provenance()


def test_skipped_steps_in_a_row_are_counted_over_a_restart(experiment, tmp_path):
    assert train(experiment, tmp_path, skipping=(2, 3), steps=3).totals.skipped_in_a_row == 2
    with Checkpoints(tmp_path, experiment.config.training) as checkpoints:
        _, saved = checkpoints.restore(experiment.abstract_state)
    totals = Totals(**saved)
    assert (totals.skipped, totals.skipped_in_a_row) == (2, 2)


def test_a_validation_that_is_not_finite_ends_the_training_before_it_is_saved(
    experiment, tmp_path, monkeypatch
):
    nothing = Sums(*(jnp.asarray(value) for value in (jnp.nan, jnp.nan, 0.0, 4.0)))
    monkeypatch.setitem(experiment.__dict__, "eval_step", lambda params, batch: nothing)
    with pytest.raises(InputError, match="the validation loss is nan after step 3"):
        train(experiment, tmp_path, skipping=())
    with Checkpoints(tmp_path, experiment.config.training, writing=True) as checkpoints:
        assert checkpoints.steps() == []


def test_a_trace_of_no_step_is_refused(tmp_path):
    with pytest.raises(InputError, match="--profile=0: trace at least one step"):
        Profile(0, tmp_path, print)


def test_a_trace_cannot_go_to_an_object_store():
    with pytest.raises(InputError, match="cannot write to gs://bucket/profile"):
        Profile(1, "gs://bucket/profile", print)


def test_tensorboard_shows_the_steps_after_a_kill_once(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, last, loss in ((0, 4, 1.0), (2, 5, 2.0)):
        monkeypatch.setattr(metrics_log.time, "time", lambda first=first: 1e9 + first)
        with metrics_log.MetricsLog(epath.Path(tmp_path), first, tensorboard=True) as log:
            for step in range(first + 1, last + 1):
                log.write(step, "train", {"loss": loss})
    shown = EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in shown] == [
        *[(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    ]
