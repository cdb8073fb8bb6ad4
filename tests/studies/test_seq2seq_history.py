# SPDX-License-Identifier: Apache-2.0
"""The study of five models at equal parameters and for equally many minutes."""

import dataclasses
import json

import pytest

from experiments.configs import pronouns, pronouns_recurrent
from experiments.data.registry import Split
from experiments.scoring.evaluation import Evaluation
from experiments.studies import study_runs
from experiments.studies.seq2seq_history import __main__ as history
from experiments.studies.seq2seq_history import models
from transformer.errors import InputError


@pytest.mark.slow
def test_a_model_has_the_parameters_of_the_transformer_and_its_vocabulary():
    like = pronouns.get_config("de")
    expected = study_runs.number_of_parameters(like.model)
    for name in ("luong", "sutskever", "convolutional"):
        config = models.model_config(like, name)
        assert abs(study_runs.number_of_parameters(config) / expected - 1) < 0.05, name
        assert config.family != "transformer"
        assert (config.vocab_size, config.dropout) == (like.model.vocab_size, like.model.dropout)
    assert models.model_config(like, "transformer") is like.model


def test_the_steps_take_the_time_and_the_schedule_ends_with_them():
    assert study_runs.StepMeasurement(seconds=0.25, tokens=1.0).steps_in(3) == 720
    assert study_runs.StepMeasurement(seconds=10.0, tokens=1.0).steps_in(0.001) == 0
    config = models.config_of(pronouns.get_config("de"), "transformer", 720)
    assert (config.training.steps, config.training.validate_every) == (720, 180)
    assert (config.optimizer.schedule, config.optimizer.warmup_steps) == ("cosine", 72)


@pytest.fixture
def options(tiny, tmp_path):
    return history.Options(
        config=tiny("model.d_model=8", "model.d_ff=8"),
        split="validation",
        minutes=0.0001,
        models=("bahdanau", "transformer"),
        seeds=("0", "1"),
        runs=str(tmp_path / "runs"),
        output=str(tmp_path / "out"),
    )


def test_bleu_is_of_the_sentences_of_a_length(options):
    sources = ["a b c", "a b c d", "a b c d e f g"]
    split = Split("letters", sources, ["x y z w", "p q r s", "k l m n o"])
    evaluation = Evaluation(split, ["x y z w", "p q r s", "no"], {}, [])
    bleu = history.bleu_by_length(evaluation, options)["bleu_by_length"]
    assert [*bleu] == ["bleu_0_to_5", "bleu_6_to_10"]
    assert bleu["bleu_0_to_5"][0] == 100
    assert bleu["bleu_6_to_10"][0] < 10


@pytest.mark.slow
def test_every_model_is_trained_once_and_compared(options, tmp_path, capsys):
    rows = history.run(options)
    trained = [(row["model"], row["seed"]) for row in rows]
    assert trained == [("bahdanau", 0), ("transformer", 0), ("bahdanau", 1), ("transformer", 1)]
    assert all("bleu_0_to_5" in row["scores"] and row["step_minutes"] > 0 for row in rows)
    assert json.loads((tmp_path / "out" / "seq2seq_history.json").read_text())["runs"] == rows
    capsys.readouterr()
    assert history.run(options) == rows
    log = capsys.readouterr().err
    assert "scoring" not in log and "measuring" not in log


def test_options_that_cannot_be_are_refused(options):
    other = pronouns_recurrent.get_config("bahdanau")
    refused = {
        "the config of this study is that of its Transformer": {"config": other},
        "--models has 'rnn', but must be of sutskever,": {"models": ("rnn",)},
        "--minutes is 0, but must be above 0": {"minutes": 0},
        "--seeds=a must be whole numbers": {"seeds": ("a",)},
    }
    for message, changed in refused.items():
        with pytest.raises(InputError, match=message):
            history.run(dataclasses.replace(options, **changed))
