# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps that are skipped are counted, kept, and end the training in the end."""

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from test_train import config  # noqa: F401 - a fixture

from experiments import compose, logs
from experiments import trainer as loop
from experiments.profiling import WARM_UP, Profile
from transformer.checkpoints.manager import Checkpoints
from transformer.errors import InputError
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
        decode=config.decode.replace(beams=1, max_length=4, shortlist=5),
    )
    built = compose.build(config, tmp_path_factory.mktemp("loop"))
    built.__dict__["at_first"] = built.init_state()
    return built


def trainer(stack, experiment, directory, skipping, profile=None):
    """A trainer from a fresh start, whose steps of these numbers are not finite."""

    def step(state, batch):
        del batch
        finite = ~jnp.isin(state.step + 1, jnp.array([*skipping, -1]))
        sums = jax.tree.map(lambda _: jnp.where(finite, 2.0, 0.0), Sums.zero())
        return state.replace(step=state.step + 1), sums

    experiment.__dict__["train_step"] = jax.jit(step)
    directory = epath.Path(directory)
    training = experiment.config.training
    checkpoints = stack.enter_context(Checkpoints(directory, training, writing=True))
    return loop.Trainer(
        experiment,
        experiment.__dict__["at_first"],
        loop.fresh_meta(),
        0.0,
        directory,
        checkpoints,
        stack.enter_context(logs.MetricsLog(directory, 0, False)),
        stack.enter_context(logs.Progress(0, training.steps)),
        stack.enter_context(Profile(profile, directory / "profile")),
    )


def train(experiment, directory, skipping, profile=None):
    """The trainer after all its steps, closed."""
    with contextlib.ExitStack() as stack:
        made = trainer(stack, experiment, directory, skipping, profile)
        for index in range(experiment.config.training.steps):
            made.update(experiment.data.train[index])
    return made


def test_validation_translates_with_the_whole_vocabulary_since_there_is_no_lexicon_yet(
    experiment, tmp_path
):
    assert experiment.config.decode.shortlist == 5
    assert "bleu" in train(experiment, tmp_path, skipping=()).meta["validation"]


def test_skipped_steps_are_counted_logged_and_told(experiment, tmp_path, capsys):
    made = train(experiment, tmp_path, skipping=(2, 3, 5))
    assert made.meta["skipped"] == 3
    assert made.meta["skipped_in_a_row"] == 0
    assert made.meta["tokens"] == 9 * 2
    said = capsys.readouterr().err
    assert [f"step {step} is skipped" in said for step in (1, 2, 3, 4, 5, 6)] == [
        *(False, True, True, False, True, False)
    ]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    counts = [line.get("skipped", 0) for line in lines if line["split"] == "train"]
    assert counts == [1, 2, 2, 3, 3, 3, 3, 3]  # after the steps 2, 3, 4, 6, 8, 9, 10, 12


def test_the_batch_of_a_skipped_step_is_kept_as_numbers_and_as_text(experiment, tmp_path):
    train(experiment, tmp_path, skipping=(5,))
    kept = {path.name for path in (tmp_path / "skipped").iterdir()}
    assert kept == {"5.npz", "5.tsv"}
    batch = experiment.data.train[4]
    arrays = np.load(tmp_path / "skipped" / "5.npz")
    np.testing.assert_array_equal(arrays["source"], batch.source)
    np.testing.assert_array_equal(arrays["target"], batch.target)
    rows = (tmp_path / "skipped" / "5.tsv").read_text().splitlines()
    pairs = [row.split("\t") for row in rows]
    assert len(pairs) == (batch.source != 0).any(-1).sum()
    assert all(source.upper() == target for source, target in pairs)


def test_too_many_in_a_row_end_the_training_and_keep_the_last_good_checkpoint(experiment, tmp_path):
    """Seven is one after a validation; the steps from there on are not saved."""
    with pytest.raises(InputError, match="step 9 is the last of 3 in a row") as told:
        train(experiment, tmp_path, skipping=(7, 8, 9, 10))
    assert "the checkpoint of step 6 is intact" in str(told.value)
    with Checkpoints(tmp_path, experiment.config.training) as checkpoints:
        assert checkpoints.steps() == [3, 6]


def test_steps_in_a_row_are_counted_over_a_restart(experiment, tmp_path):
    with contextlib.ExitStack() as stack:
        made = trainer(stack, experiment, tmp_path, skipping=(2, 3))
        for index in range(3):
            made.update(experiment.data.train[index])
        assert made.meta["skipped_in_a_row"] == 2
    with Checkpoints(tmp_path, experiment.config.training) as checkpoints:
        _, meta = checkpoints.restore(experiment.abstract_state)
    assert (meta["skipped"], meta["skipped_in_a_row"]) == (2, 2)


def test_a_validation_that_is_not_finite_ends_the_training_before_it_is_saved(
    experiment, tmp_path, monkeypatch
):
    nothing = Sums(*(jnp.asarray(value) for value in (jnp.nan, jnp.nan, 0.0, 4.0)))
    monkeypatch.setitem(experiment.__dict__, "eval_step", lambda params, batch: nothing)
    with pytest.raises(InputError, match="the validation loss is nan after step 3"):
        train(experiment, tmp_path, skipping=())
    with Checkpoints(tmp_path, experiment.config.training, writing=True) as checkpoints:
        assert checkpoints.steps() == []


def test_a_trace_of_some_steps_is_written(experiment, tmp_path, capsys):
    train(experiment, tmp_path, skipping=(), profile=2)
    assert any((tmp_path / "profile").rglob("*.xplane.pb"))
    assert f"a trace of 2 steps is in {tmp_path / 'profile'}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_training_that_ends_within_its_trace_still_leaves_one(experiment, tmp_path):
    assert experiment.config.training.steps > WARM_UP
    train(experiment, tmp_path, skipping=(), profile=100)
    assert any((tmp_path / "profile").rglob("*.xplane.pb"))


def test_no_step_cannot_be_traced(tmp_path):
    with pytest.raises(InputError, match="--profile=0: trace at least one step"):
        Profile(0, tmp_path)


def test_a_trace_cannot_go_to_an_object_store():
    with pytest.raises(InputError, match="cannot write to gs://bucket/profile"):
        Profile(1, "gs://bucket/profile")
