# SPDX-License-Identifier: Apache-2.0
"""The study of five models at equal parameters and equal time."""

import json

import pytest
from apps import run

from experiments.configs import pronouns
from experiments.studies import family_comparison, study_runs


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) for n in ("luong", "sutskever", "convolutional")],
)
def test_a_model_has_the_parameters_of_the_transformer_and_its_vocabulary(name):
    like = pronouns.get_config("de")
    config = family_comparison.model_config(like, name)
    expected = study_runs.number_of_parameters(like.model)
    assert abs(study_runs.number_of_parameters(config) / expected - 1) < 0.05
    assert config.family != "transformer"
    assert (config.vocab_size, config.dropout) == (like.model.vocab_size, like.model.dropout)
    assert family_comparison.model_config(like, "transformer") is like.model


def test_the_steps_take_the_time_and_the_schedule_ends_with_them():
    assert study_runs.StepMeasurement(seconds=0.25, tokens=1.0).steps_in(3) == 720
    assert study_runs.StepMeasurement(seconds=10.0, tokens=1.0).steps_in(0.001) == 0
    config = family_comparison.config_of(pronouns.get_config("de"), "transformer", 720)
    assert (config.training.steps, config.training.validate_every) == (720, 180)
    assert (config.optimizer.schedule, config.optimizer.warmup_steps) == ("cosine", 72)


def test_bleu_is_of_the_sentences_of_a_length():
    sources = ["a b c", "a b c d", "a b c d e f g"]
    references = ["x y z w", "p q r s", "k l m n o"]
    rows = family_comparison.by_length(sources, ["x y z w", "p q r s", "no"], references)
    assert [(row["words"], row["sentences"], row["mean"]) for row in rows] == [
        ("0 to 5", 2, 3.5),
        ("6 to 10", 1, 7.0),
    ]
    assert rows[0]["bleu"] == pytest.approx(100)
    assert rows[1]["bleu"] < 10


@pytest.mark.slow
def test_every_model_is_trained_once_and_compared(texts, tmp_path):
    flags = [
        *texts[1],
        *("--config=pronouns:de", "--config.data.dataset=text_files", "--split=validation"),
        *("--minutes=0.0001", "--models=bahdanau,transformer", "--sentences=5"),
        *(f"--runs={tmp_path / 'runs'}", f"--output={tmp_path / 'out'}"),
        *("--config.model.vocab_size=20", "--config.model.d_model=8", "--config.model.d_ff=8"),
        *("--config.model.num_heads=2", "--config.model.num_layers=1"),
        *("--config.data.tokenizer=word", "--config.data.max_length=8"),
        *("--config.data.bucket_lengths=(8,)", "--config.data.tokens_per_batch=128"),
        *("--config.decode.extra_length=4", "--config.logging.tensorboard=false"),
    ]
    first = run("experiments.studies.seq2seq_history", *flags)
    assert first.status == 0, first.err
    rows = json.loads((tmp_path / "out" / "seq2seq_history.json").read_text())
    assert [row["model"] for row in rows] == ["bahdanau", "transformer"]
    assert all(row["by_length"] and row["tokens_per_second"] > 0 for row in rows)
    assert (tmp_path / "out" / "seq2seq_history.png").stat().st_size > 1000
    again = run("experiments.studies.seq2seq_history", *flags)
    assert again.out == first.out
    assert "scoring" not in again.err and "measuring" not in again.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config=pronouns_recurrent"], "the config of this study is that of its Transformer"),
        (["--config=pronouns", "--models=rnn"], "--models has 'rnn', but must be of sutskever,"),
        (["--config=pronouns", "--minutes=0"], "--minutes is 0, but must be above 0"),
    ],
)
def test_flags_that_cannot_be_are_refused(flags, message):
    refused = run("experiments.studies.seq2seq_history", *flags)
    assert refused.status == 1
    assert message in refused.err and "Traceback" not in refused.err
