# SPDX-License-Identifier: Apache-2.0
"""The command line end to end: train, stop, resume, evaluate, translate, score."""

import json
import shutil
import signal
import subprocess
import sys

import pytest
from apps import (
    REPOSITORY,
    STEPS,
    TINY,
    Finished,
    environment,
    lines_of,
    parameters,
    run,
    start,
)
from etils import epath
from tensorboard.backend.event_processing import event_file_loader

from experiments.training.workdir import open_for_training
from transformer.checkpoints.workdir_files import load_config


@pytest.fixture(scope="session")
def trained(train, tmp_path_factory):
    """A finished workdir, and the output of its training."""
    workdir = tmp_path_factory.mktemp("letters") / "run"
    finished = run("experiments.train", *train(workdir))
    assert finished.status == 0, finished.err
    return workdir, finished


@pytest.fixture
def workdir(trained, tmp_path):
    """A copy of the trained workdir that a test may change."""
    return shutil.copytree(trained[0], tmp_path / "copy")


# Training.


def test_the_last_line_of_training_is_one_json_object_with_the_result(trained):
    workdir, finished = trained
    [line] = finished.out.splitlines()
    result = json.loads(line)
    assert result["step"] == STEPS
    assert 0 < result["train_loss"] < 10
    assert {"nll", "perplexity", "bleu"} <= result["validation"].keys()
    assert result["validation"]["perplexity"] == pytest.approx(
        2.718281828 ** result["validation"]["nll"], rel=1e-4
    )
    assert result["seconds"] > 0
    assert result["tokens_per_second"] > 0
    # 20 x 16 embeddings; per layer 4 D^2 an attention, 2 D F + F + D feed-forward, 2 D a norm.
    assert result["parameters"] == 320 + 3 * 1024 + 2 * (1024 + 32 + 16) + 5 * 32
    assert json.loads((workdir / "result.json").read_text()) == result


MEASURED = {
    "train": {"loss", "nll", "perplexity", "accuracy", "learning_rate", "tokens_per_second"},
    "validation": {"nll", "perplexity", "bleu"},
}


