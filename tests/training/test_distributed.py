# SPDX-License-Identifier: Apache-2.0
"""Two processes train like one."""

import os
import signal
import socket

import jax
import pytest
from apps import Finished, lines_of, parameters, run, start

from experiments.cli.cluster import Cluster, joined
from transformer.errors import InputError

STEPS = 12
SHORT = (f"--config.training.steps={STEPS}", "--config.training.validate_every=6")
TOGETHER = ("--config.parallel.data=2", "--config.parallel.preset=fsdp")


def free_port():
    """A free local port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def pair(*each):
    """Start two processes that train together, with the same or with separate arguments."""
    port = free_port()
    flags = (f"--coordinator=127.0.0.1:{port}", "--processes=2")
    arguments = each if len(each) == 2 else each * 2
    return [
        start("experiments.train", *own, *flags, f"--process={index}")
        for index, own in enumerate(arguments)
    ]


def ended(processes):
    """Wait for the processes and return their output."""
    finished = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=300)
            finished.append(Finished(process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()  # with several processes JAX handles SIGTERM
    return finished


def stopped_at_the_next_step(arguments, workdir):
    """Train with two processes, send one a signal after a step, and return the saved step."""
    processes = pair(arguments)
    for line in processes[0].stderr:
        if line.startswith("step ") and not line.startswith("step 1/"):
            break
    processes[1].send_signal(signal.SIGTERM)
    stopped = ended(processes)
    assert [one.status for one in stopped] == [143, 143], stopped
    reached, _ = parameters(workdir)
    assert f"stopped by SIGTERM after step {reached}, saved" in stopped[0].err
    return reached


@pytest.fixture(scope="module")
def alone(train, tmp_path_factory):
    """A workdir trained by one process with one device, and its output."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    finished = run("experiments.train", *train(workdir, *SHORT))
    assert finished.status == 0, finished.err
    return workdir, finished


@pytest.fixture(scope="module")
def together(train, tmp_path_factory):
    """A workdir trained by two processes with one device each, and their output."""
    workdir = tmp_path_factory.mktemp("together") / "run"
    finished = ended(pair(train(workdir, *SHORT, *TOGETHER)))
    assert [one.status for one in finished] == [0, 0], finished
    return workdir, finished


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(alone, together):
    """Up to the rounding of float32 sums in another order."""
    curves = [
        [line for line in lines_of(workdir / "metrics.jsonl") if line["split"] == "train"]
        for workdir, _ in (alone, together)
    ]
    for step, (one, two) in enumerate(zip(*curves, strict=True), start=1):
        assert one["step"] == two["step"] == step
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-6 if step == 1 else 1e-5)
    expected, found = (finished.result["validation"] for finished in (alone[1], together[1][0]))
    assert found["nll"] == pytest.approx(expected["nll"], abs=1e-5)
    assert found["bleu"] == expected["bleu"]


@pytest.mark.slow
def test_only_process_0_prints(together):
    _, (main, other) = together
    assert main.result["step"] == STEPS
    assert "continuing" not in main.err
    assert other.out == ""
    assert "step " not in other.err and "warning" not in other.err


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step(
    together,
    train,
    tmp_path,
):
    arguments = train(tmp_path / "run", *SHORT, *TOGETHER, "--config.logging.samples=0")
    reached = stopped_at_the_next_step(arguments, tmp_path / "run")
    assert 2 <= reached < STEPS

    finished = ended(pair(arguments))
    assert [one.status for one in finished] == [0, 0], finished
    assert f"continuing from step {reached}" in finished[0].err
    assert parameters(tmp_path / "run") == parameters(together[0])


@pytest.mark.slow
def test_a_training_that_continues_can_be_stopped_again(train, tmp_path):
    """The second signal comes before the first checkpoint that these processes save."""
    endless = "--config.training.steps=100000", "--config.training.validate_every=50000"
    arguments = train(tmp_path / "run", *endless, *TOGETHER)
    first = stopped_at_the_next_step(arguments, tmp_path / "run")
    second = stopped_at_the_next_step(arguments, tmp_path / "run")
    assert first < second


@pytest.mark.slow
def test_invalid_input_of_one_process_ends_both(train, tmp_path):
    arguments = train(tmp_path / "run", *SHORT, *TOGETHER)
    wrong = "--config.data.train_source=missing.txt"
    good, bad = ended(pair(arguments, (*arguments, wrong)))
    assert (good.status, bad.status) == (1, 1)
    assert "missing.txt" in bad.err
    assert "process 1 cannot prepare the training" in good.err


def test_incomplete_process_flags_are_refused():
    for cluster, message in (
        (Cluster(processes=2), "go together; give all three"),
        (Cluster(coordinator="h:1", processes=2, process=2), "--process=2 of --processes=2"),
    ):
        with pytest.raises(InputError, match=message), joined(cluster):
            pass


def test_an_unexpected_error_ends_its_process_at_once(monkeypatch, capfd):
    """An orderly end waits for the other processes, which wait for this one."""

    def end(status):
        raise SystemExit(status)

    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: None)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit) as ended_with, joined(Cluster(distributed=True)):
        raise TypeError("a mistake")
    assert ended_with.value.code == 1
    messages = capfd.readouterr().err
    assert "Traceback" in messages
    assert "error: process 0 of 1 cannot continue: a mistake" in messages


@pytest.mark.slow
def test_a_killed_process_ends_the_other_at_once_with_one_message(
    train,
    tmp_path,
):
    processes = pair(train(tmp_path / "run", *TOGETHER))
    for line in processes[0].stderr:
        if line.startswith("step 2/"):
            break
    processes[1].kill()
    left, _ = ended(processes)
    assert (left.status, left.out) == (1, "")
    assert "error: process 0 of 2 cannot continue" in left.err
    assert "Traceback" not in left.err
