# SPDX-License-Identifier: Apache-2.0
"""A row of results: several seeds in one command, with and without translations by teachers."""

import json
import re

import pytest
from apps import lines_of, run

from experiments.data import registry
from experiments.studies import seed_rows
from transformer.checkpoints import workdir_files


def test_a_row_has_the_scores_of_each_seed_and_the_mean():
    shared = {"parameters": 10, "step": 5, "bleu_signature": "nrefs:1"}
    scores = [(40.0, 60.1, 1.5, 60), (41.0, 60.2, 1.6, 120)]
    results = [
        shared
        | {"seed": seed, "bleu": bleu, "bleu_ci": [bleu - 1, bleu + 1]}
        | {"chrf": chrf, "nll": nll, "seconds": seconds}
        for seed, (bleu, chrf, nll, seconds) in enumerate(scores)
    ]
    row = seed_rows.row_of(results)
    assert (row["seeds"], row["steps"], row["signature"]) == ("0; 1", 5, "nrefs:1")
    assert row["bleu"] == "40.0 [39.0, 41.0]; 41.0 [40.0, 42.0]"
    assert (row["mean_bleu"], row["minutes"]) == (40.5, 1.5)
    assert (row["chrf"], row["nll"]) == ("60.1; 60.2", "1.500; 1.600")
    assert row["trainings"] == results


def test_the_hardware_has_a_name():
    assert re.fullmatch(r"(1 core|\d+ cores) of .+", seed_rows.hardware())


@pytest.fixture
def study(train, tmp_path):
    """Run the app on letters and their capitals: (flags) -> what it did."""
    flags = [flag for flag in train("") if not flag.startswith("--workdir=")]
    flags += ["--config.decode.extra_length=4", "--split=validation"]
    flags += [f"--runs={tmp_path / 'runs'}", f"--output={tmp_path / 'out'}"]
    return lambda *more: run("experiments.studies.results_row", *flags, *more)


@pytest.mark.slow
def test_more_seeds_add_to_the_row_and_nothing_is_done_twice(study, tmp_path):
    first = study("--seeds=0")
    assert first.status == 0, first.err
    both = study("--seeds=0,1")
    assert both.status == 0, both.err
    assert both.out == (tmp_path / "out" / "results_row.md").read_text()
    [row] = json.loads((tmp_path / "out" / "results_row.json").read_text())
    assert row["command"].endswith("--seeds=0,1") and row["config"].endswith("base.py")
    assert [training["seed"] for training in row["trainings"]] == [0, 1]
    assert "teacher_minutes" not in row
    again = study("--seeds=0,1")
    assert again.out == both.out
    assert "step " not in again.err and "scoring" not in again.err
    # The two trainings differ.
    metrics = [lines_of(tmp_path / "runs" / f"seed-{seed}" / "metrics.jsonl") for seed in (0, 1)]
    assert metrics[0][-1]["nll"] != metrics[1][-1]["nll"]


@pytest.mark.slow
def test_a_training_that_continues_is_scored_again(study, tmp_path):
    losses = []
    for steps in (20, 40):
        finished = study(f"--config.training.steps={steps}", "--config.training.validate_every=20")
        assert finished.status == 0, finished.err
        assert "scoring" in finished.err
        [row] = json.loads((tmp_path / "out" / "results_row.json").read_text())
        assert row["steps"] == steps
        losses.append(row["nll"])
    assert losses[0] != losses[1]


@pytest.mark.slow
def test_the_mean_of_checkpoints_is_scored_apart_from_the_best_one(study, tmp_path):
    losses = {}
    for flags in ((), ("--average=2",)):
        finished = study(*flags)
        assert finished.status == 0, finished.err
        [row] = json.loads((tmp_path / "out" / "results_row.json").read_text())
        losses[row["weights"]] = row["nll"]
    assert set(losses) == {
        "the best checkpoint by validation NLL",
        "the mean of the last 2 checkpoints",
    }
    assert len(set(losses.values())) == 2


@pytest.mark.slow
def test_a_student_reads_the_pairs_and_the_translations_of_both_sides(study, texts, tmp_path):
    flags = ["--teachers=2", "--teacher_steps=20"]
    finished = study(*flags)
    assert finished.status == 0, finished.err
    runs = tmp_path / "runs"
    config = workdir_files.load_config(runs / "seed-0")
    corpora = registry.training_corpora(config.data)
    assert [weight for weight, _ in corpora] == [1.0, 1.0, 1.0]
    real, forward, back = (list(pairs) for _, pairs in corpora)
    lines = [(texts[0] / f"train.{side}").read_text().splitlines() for side in ("source", "target")]
    assert real == list(zip(*lines, strict=True))
    assert forward and {source for source, _ in forward} <= {*lines[0]}
    assert back and {target for _, target in back} <= {*lines[1]}
    assert [name for name in ("teacher-0", "teacher-1", "teacher-2") if (runs / name).exists()] == [
        "teacher-0",
        "teacher-1",
    ]
    tokenizers = [runs / name / workdir_files.TOKENIZER for name in ("teacher-0", "seed-0")]
    assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()
    again = study(*flags)
    assert again.out == finished.out
    assert "step " not in again.err and "scoring" not in again.err
    assert again.err.count("is complete; filtering it") == 2
    # Other teachers make other text, on which this student has not learned.
    other = study("--teachers=2", "--teacher_steps=40")
    assert other.status == 1
    assert "seed-0 was started with another config" in other.err
    assert "data.mixture" in other.err and "give --continue_with_changes to train" in other.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds=0,a"], "--seeds=0,a must be whole numbers: 0,1,2"),
        (["--teachers=1"], "--teachers and --teacher_steps go together; give both or neither"),
        (
            ["--average=9"],
            "--average=9 must be 1 to 5, the checkpoints that a training keeps; keep",
        ),
        (["--average=0"], "--average=0 must be 1 to 5"),
        (["--runs=gs://bucket/runs"], "--runs=gs://bucket/runs must be local, because"),
        (["--bleu_tokenize=words"], "'words'"),
        (["--workdir=runs/a"], "Unknown command line flag 'workdir'"),
        (["--split=dev"], "text_files have no split 'dev'; they have"),
        (
            ["--teachers=1", "--teacher_steps=2", "--config.data.mixture=('a,b',)"],
            "data.mixture is set, but teachers translate one corpus",
        ),
    ],
)
def test_flags_that_cannot_be_are_refused_before_anything_is_trained(
    study, tmp_path, flags, message
):
    refused = study(*flags)
    assert refused.status == 1
    assert message in refused.err and "Traceback" not in refused.err
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))
