# SPDX-License-Identifier: Apache-2.0
"""A family defined outside the package works with every app, without a line changed elsewhere."""

import shutil

import bag_of_words
import pytest
from apps import parameters, run


@pytest.fixture(scope="module")
def train(texts):
    """The command that trains the family to a number of steps: (workdir, steps) -> its result."""

    def trained(workdir, steps):
        finished = run(
            "experiments.train",
            f"--config={bag_of_words.__file__}",
            f"--workdir={workdir}",
            *texts[1],
            "--config.optimizer.warmup_steps=10",
            "--config.optimizer.learning_rate=10",
            "--config.data.tokenizer=word",
            "--config.data.max_length=8",
            "--config.data.bucket_lengths=(8,)",
            "--config.data.tokens_per_batch=128",
            "--config.decode.extra_length=4",
            "--config.logging.tensorboard=false",
            "--config.training.validate_every=20",
            f"--config.training.steps={steps}",
        )
        assert finished.status == 0, finished.err
        return finished.result

    return trained


@pytest.fixture(scope="module")
def workdir(train, tmp_path_factory):
    """A workdir trained to 20 steps."""
    workdir = tmp_path_factory.mktemp("bag") / "run"
    assert train(workdir, 20)["step"] == 20
    return workdir


@pytest.mark.slow
def test_it_trains_and_resumes_bit_for_bit(train, workdir, tmp_path):
    shutil.copytree(workdir, tmp_path / "stopped")
    train(tmp_path / "stopped", 40)
    result = train(tmp_path / "straight", 40)
    assert parameters(tmp_path / "stopped") == parameters(tmp_path / "straight")
    assert result["validation"]["perplexity"] < 15, "of 20 words"
    assert result["parameters"] == 20 * 8 * 2


def test_another_process_reads_its_workdir_and_translates(workdir):
    """The name of the family in ``config.json`` is that of a module on PYTHONPATH."""
    translated = run("experiments.translate", f"--workdir={workdir}", stdin=b"a b c\n\n")
    assert translated.status == 0, translated.err
    first, empty = translated.out.split("\n")[:2]
    assert first and set(first) <= set("abcdefghABCDEFGH ")
    assert empty == ""


def test_inspection_refuses_it_with_one_message_that_names_the_family(workdir, tmp_path):
    page = tmp_path / "page.html"
    arguments = (f"--workdir={workdir}", "--sentence=a b", f"--output={page}")
    refused = run("experiments.look", *arguments)
    assert refused.status == 1
    assert "Traceback" not in refused.err
    assert "bag_of_words" in refused.err and "attention" in refused.err
    assert not page.exists()
