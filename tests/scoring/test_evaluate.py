# SPDX-License-Identifier: Apache-2.0
"""An evaluation writes scores, translations, and a report of any translations."""

import dataclasses
import datetime
import json
import math
import os
import pathlib
import re
import shutil
import threading

import jax
import pytest
from apps import run
from html_reader import Reader
from workdirs import WORDS

from experiments.data.registry import Split
from experiments.pages.evaluation import Evaluation, evaluation_page, read_metrics
from transformer.checkpoints.workdir_files import load_config
from transformer.config import RUNS, Config, DecodeConfig, ParallelConfig, TrainingConfig
from transformer.errors import InputError
from transformer.provenance import provenance
from transformer.text.metrics import corpus_scores
from transformer.translator import Translator

SOURCES = ["the cat sat on the mat", "Paris", "a dog runs", "</script>", "שלום\u2028world"]
REFERENCES = ["die Katze saß auf der Matte", "Paris", "ein Hund rennt", "<b>fett</b> & so", "hallo"]
TRANSLATIONS = ["die Katze die Katze die Katze", "Paris", "", "</script>", "hallo \u202eWelt"]


def evaluation_of(sources, references, translations):
    """The evaluation of given translations, without a model."""
    scores = {
        **corpus_scores(translations, references),
        "nll": 1.5,
        "perplexity": math.exp(1.5),
        "sentences": len(sources),
        "pronoun_accuracy": 0.25,
    }
    nll = [0.5 + row for row in range(len(sources))]
    split = Split("text_files", sources, references)
    return Evaluation(split, translations, scores, nll)


def page_of(evaluation, metrics, config=None, changes=()):
    """The parsed report."""
    return Reader(
        evaluation_page(
            "runs/<de> on test",
            evaluation,
            config or Config(decode=DecodeConfig(beams=5)),
            weights="the best checkpoint",
            parameters=1_234_567,
            metrics=metrics,
            changes=changes,
        )
    )


@pytest.fixture(scope="module")
def evaluation():
    """Five sentences, each unusual in some way."""
    return evaluation_of(SOURCES, REFERENCES, TRANSLATIONS)


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """Metrics of a run that was measured at five steps and validated at two."""
    lines = [
        {"step": step, "split": "train", "loss": 4 / step, "nll": 3 / step, "learning_rate": 0.1}
        | {"gradient_norm": 2 / step}
        for step in range(1, 6)
    ]
    lines += [{"step": step, "split": "validation", "nll": 1.0, "bleu": 20.0} for step in (2, 4)]
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def page(evaluation, metrics):
    """The report of both."""
    return page_of(evaluation, metrics)


def test_the_report_shows_every_score_with_its_interval_and_signature(evaluation, page):
    text, scores = page.text, evaluation.scores
    assert "<code>" not in text, "signatures are elements, not escaped markup"
    for name in ("bleu", "chrf"):
        low, high = scores[f"{name}_ci"]
        assert f"{scores[name]:.2f}{low:.2f} to {high:.2f}" in text
        assert scores[f"{name}_signature"] in text
    assert "pronoun accuracy0.25" in text
    assert "perplexity4.482" in text
    assert "1,234,567 parameters: the best checkpoint" in text
    assert "beam search with 5 beams, length penalty gnmt with alpha 0.6" in text
    for sentence in (SOURCES[0], REFERENCES[3], TRANSLATIONS[3], TRANSLATIONS[4]):
        assert sentence in text, "every sentence is shown as it is"
    assert "שלוםU+2028world" in text
    assert "(empty)" in text


def test_the_report_draws_the_curves_of_the_training(page):
    curves = curves_of(page)
    assert "training loss, as optimized: from 4 at 1 to 0.8 at 5" in curves
    assert "training NLL: from 3 at 1 to 0.6 at 5" in curves
    assert "validation NLL: from 1 at 2 to 1 at 4" in curves
    assert "BLEU: from 20 at 2 to 20 at 4" in curves
    assert "learning rate: from 0.1 at 1 to 0.1 at 5" in curves
    assert "gradient norm: from 2 at 1 to 0.4 at 5" in curves


