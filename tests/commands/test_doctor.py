# SPDX-License-Identifier: Apache-2.0
"""Problems of a corpus are counted and located by file and line, and nothing is changed."""

import json
import os
import re
import subprocess
import sys
import unicodedata

import pytest
from apps import CONFIGS, REPOSITORY, TINY, run, users_environment

from experiments import doctor as doctor_app

PLAIN = [  # the last two have no words that the others lack
    ("the cat sat on the mat", "die Katze sass auf der Matte"),
    ("a dog ran to the house", "ein Hund rannte zum Haus"),
    ("we read old books", "wir lesen alte Buecher"),
    ("she sings in the garden", "sie singt im Garten"),
    ("a cat sat in the old garden", "die alte Katze sass im Garten"),
    ("she ran to the mat", "ein Hund rannte zum Garten"),
]


@pytest.fixture
def write(tmp_path):
    """A function that writes the pairs of a split and returns the flags that name its files."""

    def to(split, pairs):
        named = []
        for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            path = tmp_path / f"{split}.{side}"
            path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
            named.append(f"--config.data.{split}_{side}={path}")
        return named

    return to


def doctor(*arguments):
    """Run the app on text files with a tiny model."""
    return run(
        "experiments.doctor",
        f"--config={CONFIGS / 'base.py'}",
        *TINY,
        "--config.model.vocab_size=60",
        "--config.data.max_length=64",
        "--config.data.bucket_lengths=(32,64)",
        "--config.data.tokens_per_batch=512",
        "--config.training.steps=6",
        *arguments,
    )


