# SPDX-License-Identifier: Apache-2.0
"""Learning curves: their points, and what cannot be drawn."""

import pytest
from apps import run
from etils import epath

from experiments.studies.learning_curves import learning_curve
from transformer.config import Config, DataConfig
from transformer.errors import InputError

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
    return epath.Path(tmp_path)


def test_a_point_is_a_validation_after_so_many_million_tokens(workdir):
    assert learning_curve(workdir, "nll") == ([0.2, 0.4], [3.0, 2.5])
    assert learning_curve(workdir, "bleu") == ([0.2, 0.4], [20.0, 25.0])


def test_an_unknown_score_is_refused_with_those_that_were_logged(workdir):
    with pytest.raises(InputError, match=r"--score=ter must be .*: nll, bleu$"):
        learning_curve(workdir, "ter")


def test_a_training_without_a_validation_is_refused(workdir):
    (workdir / "metrics.jsonl").write_text(LOG.split("\n")[0])
    with pytest.raises(InputError, match=r"metrics.jsonl has no validation yet; wait"):
        learning_curve(workdir, "nll")


def test_a_folder_that_no_training_wrote_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"metrics.jsonl does not exist; --workdirs takes"):
        learning_curve(epath.Path(tmp_path), "nll")


def test_the_app_draws_a_named_curve_for_each_workdir(workdir):
    picture = workdir / "curves.svg"
    flags = [f"--workdirs={workdir},{workdir}", f"--output={picture}"]
    result = run("experiments.studies.learning_curves", *flags, "--names=a,b")
    assert result.out == f"{picture}\n"
    description = "NLL, nats per token over millions of target tokens, padding included"
    assert description in picture.read_text()
    result = run("experiments.studies.learning_curves", *flags)
    assert result.status == 1
    assert "must be 2 different names, one for each of --workdirs" in result.err