def test_the_report_explains_the_loss_and_shows_the_changes_of_the_config(
    evaluation, metrics, page
):
    """The loss cannot reach 0 with label smoothing only."""
    changes = [
        {"step": 2_000, "changes": {"optimizer.learning_rate": [0.1, 0.05]}},
        {"step": 3_000, "changes": {"training.patience": [None, 3], "data.dataset": ["a", "b"]}},
    ]
    plain = Config(training=TrainingConfig(label_smoothing=0.0))
    text, changed = page.text, page_of(evaluation, metrics, plain, changes).text
    assert "2,000optimizer.learning_rate0.10.05" in changed
    assert '3,000training.patiencenull33,000data.dataset"a""b"' in changed
    assert "Changes of the config" not in text
    for shown in (text, changed):
        assert "Training is measured with dropout while the weights change, validation" in shown
    smoothed = "includes label smoothing and cannot reach 0"
    assert (smoothed in text, smoothed in changed) == (True, False)


def curves_of(page):
    """Descriptions of all figures of a page."""
    return " ".join(image["alt"] for image in page.all("img"))


def test_the_worst_sentences_come_first_and_exact_ones_are_left_out(page):
    # The table of contents names the sections too.
    start = page.text.rindex("Worst sentences")
    worst = page.text[start : page.text.index("Length", start)]
    assert "line 2 " not in worst, "Paris is correct"
    # Both score 0; the model finds the later one less likely.
    positions = [worst.index(f"line {line} ") for line in (4, 3, 1)]
    assert positions[1] == min(positions)
    assert "NLL of the reference 2.50 nats per token" in worst


def test_the_diagnostics_agree_with_counts_by_hand(page):
    rows = (*(f"repetition, {n}-gram" for n in (1, 2, 3, 4)), "empty", "copied")
    assert all(f"{row}120.00%" in page.text for row in rows)
    # 6 + 1 + 0 + 1 + 2 words for 6 + 1 + 3 + 3 + 1.
    assert f"words in all references: {10 / 14:.3f}." in page.text


def test_any_translations_have_a_report(tmp_path):
    for sources, references, translations in (
        (["a"], ["b"], ["b"]),
        (["a"], ["b"], [""]),
        (["a", "b"], ["c d", "e f"], ["", ""]),
        ([""], [""], [""]),
        (["a"] * 3, ["same"] * 3, ["same"] * 3),
    ):
        page = page_of(evaluation_of(sources, references, translations), tmp_path / "metrics.jsonl")
        assert "There are no curves: metrics.jsonl has no measurements." in page.text
        assert "nan" not in page.text + curves_of(page)


BROKEN = (
    b'{"step": 1, "split": "train", "loss": 2.0, "nll": NaN}\n'
    b'{"step": 2, "split": "train", "loss": null}\n'
    b'{"step": 3, "split": "train", "loss": "three"}\n'
    b'{"step": "4", "split": "train", "loss": 4.0}\n'
    b'{"step": 5, "split": ["train"], "loss": 4.0}\n'
    b"[1, 2]\n"
    b"7\n"
    b"{\xff}\n"
    b"\n"
    b'{"step": 6, "split": "train", "loss": 1.0}\n'
    b'{"step": 7, "split": "tra'
)


