# SPDX-License-Identifier: Apache-2.0
"""Learning curves: their points, and what cannot be drawn."""

import pytest

from experiments.studies import learning_curves
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
    return tmp_path


def draw(workdir, score="nll"):
    given = {"workdirs": (str(workdir),), "output": str(workdir / "curves.svg")}
    return learning_curves.run(learning_curves.Options(**given, score=score))


def test_a_point_is_a_validation_after_so_many_million_tokens(workdir):
    picture = workdir / "curves.svg"
    curves = {
        "nll": "NLL, nats per token over millions of target tokens, padding included. "
        f"{workdir}: from 3",
        "bleu": f"{workdir}: from 20 at 0.2 to 25 at 0.4",
    }
    for score, curve in curves.items():
        assert draw(workdir, score) == str(picture)
        assert curve in picture.read_text()


def test_curves_that_cannot_be_drawn_are_refused(workdir):
    with pytest.raises(InputError, match=r"--score=ter must be a validation score of .*: nll, bl"):
        draw(workdir, score="ter")
    with pytest.raises(InputError, match=r"metrics.jsonl does not exist; --workdirs takes dir"):
        draw(workdir / "lost")
    (workdir / "metrics.jsonl").write_text(LOG.split("\n")[0])
    with pytest.raises(InputError, match=r"has no validation yet; wait for the first one"):
        draw(workdir)
