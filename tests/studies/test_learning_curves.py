# SPDX-License-Identifier: Apache-2.0
"""Learning curves: their points, and what cannot be drawn."""

import pytest
from apps import run

from transformer.config import Config, DataConfig

LOG = """\
{"step": 50, "split": "train", "loss": 5.5}
{"step": 100, "split": "validation", "nll": 3.0, "bleu": 20.0}
{"step": 200, "split": "validation", "nll": 2.5, "bleu": 25.0}
"""


@pytest.fixture
def workdir(tmp_path):
    """The directory of a training with batches of 2,000 tokens, of which 200 steps are done."""
    (tmp_path / "config.json").write_text(Config(data=DataConfig(tokens_per_batch=2000)).to_json())
    (tmp_path / "metrics.jsonl").write_text(LOG)
    return tmp_path


def draw(*flags):
    return run("experiments.studies.learning_curves", *flags)


@pytest.mark.parametrize(
    ("score", "curve"),
    [
        ("nll", "NLL, nats per token over millions of target tokens, padding included. a: from 3"),
        ("bleu", "b: from 20 at 0.2 to 25 at 0.4"),
    ],
)
def test_a_point_is_a_validation_after_so_many_million_tokens(workdir, score, curve):
    picture = workdir / "curves.svg"
    flags = [f"--workdirs={workdir},{workdir}", "--names=a,b", f"--score={score}"]
    assert draw(*flags, f"--output={picture}").out == f"{picture}\n"
    assert curve in picture.read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--workdirs={0},{0}", "must be 2 different names, one for each of --workdirs"),
        ("--workdirs={0} --score=ter", "--score=ter must be a validation score of {0}: nll, bleu"),
        ("--workdirs={0}/lost", "metrics.jsonl does not exist; --workdirs takes directories of"),
    ],
)
def test_what_cannot_be_drawn_is_one_message(workdir, flags, message):
    result = draw(*flags.format(workdir).split())
    assert result.status == 1
    assert message.format(workdir) in result.err


def test_a_training_without_a_validation_is_refused(workdir):
    (workdir / "metrics.jsonl").write_text(LOG.split("\n")[0])
    result = draw(f"--workdirs={workdir}")
    assert result.status == 1
    assert "metrics.jsonl has no validation yet; wait for the first one" in result.err
