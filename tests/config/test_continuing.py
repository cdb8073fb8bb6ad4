# SPDX-License-Identifier: Apache-2.0
"""A workdir is continued with its config, or with changes that the user allows and it records."""

import json

import pytest
from apps import lines_of, run
from etils import epath

from experiments.data import recipes
from experiments.training import workdir
from transformer.checkpoints import workdir_files
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.fields import flat
from transformer.provenance import provenance
from transformer.text.tokenizer import Tokenizer, Vocabularies

CONFIG = Config(model=TransformerConfig(vocab_size=8, num_layers=1, d_model=8, d_ff=8, num_heads=2))
VOCABULARIES = Vocabularies.shared(Tokenizer.train(["a b c d"], 8, "word"))


def changed(**groups):
    """`CONFIG` with changed fields, by group."""
    return CONFIG.replace(
        **{group: getattr(CONFIG, group).replace(**fields) for group, fields in groups.items()}
    )


def test_fields_that_are_listed_by_name_exist():
    config = Config()
    data = {f"data.{name}" for name in workdir_files._OF_TRAINING_DATA}
    model = {f"model.{name}" for name in config.model.free_after_training}
    text = {f"data.{name}" for name in recipes.TEXT_FIELDS}
    single = [name for name in workdir._NOT_COMPARED if not name.endswith(".")]
    listed = {*workdir._OF_THE_STATE, *single} | text | data | model
    assert listed <= flat(config).keys()
    groups = {name for name in workdir._NOT_COMPARED if name.endswith(".")}
    assert all(any(field.startswith(group) for field in flat(config)) for group in groups)


@pytest.fixture
def directory(tmp_path):
    """A workdir that was started with `CONFIG`."""
    directory = epath.Path(tmp_path)
    workdir.initialize(directory, CONFIG, VOCABULARIES)
    return directory


ALLOWED = [
    {"optimizer": {"learning_rate": 0.5, "warmup_steps": 10, "schedule": "constant"}},
    {"training": {"validate_every": 7, "patience": 2, "label_smoothing": 0.0}},
    {"data": {"tokens_per_batch": 2048, "train_source": "/other", "tokenizer_model": "/moved"}},
    {"model": {"dropout": 0.2, "compute_dtype": "bfloat16"}},
    {"decode": {"beams": 1}},
]


def test_changes_are_refused_with_the_flag_that_allows_them(directory):
    for groups in ALLOWED:
        config = changed(**groups)
        with pytest.raises(InputError, match="or give --continue_with_changes"):
            workdir.resume_config(config, directory)
        assert workdir.resume_config(config, directory, allow_changes=True) == config


def test_what_does_not_fit_the_trained_state_is_never_changed(directory):
    for group, field, value in (
        ("model", "norm", "pre"),
        ("model", "d_model", 16),
        ("optimizer", "name", "lion"),
        ("optimizer", "clip_norm", 1.0),
        ("training", "ema_decay", 0.9),
        ("data", "tokenizer", "unigram"),
    ):
        for allow_changes in (False, True):
            with pytest.raises(InputError) as error:
                workdir.resume_config(changed(**{group: {field: value}}), directory, allow_changes)
            assert f"{group}.{field}: " in str(error.value)
            assert "--continue_with_changes" not in str(error.value)
        assert f"does not fit another {group}.{field}" in str(error.value)


def test_each_change_is_recorded_with_its_step_and_what_made_it(directory):
    [begun] = workdir_files.load_runs(directory)
    assert (begun["step"], begun["changes"], begun["provenance"]) == (0, {}, provenance())
    assert workdir_files.load_changes(directory) == []
    faster = changed(optimizer={"learning_rate": 0.5})
    workdir.initialize(directory, faster, VOCABULARIES, 30)
    workdir.initialize(directory, faster, VOCABULARIES, 40)
    workdir.initialize(
        directory, faster.replace(decode=CONFIG.decode.replace(beams=1)), VOCABULARIES, 50
    )
    assert [(run["step"], run["changes"]) for run in workdir_files.load_changes(directory)] == [
        (30, {"optimizer.learning_rate": [1.0, 0.5]}),
        (50, {"decode.beams": [4, 1]}),
    ]
    assert workdir_files.load_config(directory).optimizer.learning_rate == 0.5


def test_another_version_of_the_program_is_recorded(directory, monkeypatch):
    monkeypatch.setattr(workdir, "provenance", lambda: {"version": "9", "commit": None})
    workdir.initialize(directory, CONFIG, VOCABULARIES, 30)
    assert [
        (run["step"], run["provenance"]["version"]) for run in workdir_files.load_runs(directory)
    ] == [
        (0, provenance()["version"]),
        (30, "9"),
    ]


def test_a_config_that_another_version_wrote_and_this_one_cannot_read_names_both(directory):
    path = directory / "config.json"
    values = json.loads(path.read_text())
    values["decode"]["beam"] = 3
    path.write_text(json.dumps(values))
    with pytest.raises(InputError) as error:
        workdir_files.load_config(directory)
    assert "written by" not in str(error.value), "by the same version"
    values["runs"][-1]["provenance"] |= {"version": "7.0", "commit": "abc"}
    path.write_text(json.dumps(values))
    here = provenance()
    with pytest.raises(InputError) as error:
        workdir_files.load_config(directory)
    assert "unknown config field 'decode.beam'" in str(error.value)
    assert str(error.value).endswith(
        "written by version 7.0 (commit abc), this is version "
        f"{here['version']} (commit {here['commit']})"
    )


