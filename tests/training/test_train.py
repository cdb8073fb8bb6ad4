# SPDX-License-Identifier: Apache-2.0
"""Training from end to end: runs continue after a stop, stop early, and fit the memory."""

import dataclasses
import json

import pytest
from apps import CONFIGS, parameters, run

from experiments import train as app
from experiments.cli.config_flags import load_config_file
from experiments.training import compose
from experiments.training.profiling import WARM_UP
from transformer import device_memory
from transformer.errors import InputError

EVERYTHING = (
    "--config.data.packing=true",
    "--config.data.tokenizer=bpe",
    "--config.data.subword_sampling=0.2",
    "--config.data.max_length=16",
    "--config.data.bucket_lengths=(16,)",
    "--config.model.vocab_size=36",
    "--config.optimizer.name=adamw",
    "--config.optimizer.weight_decay=0.1",
    "--config.optimizer.clip_norm=1.0",
    "--config.training.ema_decay=0.9",
    "--config.training.r_drop=1.0",
    "--config.training.micro_batches=2",
    "--config.training.validate_every=3",
)


@pytest.fixture(scope="module")
def straight(train, tmp_path_factory):
    """A workdir trained for six steps with every option on, and the finished command."""
    workdir = tmp_path_factory.mktemp("straight") / "run"
    finished = run("experiments.train", *train(workdir, *EVERYTHING, "--config.training.steps=6"))
    assert finished.status == 0, finished.err
    return workdir, finished


@pytest.mark.slow
def test_a_run_with_every_option_that_stops_half_way_ends_bit_for_bit_the_same(
    straight,
    train,
    tmp_path,
):
    for steps in (3, 6):
        flags = (*EVERYTHING, f"--config.training.steps={steps}")
        finished = run("experiments.train", *train(tmp_path / "run", *flags))
        assert finished.status == 0, finished.err
    assert parameters(tmp_path / "run") == parameters(straight[0])
    assert "compiling the step for batches of 8 x 16 tokens, in 2 micro-batches" in straight[1].err


@pytest.fixture(scope="module")
def patient(train, tmp_path_factory):
    """A run that cannot improve, because its learning rate is almost zero."""
    workdir = tmp_path_factory.mktemp("patient") / "run"
    flags = (
        "--config.training.patience=2",
        "--config.training.best_by=bleu",
        "--config.training.validate_every=1",
        "--config.optimizer.learning_rate=1e-12",
    )
    arguments = train(workdir, *flags)
    return workdir, arguments, run("experiments.train", *arguments)


@pytest.mark.slow
def test_training_stops_early_after_patience_validations_without_improvement(patient):
    """The first validation is the best; the second and the third are no better."""
    _, _, finished = patient
    assert finished.status == 0, finished.err
    assert finished.result["step"] == 3
    assert finished.result["stopped_early"] is True


@pytest.mark.slow
def test_a_run_that_stopped_early_is_finished(patient):
    workdir, arguments, finished = patient
    again = run("experiments.train", *arguments)
    assert again.status == 0
    assert again.out == finished.out
    assert f"{workdir} is finished: it stopped early, after step 3" in again.err


# A profile.


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 100])
def test_a_trace_of_some_steps_is_written_also_if_the_training_ends_within_it(
    steps, train, tmp_path
):
    directory = tmp_path / "run"
    flags = f"--config.training.steps={WARM_UP + 4}", f"--profile={steps}"
    finished = run("experiments.train", *train(directory, *flags))
    assert finished.status == 0, finished.err
    assert any((directory / "profile").rglob("*.xplane.pb"))
    message = f"a trace of 2 steps is in {directory / 'profile'}"
    assert (message in finished.err) == (steps == 2)


# Memory.


def test_a_model_beyond_the_memory_is_refused_before_it_is_compiled(config, tmp_path):
    config = config.replace(model=config.model.replace(d_model=65536, d_ff=262144))
    message = "the training step needs at least .* GiB on each device, which has"
    with pytest.raises(InputError, match=message):
        app.run(app.Options(config=config, workdir=str(tmp_path / "run")))


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_memory_a_step_needs_at_least_is_below_that_of_the_compiled_program(
    config, tmp_path, monkeypatch, micro_batches
):
    large = config.model.replace(d_ff=4096)
    experiment = with_parts(compose.build(config.replace(model=large), tmp_path), micro_batches)
    [(rows, length)] = experiment.data.train.shapes()
    least, compiled = compose.least_memory(experiment, rows, length), needed(experiment) * 2**30
    assert 0.3 * compiled < least < compiled
    monkeypatch.setattr(device_memory, "available_bytes", lambda: least)
    compose.require_memory(experiment)
    monkeypatch.setattr(device_memory, "available_bytes", lambda: least - 1)
    with pytest.raises(InputError, match="the training step needs at least"):
        compose.require_memory(experiment)


# Batch fitting.


@pytest.fixture(scope="module")
def config(texts):
    """A tiny experiment whose batches have 4 rows."""
    config = load_config_file(str(CONFIGS / "base.py"))
    fields = dict(flag.removeprefix("--config.data.").split("=", 1) for flag in texts[1])
    return config.replace(
        model=config.model.replace(vocab_size=20, d_model=16, d_ff=32, num_layers=1, num_heads=2),
        data=config.data.replace(
            tokenizer="word",
            max_length=8,
            bucket_lengths=(8,),
            tokens_per_batch=32,
            row_multiple=4,
            **fields,
        ),
    )