def contents(folder):
    """Every file in a folder, with its modification time and its bytes."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_clean_corpus_has_no_findings_and_nothing_is_changed(write, tmp_path):
    files = [*write("train", PLAIN[:4]), *write("validation", PLAIN[4:5])]
    files += write("test", PLAIN[5:])
    before, here = contents(tmp_path), sorted(os.listdir(REPOSITORY))
    finished = doctor(*files)
    assert finished.status == 0, finished.err
    assert contents(tmp_path) == before
    assert sorted(os.listdir(REPOSITORY)) == here, "the working directory"
    result = finished.result
    assert result["errors"] == []
    assert [result[split]["pairs"] for split in ("train", "validation", "test")] == [4, 1, 1]
    assert finished.out.count("no findings") == 3
    assert [result[split]["findings"] for split in ("train", "validation", "test")] == [[], [], []]
    # The run is described as train will execute it.
    figures = finished.result["run"]
    # 60 x 16 embeddings; 4 D^2 an attention, 2 D F + F + D a feed-forward layer, 2 D a norm.
    assert figures["parameters"] == 960 + 3 * 1024 + 2 * (1024 + 32 + 16) + 5 * 32
    assert (figures["batches_per_epoch"], figures["epochs"]) == (1, 6.0)
    [shape] = figures["shapes"]
    assert (shape["rows"], shape["length"], shape["batches"]) == (16, 32, 1)
    assert figures["training_flops"] == 6 * shape["flops"]
    assert figures["needed_bytes"] == shape["peak_bytes"] <= figures["available_bytes"]
    assert figures["process_bytes"] > figures["needed_bytes"]
    assert figures["fits"]
    tokens = finished.result["train"]["target"]["tokens"]
    assert figures["padding_share"] == pytest.approx(1 - tokens / (16 * 32))
    assert figures["expected_seconds"] == pytest.approx(6 * figures["step_seconds"])
    assert 0 < figures["step_seconds"] < 30
    assert "train can start:\n\n  transformer train --config=" in finished.out
    assert f"{files[0]} {files[1]}" in finished.out
    cost = r"It takes about \d.* on this machine, and .*iB of memory a device"
    assert re.search(cost, finished.out)


def test_suspicious_text_that_train_accepts_is_no_error(write):
    decomposed = unicodedata.normalize("NFD", "schön")
    train = [*PLAIN[:4], ("", "leer"), PLAIN[0], ("ja  nein", "tab\there"), (decomposed, "schoen")]
    files = [*write("train", train), *write("validation", [PLAIN[0]])]
    finished = doctor(*files, "--notiming")
    assert finished.status == 0, finished.err
    findings = {one["rule"]: one for one in finished.result["train"]["findings"]}
    assert findings.keys() == {
        *("empty", "duplicates", "spaces", "control_characters", "not_normalized"),
    }
    assert {one["count"] for one in findings.values()} == {1}
    [empty] = findings["empty"]["locations"]
    assert empty.endswith("train.source:5")
    assert findings["empty"]["severity"] == "dropped"
    overlap = {one["rule"] for one in finished.result["validation"]["findings"]}
    assert overlap == {"sources_in_training", "targets_in_training", "pairs_in_training"}
    assert finished.result["run"]["step_seconds"] is None
    assert finished.result["test"] is None
    assert "data.test_source is not given" in finished.out
    assert "--notiming was given" in finished.out


def test_text_that_train_refuses_is_an_error_and_the_rest_is_still_checked(write, tmp_path):
    train = write("train", [*PLAIN[:4], PLAIN[0]])
    with open(tmp_path / "train.target", "a") as file:
        file.write("eine Zeile zu viel\n")
    finished = doctor(*train, *write("validation", PLAIN[4:5]), "--notiming")
    assert finished.status == 1
    assert "train.source has 5 lines" in finished.err
    assert "train.target has 6" in finished.err
    assert "Traceback" not in finished.err
    result = json.loads(finished.out.splitlines()[-1])
    assert len(result["errors"]) == 1
    assert [one["rule"] for one in result["train"]["findings"]] == ["unreadable", "duplicates"]
    assert result["train"]["pairs"] == 5
    assert result["run"]["parameters"] > 0


def test_without_a_vocabulary_the_text_is_still_checked(write):
    files = [*write("train", [*PLAIN, PLAIN[0]]), *write("validation", PLAIN[4:5])]
    finished = doctor(*files, "--config.model.vocab_size=5000")
    assert finished.status == 1
    assert "model.vocab_size is 5000" in finished.err
    assert [one["rule"] for one in finished.result["train"]["findings"]] == ["duplicates"]
    assert finished.result["run"] is None


def test_what_train_refuses_beside_the_text_is_an_error_too(write):
    """There is no MeCab for Korean here, and no such memory."""
    files = [*write("train", PLAIN * 10), *write("validation", PLAIN)]
    large = "--config.model.d_model=65536", "--config.model.d_ff=262144"
    korean = "--config.evaluation.bleu_tokenize=ko-mecab"
    finished = doctor(*files, "--notiming", *large, korean)
    assert finished.status == 1
    errors = " ".join(finished.result["errors"])
    assert "the training step needs at least" in errors
    assert "'ko-mecab' needs more" in errors


@pytest.mark.slow
def test_targets_that_are_too_long_for_a_classifier_are_an_error(write):
    files = [*write("train", PLAIN * 10), *write("validation", PLAIN)]
    config = f"--config={CONFIGS / 'antecedent_classifier.py'}"
    vocabulary = "--config.model.vocab_size=20", "--config.model.source_vocab_size=20"
    flags = "--config.data.dataset=text_files", "--notiming", *vocabulary
    finished = run("experiments.doctor", config, *files, *flags)
    assert finished.status == 1
    assert "predicts at most 2" in " ".join(finished.result["errors"])


def test_a_step_that_does_not_fit_the_memory_comes_with_a_remedy(capsys):
    doctor_app._print_memory(2**30, 2**30, micro_batches=2, remat="none")
    assert capsys.readouterr().out.strip().endswith("1.00 GiB a device, of 1.00 GiB: it fits")
    doctor_app._print_memory(2**30 + 1, 2**30, micro_batches=2, remat="none")
    out = capsys.readouterr().out
    assert "it does not fit" in out
    assert "--config.training.micro_batches=4" in out
    assert "--config.training.batch_fitting=auto" in out
    assert "--config.model.remat=full" in out
    doctor_app._print_memory(2**30 + 1, 2**30, micro_batches=2, remat="full")
    assert "remat" not in capsys.readouterr().out


@pytest.mark.slow
def test_an_embedded_corpus_is_checked_too():
    finished = run(
        "experiments.doctor",
        f"--config={CONFIGS / 'copy.py'}",
        *TINY,
        "--config.data.tokens_per_batch=192",
        "--notiming",
    )
    assert finished.status == 0, finished.err
    result = finished.result
    [identical] = result["train"]["findings"]
    assert (identical["rule"], identical["count"]) == ("identical", result["train"]["pairs"])
    assert result["vocabulary"].keys() == {"source", "target"}


TRAIN_AND_PRINT_PEAK = """
import atexit, runpy
from experiments.benchmarks.worker import peak_mib

atexit.register(lambda: print(peak_mib()))
runpy.run_module("experiments.train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_the_memory_that_is_announced_is_what_a_training_takes(tmp_path):
    """Every length of batches is trained on, and validated twice, with a user's allocator."""
    config = f"--config={CONFIGS / 'pronouns.py'}:de"
    usual = users_environment(tmp_path / "cache")

    def last_line(*command: str) -> str:
        finished = subprocess.run(
            [sys.executable, *command], env=usual, stdout=subprocess.PIPE, text=True, check=True
        )
        return finished.stdout.splitlines()[-1]

    announced = json.loads(last_line("-m", "experiments.doctor", config))["run"]["process_bytes"]
    arguments = (
        *(config, f"--workdir={tmp_path / 'de'}"),
        *("--config.training.steps=40", "--config.training.validate_every=20"),
    )
    peak = int(last_line("-c", TRAIN_AND_PRINT_PEAK, *arguments)) << 20
    print(f"announced {announced / 2**30:.2f} GiB, taken {peak / 2**30:.2f} GiB")
    assert peak <= announced <= 1.4 * peak