def test_a_workdir_holds_the_files_of_the_contract(trained):
    workdir, finished = trained
    assert (workdir / "tokenizer.model").is_file()
    assert {f"{STEPS // 2}", f"{STEPS}"} < {
        path.name for path in (workdir / "checkpoints").iterdir()
    }
    assert not list(workdir.rglob("*.partial"))
    config = json.loads((workdir / "config.json").read_text())
    assert (config["model"]["d_model"], config["data"]["dataset"]) == (16, "text_files")

    # Each line of the metrics is one JSON object with step and split.
    metrics = lines_of(workdir / "metrics.jsonl")
    steps = {split: [m["step"] for m in metrics if m["split"] == split] for split in MEASURED}
    assert steps["train"] == [*range(1, STEPS + 1)]
    assert steps["validation"] == [*range(STEPS // 4, STEPS + 1, STEPS // 4)]
    for line in metrics:
        assert MEASURED[line["split"]] <= line.keys()
    assert metrics[-1] == {"step": STEPS, "split": "validation", **finished.result["validation"]}
    assert metrics[-2]["loss"] == finished.result["train_loss"]

    # TensorBoard reads the same numbers.
    [path] = workdir.glob("events.out.tfevents.*")
    found = {
        (event.step, value.tag): value.tensor.float_val[0]
        for event in event_file_loader.EventFileLoader(str(path)).Load()
        for value in event.summary.value
    }
    for line in metrics:
        for name in line.keys() - {"step", "split"}:
            expected = pytest.approx(line[name], rel=1e-5, abs=1e-12)
            assert found[line["step"], f"{line['split']}/{name}"] == expected


def test_every_report_is_one_line_on_standard_error(trained):
    err = trained[1].err
    [report] = [line for line in err.splitlines() if line.startswith(f"step 3/{STEPS}")]
    assert all(word in report for word in ("loss", "tokens/s", "lr", "left"))
    assert "padding" in err
    [warning] = [line for line in err.splitlines() if "warning" in line.lower()]
    assert "duplicate pairs: 4" in warning
    assert "divided along" not in err, "the table of parameters is printed on request"


def test_a_finished_run_is_reported_and_prints_the_same_last_line(trained, train, workdir):
    """Fields of parallelism and logging are not compared."""
    before = (workdir / "metrics.jsonl").read_bytes()
    for flags in ((), ("--config.logging.log_every=7", "--config.parallel.preset=fsdp")):
        again = run("experiments.train", *train(workdir, *flags))
        assert (again.status, again.out) == (0, trained[1].out)
        assert "finished" in again.err
        assert "--config.training.steps" in again.err
    assert (workdir / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_larger_number_of_steps_continues_the_training(trained, train, workdir):
    more = run("experiments.train", *train(workdir, f"--config.training.steps={STEPS + 4}"))
    assert more.status == 0, more.err
    assert f"from {STEPS} to {STEPS + 4} steps" in more.err
    assert f"continuing from step {STEPS}" in more.err
    assert more.result["step"] == STEPS + 4
    assert more.result["seconds"] > trained[1].result["seconds"]
    assert json.loads((workdir / "config.json").read_text())["training"]["steps"] == STEPS + 4
    metrics = lines_of(workdir / "metrics.jsonl")
    assert [m["step"] for m in metrics if m["split"] == "train"] == list(range(1, STEPS + 5))


def test_another_config_is_refused_with_the_difference(train, workdir):
    before = (workdir / "config.json").read_bytes()
    for flag, words in (
        ("--config.optimizer.warmup_steps=61", "optimizer.warmup_steps: 60 there, 61 now"),
        (f"--config.training.steps={STEPS - 1}", f"training.steps: {STEPS} there, {STEPS - 1} now"),
        ("--config.training.seed=1", "training.seed: 0 there, 1 now"),
    ):
        finished = run("experiments.train", *train(workdir, flag))
        assert (finished.status, finished.out) == (1, "")
        assert words in finished.err
        assert finished.err.count(" there, ") == 1, "the one difference"
    assert (workdir / "config.json").read_bytes() == before


def test_a_second_training_in_the_same_workdir_is_refused(train, workdir):
    with open_for_training(epath.Path(workdir), load_config(workdir)):
        finished = run("experiments.train", *train(workdir))
    assert (finished.status, finished.out) == (1, "")
    assert "another training is running" in finished.err
    assert run("experiments.train", *train(workdir)).status == 0


def stop(arguments, number, at):
    """Train until a line starts with `at`, send the signal, and wait for the end."""
    process = start("experiments.train", *arguments)
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith(at):
            process.send_signal(number)
            break
    out, err = process.communicate(timeout=300)
    return Finished(process.returncode, out, "".join(said) + err)


@pytest.mark.slow
def test_a_training_stopped_three_times_ends_bit_for_bit_like_a_straight_one(
    trained, train, tmp_path
):
    arguments = train(tmp_path)
    reached = 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        stopped = stop(arguments, number, "step ")
        assert (stopped.status, stopped.out) == (128 + number, "")
        before, (reached, _) = reached, parameters(tmp_path)
        assert before < reached < STEPS // 2
        assert f"stopped by {number.name} after step {reached}, saved" in stopped.err
        assert not (tmp_path / "result.json").exists()
    killed = stop(arguments, signal.SIGKILL, f"step {STEPS // 2 + 1}/")
    assert killed.status == -signal.SIGKILL
    assert f"continuing from step {reached}" in killed.err

    finished = run("experiments.train", *arguments)
    assert finished.status == 0, finished.err
    assert "continuing from step" in finished.err
    assert parameters(tmp_path) == parameters(trained[0])
    for name in ("step", "train_loss", "validation"):
        assert finished.result[name] == trained[1].result[name]
    metrics = lines_of(tmp_path / "metrics.jsonl")
    assert [m["step"] for m in metrics if m["split"] == "train"] == list(range(1, STEPS + 1))


# Evaluation.

EVALUATED = {
    *("bleu", "bleu_signature", "bleu_ci", "chrf", "exact_match"),
    *("nll", "perplexity", "sentences"),
}


@pytest.fixture(scope="session")
def evaluated(trained):
    """The evaluation of the test split."""
    finished = run("experiments.evaluate", f"--workdir={trained[0]}")
    assert finished.status == 0, finished.err
    return finished


def test_evaluation_prints_one_json_object_and_keeps_it(trained, evaluated):
    [line] = evaluated.out.splitlines()
    scores = json.loads(line)
    assert scores.keys() >= EVALUATED
    assert scores["sentences"] == 9
    low, high = scores["bleu_ci"]
    assert low <= high
    assert "tok:13a" in scores["bleu_signature"]
    assert kept_evaluations(trained[0], "test") == [scores]


def kept_evaluations(workdir, name):
    """The JSON of every evaluation with a name."""
    paths = (workdir / "evaluations").glob(f"{name}-????????.json")
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.slow
def test_an_embedded_corpus_is_evaluated_by_split_name(tmp_path):
    workdir = tmp_path / "run"
    small = ("--config.data.tokens_per_batch=192", "--config.training.validate_every=6")
    flags = (*TINY, *small, "--config.training.steps=12", "--verbose")
    finished = run("experiments.train", "--config=copy", f"--workdir={workdir}", *flags)
    assert finished.status == 0, finished.err
    assert "divided along" in finished.err, "the table of parameters"
    evaluated = run("experiments.evaluate", f"--workdir={workdir}", "--split=validation")
    assert evaluated.status == 0, evaluated.err
    scores = json.loads(evaluated.out)
    assert scores["sentences"] == 500
    assert scores["nll"] == pytest.approx(finished.result["validation"]["nll"], rel=1e-5)
    assert kept_evaluations(workdir, "validation") == [scores]
    refused = run("experiments.evaluate", f"--workdir={workdir}", "--split=tset")
    assert (refused.status, refused.out) == (1, "")
    assert "no split 'tset'" in refused.err
    assert "train, validation, test" in refused.err


def test_files_of_a_split_score_like_the_split(trained, texts, evaluated):
    finished = run(
        "experiments.evaluate",
        f"--workdir={trained[0]}",
        f"--source={texts[0] / 'test.source'}",
        f"--target={texts[0] / 'test.target'}",
    )
    assert kept_evaluations(trained[0], "test.source-test.target") == [finished.result]
    one, other = finished.result, evaluated.result
    origins = one.pop("origin"), other.pop("origin")
    assert one == other
    assert origins[0]["sha256"] == origins[1]["sha256"]
    assert origins[0]["source"] == str(texts[0] / "test.source")


@pytest.mark.slow
def test_the_evaluation_of_averaged_weights_has_a_separate_file(trained, evaluated):
    finished = run("experiments.evaluate", f"--workdir={trained[0]}", "--average=2")
    assert finished.result.keys() >= EVALUATED
    assert finished.result["nll"] != evaluated.result["nll"]
    assert finished.result in kept_evaluations(trained[0], "test")
    assert evaluated.result in kept_evaluations(trained[0], "test")


def test_line_scores_sum_to_the_nll_of_the_evaluation(trained, texts, evaluated):
    finished = run(
        "experiments.score",
        f"--workdir={trained[0]}",
        f"--source={texts[0] / 'test.source'}",
        f"--target={texts[0] / 'test.target'}",
    )
    assert finished.status == 0, finished.err
    rows = [line.split("\t") for line in finished.out.splitlines()]
    targets = (texts[0] / "test.target").read_text().splitlines()
    assert [int(tokens) for _, tokens in rows] == [len(line.split()) + 1 for line in targets]
    total = sum(float(log_prob) for log_prob, _ in rows)
    tokens = sum(int(count) for _, count in rows)
    assert -total / tokens == pytest.approx(evaluated.result["nll"], abs=1e-6)


# Translation.

INPUT = "a b c\n\nh g f e d c b\nb\n   \na\n"


@pytest.fixture(scope="session")
def translated(trained):
    """The translations of the input above by the command that a user would run."""
    process = subprocess.run(
        [sys.executable, "-m", "experiments.translate", f"--workdir={trained[0]}"],
        cwd=REPOSITORY,
        env=environment(),
        input=INPUT.encode(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    assert process.stderr == b""
    return process.stdout.decode()


def translate(workdir, *flags, text=INPUT):
    """Run the app on the input."""
    return run("experiments.translate", f"--workdir={workdir}", *flags, stdin=text.encode())


def test_every_input_line_has_one_output_line_and_empty_lines_stay_empty(trained, translated):
    lines = translated.split("\n")
    assert len(lines) == 7
    assert not (lines[1] or lines[4] or lines[6])
    assert any(lines)
    for index in (1, 2, 3):
        alone = translate(trained[0], text=INPUT.splitlines()[index] + "\n")
        assert alone.out == lines[index] + "\n", "the order is that of the input"
    empty = translate(trained[0], text="")
    assert (empty.status, empty.out, empty.err) == (0, "", "")


def test_files_are_translated_like_standard_input(trained, translated, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text(INPUT, encoding="utf-8")
    finished = translate(trained[0], f"--input={source}", f"--output={target}", text="")
    assert (finished.status, finished.out) == (0, "")
    assert target.read_text(encoding="utf-8") == translated


def rows_of(finished):
    """The columns of each line that an app has printed."""
    assert finished.status == 0, finished.err
    return [line.split("\t") for line in finished.out.removesuffix("\n").split("\n")]


def test_an_nbest_list_has_index_score_and_text(trained, translated):
    rows = rows_of(translate(trained[0], "--nbest=2"))
    assert [int(index) for index, _, _ in rows] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [text for _, _, text in rows[::2]] == translated.splitlines()
    for (_, better, _), (_, worse, _) in zip(rows[::2], rows[1::2], strict=True):
        assert float(better) >= float(worse)


@pytest.mark.slow
def test_scores_precede_the_translations(trained, translated):
    rows = rows_of(translate(trained[0], "--scores"))
    assert [text for _, text in rows] == translated.splitlines()
    numbered = [[str(index), *row] for index, row in enumerate(rows)]
    assert numbered == rows_of(translate(trained[0], "--nbest=1"))


@pytest.mark.slow
def test_decode_fields_are_overridden(trained, translated):
    allowed = translate(trained[0], "--nbest=3", "--config.decode.beams=3")
    assert len(rows_of(allowed)) == 18
    short = translate(trained[0], "--config.decode.max_length=1")
    assert short.out == "\n" * 6, "only EOS fits"


def test_a_line_that_is_too_long_is_reported_by_number_and_translated(trained):
    finished = translate(trained[0], text=f"a\n{' '.join('abcdefgh')}\nb\n")
    assert len(rows_of(finished)) == 3
    [warning] = finished.err.splitlines()
    assert "line 2 has 9 tokens" in warning


def test_a_copied_and_renamed_workdir_translates_the_same(trained, translated, tmp_path):
    moved = shutil.copytree(trained[0], tmp_path / "elsewhere" / "renamed")
    hidden = trained[0].rename(trained[0].with_name("hidden"))
    try:
        finished = translate(moved)
    finally:
        hidden.rename(trained[0])
    assert (finished.status, finished.out) == (0, translated)


@pytest.mark.slow
def test_apps_that_read_a_workdir_do_not_change_the_model(trained, workdir):
    def contents():
        paths = (p for p in workdir.rglob("*") if p.is_file() and "evaluations" not in p.parts)
        return {path: path.read_bytes() for path in paths}

    before = contents()
    translate(workdir)
    run("experiments.evaluate", f"--workdir={workdir}")
    assert contents() == before