def test_runs_that_are_missing_or_changed_by_hand_do_not_matter(directory):
    values = json.loads((directory / "config.json").read_text())
    for runs in (None, 7, [], [7], [{}], {"step": 1}):
        (directory / "config.json").write_text(json.dumps(values | {"runs": runs}))
        assert workdir_files.load_config(directory) == CONFIG
        assert workdir_files.load_changes(directory) == []
        workdir.initialize(directory, CONFIG, VOCABULARIES, 5)
        assert [run["step"] for run in workdir_files.load_runs(directory)] == [5]


# Overrides after training.


def test_fields_that_matter_in_decoding_may_change_after_training():
    may = "decode.beams parallel.data evaluation.bleu_tokenize data.test_source data.max_length"
    for path in (*may.split(), "model.compute_dtype", "model.dropout", "training.best_by"):
        assert path in flat(CONFIG)
        assert workdir_files.may_change_after_training(path, CONFIG)
    for path in ("data.tokenizer", "model.norm", "training.steps", "optimizer.name"):
        assert path in flat(CONFIG)
        assert not workdir_files.may_change_after_training(path, CONFIG)


# Paths of data.


def test_data_paths_are_kept_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"train_source": "a.en", "train_target": "/data/a.de", "tokenizer_model": "x/t.model"}
    mixture = ("2*a.en,sub/a.de", "one.tsv", "0.5*pronouns_grammar/de", "gs://b/a.en,gs://b/a.de")
    config = changed(
        data=files | {"mixture": mixture, "dataset": "mine.py:corpus"},
        optimizer={"name": "mine.py:sgd"},
        evaluation={"metrics": ("mine.py:length",)},
        decode={"method": "sample", "truncation": "mine.py:typical"},
    )
    config = workdir.with_absolute_paths(config)
    assert config.optimizer.name == f"{tmp_path}/mine.py:sgd"
    assert config.evaluation.metrics == (f"{tmp_path}/mine.py:length",)
    assert config.decode.truncation == f"{tmp_path}/mine.py:typical"
    data = config.data
    assert data.dataset == f"{tmp_path}/mine.py:corpus"
    assert data.train_source == str(tmp_path / "a.en")
    assert data.train_target == "/data/a.de"
    assert data.tokenizer_model == str(tmp_path / "x" / "t.model")
    assert data.validation_source is None
    assert data.mixture == (
        f"2*{tmp_path}/a.en,{tmp_path}/sub/a.de",
        f"{tmp_path}/one.tsv",
        "0.5*pronouns_grammar/de",
        "gs://b/a.en,gs://b/a.de",
    )


def test_a_symbolic_link_keeps_its_name_with_the_language(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blob").write_text("a")
    (tmp_path / "train.en").symlink_to("blob")
    config = workdir.with_absolute_paths(changed(data={"train_source": "train.en"}))
    assert config.data.train_source == str(tmp_path / "train.en")


# The command.


@pytest.mark.slow
def test_a_training_continues_with_another_learning_rate_and_batch_size(train, tmp_path):
    arguments = train(tmp_path, "--config.training.steps=4", "--config.training.validate_every=2")
    assert run("experiments.train", *arguments).status == 0
    arguments = [
        *arguments,
        "--config.training.steps=8",
        "--config.data.tokens_per_batch=64",
        "--config.optimizer.learning_rate=0.25",
    ]
    refused = run("experiments.train", *arguments)
    assert refused.status == 1
    assert "give --continue_with_changes" in refused.err
    finished = run("experiments.train", *arguments, "--continue_with_changes")
    assert finished.status == 0, finished.err
    assert "optimizer.learning_rate: 1.0 there, 0.25 now" in finished.err
    assert finished.result["step"] == 8
    [change] = workdir_files.load_changes(tmp_path)
    assert change["step"] == 4
    assert change["changes"] == {
        "data.tokens_per_batch": [128, 64],
        "optimizer.learning_rate": [1.0, 0.25],
        "training.steps": [4, 8],
    }
    rates = {
        line["step"]: line["learning_rate"]
        for line in lines_of(tmp_path / "metrics.jsonl")
        if line["split"] == "train"
    }
    assert rates[5] / rates[4] == pytest.approx(0.25 * 5 / 4)  # within the warmup
    assert run("experiments.translate", f"--workdir={tmp_path}", stdin=b"a b\n").status == 0


@pytest.mark.slow
def test_a_training_that_stopped_early_continues_with_more_patience(train, tmp_path):
    arguments = train(
        tmp_path,
        "--config.training.steps=9",
        "--config.training.validate_every=1",
        "--config.optimizer.learning_rate=1e-12",
        "--config.training.best_by=bleu",
    )
    stopped = run("experiments.train", *arguments, "--config.training.patience=2")
    assert (stopped.status, stopped.result["step"]) == (0, 3)
    more = (*arguments, "--config.training.patience=4", "--continue_with_changes")
    finished = run("experiments.train", *more)
    assert (finished.status, finished.result["step"]) == (0, 5)
    # The best by another score is yet to come.
    by_nll = "--config.training.best_by=nll"
    finished = run("experiments.train", *more, by_nll)
    assert (finished.status, finished.result["step"]) == (0, 9)
