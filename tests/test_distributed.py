# SPDX-License-Identifier: Apache-2.0
"""Two processes that train together are one training."""

import signal
import socket

import pytest
from apps import Finished, lines_of, parameters, run, start

STEPS = 12
SHORT = (f"--config.training.steps={STEPS}", "--config.training.validate_every=6")
TOGETHER = ("--config.parallel.data=2", "--config.parallel.preset=fsdp")


def free_port():
    """A port of this machine that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def pair(*each):
    """Two processes that train together, begun; `each` holds the arguments of the one or both."""
    port = free_port()
    flags = (f"--coordinator=127.0.0.1:{port}", "--processes=2")
    arguments = each if len(each) == 2 else each * 2
    return [
        start("experiments.train", *own, *flags, f"--process={index}")
        for index, own in enumerate(arguments)
    ]


def ended(processes):
    """What each of them left behind."""
    finished = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=120)
            finished.append(Finished(process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()  # among several processes JAX keeps SIGTERM to itself
    return finished


@pytest.fixture(scope="module")
def alone(train, tmp_path_factory):
    """A workdir trained by one process with one device, and what it said."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    finished = run("experiments.train", *train(workdir, *SHORT))
    assert finished.status == 0, finished.err
    return workdir, finished


@pytest.fixture(scope="module")
def together(train, tmp_path_factory):
    """A workdir trained by two processes with a device each, and what they said."""
    workdir = tmp_path_factory.mktemp("together") / "run"
    finished = ended(pair(train(workdir, *SHORT, *TOGETHER)))
    assert [one.status for one in finished] == [0, 0], finished
    return workdir, finished


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(alone, together):
    """As far as float32 sums in another order are the same."""
    curves = [
        [line for line in lines_of(workdir / "metrics.jsonl") if line["split"] == "train"]
        for workdir, _ in (alone, together)
    ]
    for step, (one, two) in enumerate(zip(*curves, strict=True), start=1):
        assert one["step"] == two["step"] == step
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-6 if step == 1 else 1e-5)
    expected, found = (told.result["validation"] for told in (alone[1], together[1][0]))
    assert found["nll"] == pytest.approx(expected["nll"], abs=1e-5)
    assert found["bleu"] == expected["bleu"]


@pytest.mark.slow
def test_process_0_alone_speaks(together):
    _, (main, other) = together
    assert main.result["step"] == STEPS
    assert "going" not in main.err
    assert other.out == ""
    assert "step " not in other.err and "warning" not in other.err


@pytest.mark.slow
def test_a_signal_to_one_of_two_stops_both_at_one_step_and_they_go_on(
    together,
    train,
    tmp_path,
):
    arguments = train(tmp_path / "run", *SHORT, *TOGETHER, "--config.logging.samples=0")
    processes = pair(arguments)
    for line in processes[0].stderr:
        if line.startswith("step 2/"):
            break
    processes[1].send_signal(signal.SIGTERM)
    stopped = ended(processes)
    assert [one.status for one in stopped] == [143, 143], stopped
    reached, _ = parameters(tmp_path / "run")
    assert f"stopped by SIGTERM after step {reached}, saved" in stopped[0].err
    assert 2 <= reached < STEPS

    finished = ended(pair(arguments))
    assert [one.status for one in finished] == [0, 0], finished
    assert f"going on from step {reached}" in finished[0].err
    assert parameters(tmp_path / "run") == parameters(together[0])


def test_what_one_process_finds_wrong_ends_both(train, tmp_path):
    arguments = train(tmp_path / "run", *SHORT, *TOGETHER)
    wrong = "--config.data.train_source=missing.txt"
    good, bad = ended(pair(arguments, (*arguments, wrong)))
    assert (good.status, bad.status) == (1, 1)
    assert "missing.txt" in bad.err
    assert "process 1 cannot prepare the training" in good.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--processes=2"], "go together; give all three"),
        (["--coordinator=h:1", "--processes=2", "--process=2"], "--process=2 of --processes=2"),
    ],
)
def test_half_a_description_of_the_processes_is_refused(train, tmp_path, flags, words):
    finished = run("experiments.train", *train(tmp_path / "run"), *flags)
    assert (finished.status, finished.out) == (1, "")
    assert words in finished.err


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_other_at_once_with_one_message(
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