def fitted(config, folder, gib):
    """The experiment with ``batch_fitting=auto`` and this memory limit."""
    training = config.training.replace(batch_fitting="auto", memory_limit_gib=gib)
    return compose.build(config.replace(training=training), folder)


def needed(experiment):
    """GiB of the largest training step."""
    shapes = experiment.data.train.shapes()
    return max(device_memory.peak_bytes(experiment.compile_step(*one)) for one in shapes) / 2**30


@pytest.fixture(scope="module")
def memory(config, tmp_path_factory):
    """GiB of the step with one micro-batch and with two."""
    experiment = compose.build(config, tmp_path_factory.mktemp("memory"))
    return {parts: needed(with_parts(experiment, parts)) for parts in (1, 2)}


def with_parts(experiment, parts):
    training = experiment.config.training.replace(micro_batches=parts)
    return dataclasses.replace(experiment, config=experiment.config.replace(training=training))


@pytest.fixture
def costs(monkeypatch):
    """A step of 100 bytes, half of which is divided by the number of micro-batches."""

    def parts(self, rows, length):
        del rows, length
        return self.config.training.micro_batches

    monkeypatch.setattr(compose.Experiment, "compile_step", parts)
    monkeypatch.setattr(device_memory, "peak_bytes", lambda parts: 50 + 50 // parts)


def test_auto_takes_the_fewest_micro_batches_that_fit(costs, config, tmp_path):
    for limit, parts in ((100, 1), (99, 2), (75, 2), (74, 4), (62, 4)):
        experiment = fitted(config, tmp_path, limit / 2**30)
        assert experiment.config.training.micro_batches == parts
        assert experiment.data.train.shapes() == [(4, 8)], "the batch itself stays"
    with pytest.raises(InputError, match="even in 4 micro-batches, but there are .* GiB; lower"):
        fitted(config, tmp_path, 61 / 2**30)


@pytest.mark.slow
def test_the_choice_of_auto_is_written_to_the_config_and_kept(train, memory, tmp_path):
    flags = (
        "--config.training.batch_fitting=auto",
        f"--config.training.memory_limit_gib={memory[1] * 0.999}",
        "--config.data.tokens_per_batch=32",
        "--config.data.row_multiple=4",
    )
    workdir = tmp_path / "run"
    assert memory[1] > memory[2], "or there is nothing to gain"
    for steps in (1, 2):
        arguments = train(workdir, *flags, f"--config.training.steps={steps}")
        finished = run("experiments.train", *arguments)
        assert finished.status == 0, finished.err
        saved = json.loads((workdir / "config.json").read_text())["training"]
        assert (saved["batch_fitting"], saved["micro_batches"]) == ("auto", 2)
    assert "batch fitting" not in finished.err, "the second start keeps the first one's choice"


def test_micro_batches_that_do_not_divide_the_rows_are_refused(config, tmp_path):
    training = config.training.replace(micro_batches=3)
    message = "micro_batches is 3, which does not divide batches of 4 rows; choose one of 1, 2, 4,"
    with pytest.raises(InputError, match=message):
        compose.build(config.replace(training=training), tmp_path)


def test_micro_batches_that_leave_a_device_without_rows_are_refused(config, tmp_path):
    """Four rows in two micro-batches are two each, and there are four devices."""
    config = config.replace(
        training=config.training.replace(micro_batches=2),
        parallel=config.parallel.replace(data=4),
    )
    with pytest.raises(InputError, match="= 4 devices in 2 micro-batches: 4 rows are not a multi"):
        compose.build(config, tmp_path)


def test_auto_gives_every_device_rows_of_each_micro_batch(costs, config, tmp_path):
    parallel = config.parallel.replace(data=2)
    experiment = fitted(config.replace(parallel=parallel), tmp_path, 75 / 2**30)
    assert experiment.config.training.micro_batches == 2
    with pytest.raises(InputError, match="even in 2 micro-batches"):
        fitted(config.replace(parallel=parallel), tmp_path, 74 / 2**30)


def test_the_available_memory_is_plausible():
    assert 2**28 < device_memory.available_bytes() < 2**50


# The text.


@pytest.mark.slow
def test_warnings_about_the_text_have_a_count_and_the_first_line(train, texts, tmp_path):
    """A training that starts prints them; one that continues does not repeat them."""
    files = {}
    for side, name in (("source", "a\u2028b"), ("target", "A\u2028B")):
        path = tmp_path / side
        path.write_text((texts[0] / f"train.{side}").read_text() + f"{name}\n\n", encoding="utf-8")
        files[side] = path
    flags = [f"--config.data.train_{side}={path}" for side, path in files.items()]
    for steps, expected in ((1, True), (2, False)):
        arguments = train(tmp_path / "run", *flags, f"--config.training.steps={steps}")
        finished = run("experiments.train", *arguments)
        assert finished.status == 0, finished.err
        separators = f"lines that other tools would split: 2, the first at {files['source']}:121;"
        assert (f"warning: train: {separators}" in finished.err) is expected
        empty = "1 of 122 pairs have an empty side and are left out, the first at "
        assert f"{empty}{files['source']}:122 and {files['target']}:122" in finished.err
