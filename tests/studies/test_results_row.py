# SPDX-License-Identifier: Apache-2.0
"""Rows of results: several seeds, with and without translations by teachers."""

import dataclasses
import json

import pytest
from apps import run

from experiments.data import registry
from experiments.studies import study_runs
from experiments.studies.results_row import __main__ as results_row
from transformer.checkpoints import workdir_files
from transformer.errors import InputError


@pytest.fixture
def options(tiny, tmp_path):
    return results_row.Options(
        config=tiny(),
        split="validation",
        runs=str(tmp_path / "runs"),
        output=str(tmp_path / "out"),
    )


@pytest.mark.slow
def test_more_seeds_and_other_options_add_what_is_new(options, capsys):
    """A training is scored again with other weights or another BLEU, and after more steps."""
    first = results_row.run(options)
    capsys.readouterr()
    changes = {
        "seeds": {"seeds": ("0", "1")},
        "weights": {"average": 2},
        "BLEU": {"bleu_lowercase": True},
        "steps": {"config": study_runs.with_fields(options.config, {"training.steps": 40})},
    }
    rows = {}
    for name, changed in changes.items():
        rows[name] = results_row.run(dataclasses.replace(options, **changed))
        log = capsys.readouterr().err
        assert log.count("scoring") == 1, name
        assert log.count(f"training {options.runs}") == (name == "seeds"), name
    assert [row["seed"] for row in rows["seeds"]] == [0, 1]
    assert len({row["scores"]["nll"] for row in rows["seeds"]}) == 2
    assert rows["seeds"][:1] == first
    assert rows["weights"][0]["weights"] == "the mean of the last 2 checkpoints"
    assert rows["steps"][0]["steps"] == 40
    assert len({rows[name][0]["scores"]["nll"] for name in ("weights", "BLEU", "steps")}) == 3
    assert results_row.run(dataclasses.replace(options, **changes["steps"])) == rows["steps"]
    assert "scoring" not in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_writes_and_prints_the_rows(train, tmp_path):
    flags = [flag for flag in train("") if not flag.startswith("--workdir=")]
    flags += ["--split=validation", f"--runs={tmp_path / 'runs'}", f"--output={tmp_path / 'out'}"]
    finished = run("experiments.studies.results_row.__main__", *flags)
    assert finished.status == 0, finished.err
    [row] = json.loads((tmp_path / "out" / "results_row.json").read_text())["runs"]
    assert json.loads(finished.out) == row
    assert len(row["scores"]["bleu"]) == len(row["scores"]["chrf"]) == 3
    assert "tok:" in row["signature"]


@pytest.mark.slow
def test_a_student_reads_the_pairs_and_the_translations_of_both_sides(
    options, texts, tmp_path, capsys
):
    options = dataclasses.replace(options, teachers=2, teacher_steps=20)
    row, runs = results_row.run(options), tmp_path / "runs"
    config = workdir_files.load_config(runs / "seed-0")
    corpora = registry.training_corpora(config.data)
    assert [weight for weight, _ in corpora] == [1.0, 1.0, 1.0]
    real, forward, back = (list(pairs) for _, pairs in corpora)
    lines = [(texts[0] / f"train.{side}").read_text().splitlines() for side in ("source", "target")]
    assert real == list(zip(*lines, strict=True))
    assert forward and {source for source, _ in forward} <= {*lines[0]}
    assert back and {target for _, target in back} <= {*lines[1]}
    assert sorted(each.name for each in runs.glob("teacher-*")) == ["teacher-0", "teacher-1"]
    tokenizers = [runs / name / workdir_files.TOKENIZER for name in ("teacher-0", "seed-0")]
    assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()
    capsys.readouterr()
    assert results_row.run(options) == row
    log = capsys.readouterr().err
    assert f"training {options.runs}" not in log and "scoring" not in log
    assert log.count("is complete; filtering it") == 2
    # Other teachers make other text, on which this student has not learned.
    with pytest.raises(InputError, match=r"seed-0 was started with another config[^$]*mixture"):
        results_row.run(dataclasses.replace(options, teacher_steps=40))


def test_options_that_cannot_be_are_refused_before_anything_is_trained(options, tmp_path):
    mixture = study_runs.with_fields(options.config, {"data.mixture": ("a,b",)})
    refused = {
        "--seeds=0,a must be whole numbers: 0,1,2": {"seeds": ("0", "a")},
        "--teachers and --teacher_steps go together": {"teachers": 1},
        "--average=9 must be 1 to 5, the checkpoints that": {"average": 9},
        "--runs=gs://bucket/runs must be local, because": {"runs": "gs://bucket/runs"},
        "text_files have no split 'dev'; they have": {"split": "dev"},
        "data.mixture is set, but teachers translate one corpus": {
            "config": mixture,
            "teachers": 1,
            "teacher_steps": 2,
        },
    }
    for message, changed in refused.items():
        with pytest.raises(InputError, match=message):
            results_row.run(dataclasses.replace(options, **changed))
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))
