# SPDX-License-Identifier: Apache-2.0
"""A training killed at any moment resumes to the same end, on another mesh too."""

import contextlib
import random
import signal
import subprocess

import numpy as np
import pytest
from apps import CONFIGS, lines_of, parameters, run, start

LONG = (
    "--config.training.steps=600",
    "--config.training.validate_every=5",
    "--config.training.validation_sentences=2",
    "--config.decode.beams=1",
    "--config.logging.samples=0",
    "--config.training.ema_decay=0.9",
    "--config.logging.tensorboard=false",
)
KILLS = 20


def killed(arguments, reports, seconds):
    """Train, kill the process some seconds after a number of reports, and return its output."""
    process = start("experiments.train", *arguments)
    printed = []
    while reports:
        line = process.stderr.readline()
        assert line, "it ended early: " + "".join(printed)
        printed.append(line)
        reports -= line.startswith("step ")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    assert process.poll() is None, "it ended early: " + "".join(printed) + process.stderr.read()
    process.send_signal(signal.SIGKILL)
    return "".join(printed) + process.communicate()[1]


@pytest.mark.slow
def test_a_training_killed_at_twenty_random_moments_ends_bit_for_bit_the_same(
    train,
    tmp_path,
):
    """Some kills hit the start, the others steps and saves."""
    straight = run("experiments.train", *train(tmp_path / "straight", *LONG))
    assert straight.status == 0, straight.err
    generator, arguments = random.Random(4), train(tmp_path / "killed", *LONG)
    begun, saved = [0], 0
    for number in range(KILLS):
        if number % 5 == 4:
            moment = 0, generator.uniform(0, 6)
        else:
            moment = generator.randint(1, 40), generator.uniform(0, 0.3)
        printed = killed(arguments, *moment)
        for line in printed.splitlines():
            if "continuing from step " in line:
                begun.append(int(line.rpartition(" ")[2]))
                assert begun[-1] >= saved, "only the save in progress may be lost"
            if line.startswith("step ") and "/" in line:
                step = int(line.split("/")[0].removeprefix("step "))
                saved = max((step - 1) // 5 * 5 - 5, saved)  # printed before it is saved
    assert begun == sorted(begun)
    assert begun[-1] > 20, "otherwise nothing has been tested"
    finished = run("experiments.train", *arguments)
    assert finished.status == 0, finished.err
    assert parameters(tmp_path / "killed") == parameters(tmp_path / "straight")
    for name in ("step", "train_loss", "validation"):
        assert finished.result[name] == straight.result[name]
    steps = [m["step"] for m in lines_of(tmp_path / "killed" / "metrics.jsonl")]
    assert steps == sorted(steps)


FAMILIES = {
    "pronouns_convolutional": ("d_ff", "num_heads"),
    "pronouns_recurrent": ("d_ff", "num_heads"),
}
"""A config file of each other family, and the fields of the tiny Transformer that it lacks."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_killed_training_of_every_family_ends_bit_for_bit_the_same(train, tmp_path, name):
    lacking = tuple(f"--config.model.{field}=" for field in FAMILIES[name])

    def arguments(workdir):
        _, *flags = train(workdir, *LONG, "--config.training.steps=60")
        kept = [flag for flag in flags if not flag.startswith(lacking)]
        return (f"--config={CONFIGS / name}.py", *kept, "--config.data.dataset=text_files")

    straight = run("experiments.train", *arguments(tmp_path / "straight"))
    assert straight.status == 0, straight.err
    for reports in (12, 14):
        killed(arguments(tmp_path / "killed"), reports, 0.1)
    finished = run("experiments.train", *arguments(tmp_path / "killed"))
    assert "continuing from step " in finished.err
    assert parameters(tmp_path / "killed") == parameters(tmp_path / "straight")
    assert finished.result["train_loss"] == straight.result["train_loss"]


MESHES = {
    1: (),
    4: ("--config.parallel.model=2", "--config.parallel.data=2", "--config.parallel.preset=tensor"),
    8: ("--config.parallel.data=8", "--config.parallel.preset=fsdp"),
}


@pytest.mark.slow
def test_a_training_resumed_on_other_devices_comes_to_the_same_end(
    train,
    tmp_path,
):
    """Up to the rounding of sums in another order."""
    every = "--config.training.validate_every=4"
    workdir = tmp_path / "moved"
    for parts, (devices, flags) in enumerate(MESHES.items(), start=1):
        more = (every, *flags, f"--config.training.steps={4 * parts}")
        process = start("experiments.train", *train(workdir, *more), devices=devices)
        _, printed = process.communicate(timeout=300)
        assert process.returncode == 0, printed
    assert "mesh data=8 x model=1" in printed
    straight = run(
        "experiments.train", *train(tmp_path / "straight", every, "--config.training.steps=12")
    )
    assert straight.status == 0, straight.err
    losses = [
        [line["loss"] for line in lines_of(run_of / "metrics.jsonl") if line["split"] == "train"]
        for run_of in (workdir, tmp_path / "straight")
    ]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)
    assert len(losses[0]) == 12
