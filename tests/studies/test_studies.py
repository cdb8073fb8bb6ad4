# SPDX-License-Identifier: Apache-2.0
"""Studies that train: their tables, what they refuse, and that nothing is trained twice."""

import concurrent.futures
import json
import random
import threading

import pytest
from apps import run
from etils import epath

from experiments.studies import study_runs
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


def test_a_bar_in_a_value_does_not_end_its_cell():
    signature = markdown([Column("signature", "of")], [{"of": "nrefs:1|case:mixed"}])
    assert signature.splitlines()[-1] == "| nrefs:1\\|case:mixed |"


def test_a_table_that_cannot_be_written_is_refused_with_the_flag(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--output=.*cannot be written.*name another directory"):
        write_table(epath.Path(tmp_path) / "file", "table", [], [])


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

        return study_runs.computed_once(folder / f"{name}.json", compute)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: study_runs.share(task, "abcde", folder), range(2)))
    assert sorted(done) == [*"abcde"]
    assert outcomes == [{name: {"is": name.upper()} for name in "abcde"}] * 2
    assert [*outcomes[0]] == [*outcomes[1]] == [*"abcde"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "flags", "message"),
    [
        ("variants", ["--variants=spiral"], "--variants has 'spiral', but must be of paper, lea"),
        ("variants", ["--seed=-1"], "--seed=-1, but it must be at least 0"),
        ("antecedent", ["--quadruples=0"], "--quadruples=0, but it must be at least 1"),
        ("generalization", ["--layers=0"], "--layers=0, but it must be at least 1"),
        ("generalization", ["--train=a,b"], "--train and --test must both be given, each as"),
        ("generalization", ["--models=x"], "--models has 'x', but must be of absolute, relative"),
        ("generalization", ["--seeds=1,a"], "--seeds=1,a must be whole numbers"),
    ],
)
def test_flags_that_cannot_be_are_refused_by_name(study, flags, message):
    result = run(f"experiments.studies.{study}", *flags)
    assert result.status == 1
    assert message in result.err


@pytest.fixture
def files(tmp_path):
    """--train and --test of a task that copies letters in capitals."""
    generator, given = random.Random(0), []
    for name, number in (("train", 300), ("test", 10)):
        rows = [generator.choices("abc", k=generator.randint(1, 5)) for _ in range(number)]
        paths = [tmp_path / f"{name}.{side}" for side in ("in", "out")]
        paths[0].write_text("".join(" ".join(row) + "\n" for row in rows))
        paths[1].write_text("".join(" ".join(row).upper() + "\n" for row in rows))
        given.append(f"--{name}={paths[0]},{paths[1]}")
    return given


@pytest.mark.slow
def test_generalization_trains_each_combination_once_and_averages_over_seeds(files, tmp_path):
    flags = [*files, "--steps=2", "--layers=1", "--max_length=5", f"--runs={tmp_path / 'runs'}"]
    flags += [f"--output={tmp_path / 'table'}", "--models=rotary_universal", "--choices=unscaled"]
    result = run("experiments.studies.generalization", *flags, "--seeds=0,1")
    assert result.status == 0, result.err
    assert result.out == (tmp_path / "table" / "generalization.md").read_text()
    [row] = json.loads((tmp_path / "table" / "generalization.json").read_text())
    assert (row["dataset"], row["model"], row["choice"]) == (
        "files",
        "rotary_universal",
        "unscaled",
    )
    assert (row["trainings"], row["seeds"], row["steps"]) == (2, [0, 1], 2)
    assert {"nll", "bleu", "last", "last_std", "validation"} <= row.keys()
    assert (tmp_path / "table" / "generalization.png").stat().st_size > 5000
    again = run("experiments.studies.generalization", *flags, "--seeds=0,1")
    assert again.out == result.out
    assert "step 2/2" in result.err
    assert "step 2/2" not in again.err
    assert "scoring" not in again.err
    for training in (tmp_path / "runs").glob("files.*"):
        assert load_config(training).decode.max_length == 6, "five letters and EOS"


@pytest.mark.slow
def test_variants_are_trained_once_and_compared(tmp_path):
    flags = [f"--runs={tmp_path / 'runs'}", f"--output={tmp_path / 'table'}", "--steps=2"]
    flags += ["--variants=rotary", "--sentences=4"]
    result = run("experiments.studies.variants", *flags)
    assert result.status == 0, result.err
    [row] = json.loads((tmp_path / "table" / "variants.json").read_text())
    assert (row["variant"], row["fields"], row["parameters"]) == (
        *("rotary", "positions=rotary"),
        864_256,
    )
    assert (tmp_path / "table" / "variants.png").stat().st_size > 5000
    again = run("experiments.studies.variants", *flags)
    assert again.out == result.out
    assert "scoring" not in again.err
