# SPDX-License-Identifier: Apache-2.0
"""Studies that train: their tables, what they refuse, and that nothing is trained twice."""

import concurrent.futures
import dataclasses
import json
import random
import threading

import pytest
from etils import epath

from experiments import evaluate
from experiments.cli.scored_pairs import ScoredPairs
from experiments.data import registry
from experiments.scoring.evaluation import Evaluation
from experiments.studies import generalization, study_runs, study_tables, variants
from experiments.studies.cache import cached
from experiments.studies.study_tables import Column, checked_names, markdown, write_table
from transformer.checkpoints.workdir_files import load_config
from transformer.errors import InputError


def test_a_table_has_a_line_for_each_row_and_keeps_all_numbers_in_json(tmp_path):
    columns = [Column("model", "name"), Column("accuracy", "share", "{:.1%}")]
    rows = [{"name": "a", "share": 0.1234, "seed": 3}, {"name": "b"}]
    text = write_table(epath.Path(tmp_path) / "new", "table", columns, rows)
    assert text == "| model | accuracy |\n| --- | --- |\n| a | 12.3% |\n| b |  |\n"
    assert (tmp_path / "new" / "table.md").read_text() == text
    assert json.loads((tmp_path / "new" / "table.json").read_text()) == rows
    signature = markdown([Column("signature", "of")], [{"of": "nrefs:1|case:mixed"}])
    assert signature.splitlines()[-1] == "| nrefs:1\\|case:mixed |"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--output=.*cannot be written.*name another directory"):
        write_table(epath.Path(tmp_path) / "file", "table", [], [])


def test_a_picture_describes_its_shares():
    shares = {"test": [0.5, 1.0], "unseen": [0.25, 0.999]}
    figure = study_tables.picture("Accuracy", ["a", "b"], shares, beside={"n": ["1", "2"]})
    assert figure.description == (
        "Accuracy. a: test 50.0%, unseen 25.0%; b: test 100.0%, unseen 99.9%."
    )


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
        "--layers=0, but it must be at least 1": generalization.Options(layers=0),
        "--train and --test must both be given": generalization.Options(train=("a", "b")),
        "--models has 'x', but must be of absolute": generalization.Options(models=("x",)),
        "--seeds=1,a must be whole numbers": generalization.Options(seeds=("1", "a")),
    }
    for message, options in refused.items():
        study = variants if isinstance(options, variants.Options) else generalization
        with pytest.raises(InputError, match=message):
            study.run(options)


@pytest.fixture
def files(tmp_path):
    """--train and --test of a task that copies letters in capitals."""
    generator, given = random.Random(0), {}
    for name, number in (("train", 300), ("test", 10)):
        rows = [generator.choices("abc", k=generator.randint(1, 5)) for _ in range(number)]
        paths = [tmp_path / f"{name}.{side}" for side in ("in", "out")]
        paths[0].write_text("".join(" ".join(row) + "\n" for row in rows))
        paths[1].write_text("".join(" ".join(row).upper() + "\n" for row in rows))
        given[name] = tuple(map(str, paths))
    return given


@pytest.mark.slow
def test_generalization_trains_each_combination_once(files, tmp_path, capsys):
    options = generalization.Options(
        **files,
        models=("rotary_universal",),
        choices=("unscaled",),
        seeds=("0", "1"),
        steps=2,
        layers=1,
        max_length=5,
        runs=str(tmp_path / "runs"),
        output=str(tmp_path / "table"),
    )
    rows = generalization.run(options)
    for seed, row in enumerate(rows):
        names = ("files", "rotary_universal", "unscaled", seed)
        assert (row["dataset"], row["model"], row["choice"], row["seed"]) == names
        assert row["steps"] == 2 and {"nll", "bleu", "last", "validation"} <= row.keys()
    assert (tmp_path / "table" / "generalization.png").stat().st_size > 5000
    assert "step 2/2" in capsys.readouterr().err
    assert generalization.run(options) == rows
    log = capsys.readouterr().err
    assert "step 2/2" not in log and "scoring" not in log
    for training in (tmp_path / "runs").glob("files.*"):
        assert load_config(training).decode.max_length == 6, "five letters and EOS"
    # Another test set is scored, and nothing is trained.
    generalization.run(dataclasses.replace(options, test=files["train"]))
    log = capsys.readouterr().err
    assert "step 2/2" not in log and log.count("scoring") == 6


@pytest.mark.slow
def test_variants_are_trained_once_and_compared(tmp_path, monkeypatch, capsys):
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda data, split: load(data, split).first(4))
    runs, output = tmp_path / "runs", tmp_path / "table"
    options = variants.Options(variants=("rotary",), steps=2, runs=str(runs), output=str(output))
    [row] = variants.run(options)
    assert (row["variant"], row["fields"]) == ("rotary", "positions=rotary")
    assert row["parameters"] == 864_256
    assert (output / "variants.png").stat().st_size > 5000
    capsys.readouterr()
    variants.main(options)
    printed = capsys.readouterr()
    assert printed.out == (output / "variants.md").read_text()
    assert "scoring" not in printed.err