def test_unreadable_measurements_are_left_out_and_counted(evaluation, tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(BROKEN)
    by_split, unreadable = read_metrics(metrics)
    assert [line["step"] for line in by_split["train"]] == [1, 2, 3, 6]
    assert unreadable == 6
    page = page_of(evaluation, metrics)
    assert "training loss, as optimized: from 2 at 1 to 1 at 6" in curves_of(page)
    assert "6 lines of metrics.jsonl could not be read" in page.text
    assert read_metrics(metrics.parent) == ({}, 0), "a directory"


# The command.


def evaluate(workdir, *arguments):
    """Run the app."""
    finished = run("experiments.evaluate", f"--workdir={workdir}", *arguments)
    assert finished.status == 0, finished.err
    return finished


def report_of(finished):
    """The path of the report that was printed."""
    return pathlib.Path(finished.err.partition("report: ")[2].rstrip())


@pytest.fixture(scope="module")
def evaluated(given, tmp_path_factory):
    """A workdir whose learning rate was changed at step 2, and the finished evaluation of it."""
    workdir = shutil.copytree(given / "run", tmp_path_factory.mktemp("evaluated") / "run")
    config = json.loads((workdir / "config.json").read_text())
    change = {"optimizer.learning_rate": [0.25, 0.125]}
    config[RUNS] = [{"step": 2, "time": "", "provenance": {}, "changes": change}]
    (workdir / "config.json").write_text(json.dumps(config))
    first, again = (evaluate(workdir, "--split=validation") for _ in range(2))
    assert report_of(again) == report_of(first), "the same evaluation replaces its files"
    assert again.result | {"origin": None} == first.result | {"origin": None}
    return workdir, again


def test_scores_translations_and_report_are_kept_side_by_side(evaluated):
    _, finished = evaluated
    report = report_of(finished)
    assert re.fullmatch(r"validation-[0-9a-f]{8}\.html", report.name)
    assert sorted(report.parent.glob(f"{report.stem}*")) == [
        report.with_suffix(suffix) for suffix in (".html", ".json", ".txt")
    ]
    assert json.loads(report.with_suffix(".json").read_text()) == finished.result
    text = Reader(report.read_text(encoding="utf-8")).text
    assert "2optimizer.learning_rate0.250.125" in text, "the changes of its training"
    # The kept translations are those that were scored.
    kept = report.with_suffix(".txt").read_text(encoding="utf-8").split("\n")
    assert kept.pop() == ""
    assert len(kept) == len(WORDS)
    assert finished.result.items() >= corpus_scores(kept, WORDS).items()


@pytest.mark.slow
def test_evaluations_that_differ_in_anything_are_kept_apart(evaluated, tmp_path):
    """BLEU, decoding options, text of the same name in another folder, text that has changed."""
    workdir, finished = evaluated
    flags = "--split=validation", "--bleu_tokenize=none", "--bleu_lowercase"
    runs = [finished, evaluate(workdir, *flags)]
    assert {"tok:none", "case:lc"} <= set(runs[1].result["bleu_signature"].split("|"))
    runs.append(evaluate(workdir, "--split=validation", "--config.decode.beams=1"))
    for folder, words in (("one", "a b\n"), ("other", "a b\n"), ("other", "b a\n")):
        path = tmp_path / folder / "test.en"
        path.parent.mkdir(exist_ok=True)
        path.write_text(words)
        runs.append(evaluate(workdir, f"--source={path}", f"--target={path}"))
    assert len({report_of(one) for one in runs}) == 6
    for one in runs:
        assert json.loads(report_of(one).with_suffix(".json").read_text()) == one.result


@pytest.mark.slow
@pytest.mark.parametrize("app", ["evaluate", "score"])
def test_pipes_are_read_once_as_source_and_target(evaluated, tmp_path, app):
    """Both apps print for two pipes what they print for two files with the same text."""
    workdir, _ = evaluated
    words = tmp_path / "words"
    words.write_text("a b\nb a\n")

    def outcome(source, target):
        paths = (f"--source={source}", f"--target={target}")
        return run(f"experiments.{app}", f"--workdir={workdir}", *paths)

    pipes = tmp_path / "source", tmp_path / "target"
    for pipe in pipes:
        os.mkfifo(pipe)
        write = threading.Thread(target=pipe.write_bytes, args=(b"a b\nb a\n",), daemon=True)
        write.start()
    piped, files = outcome(*pipes), outcome(words, words)
    assert (piped.status, files.status) == (0, 0), piped.err + files.err
    if app == "score":
        assert piped.out == files.out
    else:
        assert piped.result | {"origin": None} == files.result | {"origin": None}


def test_scores_are_printed_where_the_workdir_cannot_be_written(given, tmp_path):
    workdir = shutil.copytree(given / "run", tmp_path / "run")
    (workdir / "evaluations").write_text("")
    finished = run("experiments.evaluate", f"--workdir={workdir}", "--split=validation")
    assert finished.status == 1
    assert str(workdir / "evaluations") in finished.err and "Traceback" not in finished.err
    assert finished.result["sentences"] == len(WORDS)


def test_an_evaluation_names_what_it_was_made_with(evaluated):
    workdir, finished = evaluated
    origin = finished.result["origin"]
    assert origin["checkpoints"] == {str(workdir): [2]}
    assert origin["decode"] == dataclasses.asdict(load_config(workdir).decode)
    assert (origin["dataset"], origin["split"]) == ("text_files", "validation")
    assert datetime.datetime.fromisoformat(origin["time"]).utcoffset() == datetime.timedelta(0)
    assert origin.items() >= provenance().items()
    assert origin["jax"] == jax.__version__
    assert origin["sacrebleu"] in finished.result["bleu_signature"]


# Devices other than those of training.


@pytest.fixture(scope="module")
def from_many_devices(evaluated, tmp_path_factory):
    """The same workdir, with the config of a training run on 32 devices."""
    workdir = shutil.copytree(evaluated[0], tmp_path_factory.mktemp("many") / "run")
    config = load_config(workdir)
    parallel = ParallelConfig(data=16, model=2, preset="fsdp_tensor")
    (workdir / "config.json").write_text(config.replace(parallel=parallel).to_json())
    return workdir


@pytest.mark.slow
def test_a_workdir_of_many_devices_is_evaluated_on_one_or_on_eight(from_many_devices, evaluated):
    divided = ["--config.parallel.data=4", "--config.parallel.model=2"]
    for flags in ((), (*divided, "--config.parallel.preset=fsdp_tensor")):
        found = evaluate(from_many_devices, "--split=validation", *flags).result
        expected = evaluated[1].result
        assert found.keys() == expected.keys()
        for name in expected.keys() - {"origin"}:
            value = expected[name]
            same = value if isinstance(value, str | list) else pytest.approx(value, rel=1e-5)
            assert found[name] == same


def test_more_devices_than_exist_are_rejected(from_many_devices):
    refused = run(
        "experiments.translate", f"--workdir={from_many_devices}", "--config.parallel.data=16"
    )
    assert (refused.status, refused.out) == (1, "")
    assert "needs 16 devices, but there are 8 (cpu)" in refused.err
    several = "however many trained; --config.parallel.data=8 divides the sentences over 8"
    printed = " ".join(run("experiments.evaluate", "--help").out.split())
    assert f"One device decodes, {several}" in printed


def test_python_reads_a_workdir_on_one_device_unless_told_otherwise(from_many_devices):
    config = load_config(from_many_devices)
    with pytest.raises(InputError, match="16 x 2 needs 32 devices, but there are 8"):
        Translator.from_workdir(from_many_devices, config)
    one = Translator.from_workdir(from_many_devices)
    parallel = ParallelConfig(data=4, model=2, preset="fsdp_tensor")
    many = Translator.from_workdir(from_many_devices, config.replace(parallel=parallel))
    assert (one.mesh.size, many.mesh.size) == (1, 8)
    table = many.params["embedding"]["table"]
    assert (table.shape, table.addressable_shards[0].data.shape) == ((8, 8), (4, 2))
    some = WORDS[:4]
    assert [found.text for found in many(some)] == [found.text for found in one(some)]


def test_python_takes_decoding_options_and_a_dtype_and_keeps_compiled_programs(
    from_many_devices, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        options = {"beams": 2, "dtype": "bfloat16", "compile_cache": True}
        translator = Translator.from_workdir(from_many_devices, **options)
        folder = tmp_path / "attention-transformer" / "compiled"
        assert jax.config.jax_compilation_cache_dir == str(folder)
    finally:
        jax.config.update("jax_compilation_cache_dir", cache)
    assert translator.config.decode.beams == 2
    assert translator.model.config.compute_dtype == "bfloat16"
    with pytest.raises(InputError, match=r"'decode\.beam'; did you mean 'decode\.beams'"):
        Translator.from_workdir(from_many_devices, beam=2)
