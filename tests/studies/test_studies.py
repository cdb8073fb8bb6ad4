# SPDX-License-Identifier: Apache-2.0
"""Studies that train: their tables, what they refuse, and that nothing is trained twice."""

import concurrent.futures
import json
import re
import threading

import pytest
from etils import epath

from experiments import evaluate
from experiments.cli.scored_pairs import ScoredPairs
from experiments.data import registry
from experiments.scoring.evaluation import Evaluation
from experiments.studies import generalization, study_runs, variants
from experiments.studies.cache import cached
from experiments.studies.study_runs import checked_names
from transformer.errors import InputError


def test_rows_have_the_form_of_the_results_with_what_they_share(tmp_path):
    scores = {"bleu": 30.123, "bleu_ci": [28.06, 32.04], "nll": 1.23456, "exact_match": 0.1234}
    rounded = study_runs.rounded(scores, "bleu", "nll", "exact_match")
    assert rounded == {"bleu": [30.1, 28.1, 32.0], "nll": 1.2346, "exact_match": 12.34}
    row = study_runs.row_of({"parameters": 9, "step": 5, "seconds": 90.0}, rounded, seed=3)
    assert row == {"seed": 3, "parameters": 9, "steps": 5, "minutes": 1.5, "scores": rounded}
    study_runs.write_rows(epath.Path(tmp_path) / "new", "table", [row])
    written = json.loads((tmp_path / "new" / "table.json").read_text())
    assert written["runs"] == [row]
    assert re.fullmatch(r"(1 core|\d+ cores) of .+", written["circumstances"]["machine"])
    assert written["circumstances"]["command"].startswith("python ")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--output=.*cannot be written.*name another directory"):
        study_runs.write_rows(epath.Path(tmp_path) / "file", "table", [])


def test_all_names_are_the_default_and_an_unknown_one_is_refused_with_the_known():
    assert checked_names("models", None, ["a", "b"]) == ["a", "b"]
    assert checked_names("models", ["b"], ["a", "b"]) == ["b"]
    with pytest.raises(InputError, match="--models has 'c', but must be of a, b"):
        checked_names("models", ["b", "c"], ["a", "b"])


def test_processes_that_share_tasks_do_each_once_and_all_get_every_outcome(tmp_path):
    """Locks belong to open files, so two threads exclude each other as two processes do."""
    folder, done, both_busy = epath.Path(tmp_path), [], threading.Barrier(2, timeout=60)

    def task(name):
        def compute():
            done.append(name)
            if len(done) <= 2:
                both_busy.wait()  # each works on a task at the same time
            return {"is": name.upper()}

        return cached(folder / f"{name}.json", name, compute)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: study_runs.share(task, "abcde", folder), range(2)))
    assert sorted(done) == [*"abcde"]
    assert outcomes == [{name: {"is": name.upper()} for name in "abcde"}] * 2
    assert [*outcomes[0]] == [*outcomes[1]] == [*"abcde"]


def test_scores_are_computed_again_when_anything_changes_that_they_depend_on(
    tiny, tmp_path, monkeypatch
):
    calls = []

    def run(options):
        calls.append(options)
        return Evaluation(options.load(options.config.data), [], {"call": len(calls)}, [])

    def words(evaluation, options):
        return {"words": len(evaluation.split.sources)}

    monkeypatch.setattr(evaluate, "run", run)
    (tmp_path / "config.json").write_text(tiny().to_json())
    (tmp_path / "result.json").write_text("1")
    folder, validation = epath.Path(tmp_path), ScoredPairs("validation")
    beams = tiny("decode.beams=3")
    changes = [
        lambda: study_runs.scored(folder, validation),
        lambda: study_runs.scored(folder, ScoredPairs("test")),
        lambda: study_runs.scored(folder, ScoredPairs("validation", bleu_lowercase=True)),
        lambda: study_runs.scored(folder, validation, average=1),
        lambda: study_runs.scored(folder, validation, config=beams),
        lambda: study_runs.scored(folder, validation, words),
    ]
    for number, change in enumerate(changes, 1):
        assert change()["call"] == change()["call"] == number == len(calls)
    assert changes[-1]()["words"] == 10
    (tmp_path / "result.json").write_text("2")  # another training in this workdir
    assert changes[0]()["call"] == 7


def test_options_that_cannot_be_are_refused_by_name():
    refused = {
        "--variants has 'spiral', but must be of paper, lea": variants.Options(
            variants=("spiral",)
        ),
        "--seed=-1, but it must be at least 0": variants.Options(seed=-1),
        "--steps=0, but it must be at least 1": generalization.Options(steps=0),
        "--models has 'x', but must be of absolute": generalization.Options(models=("x",)),
        "--seeds=1,a must be whole numbers": generalization.Options(seeds=("1", "a")),
    }
    for message, options in refused.items():
        study = variants if isinstance(options, variants.Options) else generalization
        with pytest.raises(InputError, match=message):
            study.run(options)


@pytest.fixture
def few(monkeypatch):
    """Splits of four sentences; the training split is complete."""
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda data, split: load(data, split).first(4))


@pytest.mark.slow
def test_generalization_trains_each_combination_once(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generalization.scan_config, "get_config", lambda dataset: tiny())
    options = generalization.Options(
        models=("rotary_universal",),
        choices=("unscaled",),
        seeds=("0", "1"),
        steps=2,
        runs=str(tmp_path / "runs"),
        output=str(tmp_path / "table"),
    )
    rows = generalization.run(options)
    for seed, row in enumerate(rows):
        names = ("length26", "rotary_universal", "unscaled", seed)
        assert (row["dataset"], row["model"], row["choice"], row["seed"]) == names
        assert row["steps"] == 2
        by = ("exact_match", "exact_match_by_nll", "exact_match_by_bleu", "validation")
        assert row["scores"].keys() == {*by}
    assert json.loads((tmp_path / "table" / "generalization.json").read_text())["runs"] == rows
    assert "step 2/2" in capsys.readouterr().err
    assert generalization.run(options) == rows
    log = capsys.readouterr().err
    assert "step 2/2" not in log and "scoring" not in log


@pytest.mark.slow
def test_variants_are_trained_once_and_compared(few, tmp_path, capsys):
    runs, output = tmp_path / "runs", tmp_path / "table"
    options = variants.Options(variants=("rotary",), steps=2, runs=str(runs), output=str(output))
    [row] = variants.run(options)
    assert (row["variant"], row["parameters"]) == ("rotary", 864_256)
    assert row["scores"].keys() == {
        *("pronoun_accuracy", "pronoun_accuracy_unseen", "exact_match", "nll")
    }
    capsys.readouterr()
    variants.main(options)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == row
    assert json.loads((output / "variants.json").read_text())["runs"] == [row]
    assert "scoring" not in printed.err
