# SPDX-License-Identifier: Apache-2.0
"""Workdirs and data in an object store."""

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from apps import REPOSITORY, environment, lines_of, run
from etils.epath import backend
from fsspec.registry import _registry
from tensorboard.backend.event_processing import event_file_loader
from workdirs import training

from experiments.console.progress import TrainingProgress
from experiments.data.text_files import TwoFiles, lines
from experiments.storage import user_cache
from experiments.training import metrics_log, workdir
from transformer import paths
from transformer.checkpoints.workdir_files import load_config
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer, Vocabularies

STORES = pathlib.Path(__file__).parent / "stores"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A local folder that serves as gs:// and s3://, with one bucket."""
    monkeypatch.syspath_prepend(STORES)
    import gcsfs
    import s3fs

    monkeypatch.setitem(_registry, "gcs", gcsfs.GCSFileSystem)
    monkeypatch.setitem(_registry, "gs", gcsfs.GCSFileSystem)
    monkeypatch.setitem(_registry, "s3", s3fs.S3FileSystem)
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    backend._FileSystemSpecBackend._get_filesystem.cache_clear()
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    yield tmp_path / "store"
    backend._FileSystemSpecBackend._get_filesystem.cache_clear()


@pytest.fixture
def remote(store):
    """A workdir in the store, and the local folder with its files."""
    return paths.reachable("gs://bucket/run"), store / "bucket" / "run"


# Paths.


def test_a_path_in_a_store_keeps_both_slashes(remote, tmp_path, monkeypatch):
    workdir, _ = remote
    assert str(workdir / "checkpoints" / "3") == "gs://bucket/run/checkpoints/3"
    assert paths.is_remote(workdir) and paths.is_remote("s3://bucket")
    assert not paths.is_remote(pathlib.Path("gs://bucket")), "pathlib has dropped one"
    assert str(paths.reachable("runs/de")) == "runs/de"
    monkeypatch.chdir(tmp_path)
    assert str(paths.absolute("runs/de")) == f"{tmp_path}/runs/de"
    assert str(paths.absolute("gs://bucket/run")) == "gs://bucket/run"


def test_a_missing_directory_has_no_children(remote):
    directory, files = remote
    assert paths.children(directory) == []
    (files / "b").mkdir(parents=True)
    (files / "b" / "file").touch()
    (files / "a").touch()
    assert [str(path) for path in paths.children(directory)] == [
        "gs://bucket/run/a",
        "gs://bucket/run/b",
    ]


def test_a_path_that_cannot_be_used_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "adlfs", None)
    lost = pathlib.Path("gs://bucket/run")
    for path, words in (
        (lost, "gs:/bucket/run has one slash instead of two"),
        ("ftp://host/run", "ftp://host/run: the scheme .*gs://, s3://"),
        ("file:///run", "file:///run: the scheme .*gs://, s3://"),
        ("az://bucket/run", "az:// needs the package adlfs.*pip install adlfs"),
    ):
        with pytest.raises(InputError, match=words):
            paths.reachable(path)
    assert paths.local("tokens", "data.token_cache") == "tokens"
    with pytest.raises(InputError, match="data.token_cache is gs://b/tokens.*name a local folder"):
        paths.local("gs://b/tokens", "data.token_cache")


def test_an_unreachable_store_is_one_message(remote, monkeypatch):
    def forbidden(*_):
        raise RuntimeError("Invalid Credentials, 401\nand a long explanation")

    monkeypatch.setattr(sys.modules["gcsfs"].GCSFileSystem, "exists", forbidden)
    with pytest.raises(InputError, match="gs://bucket/run cannot be reached: Invalid .*, 401; che"):
        load_config("gs://bucket/run")


# Text files.


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_remote_text_is_read_like_local_text(store, scheme):
    (store / "bucket" / "a.en").write_bytes(b"one\r\ntwo\n")
    (store / "bucket" / "a.de.gz").write_bytes(gzip.compress("eins\nzw\u2028ei\n".encode()))
    files = [f"{scheme}://bucket/a.en", f"{scheme}://bucket/a.de.gz"]
    assert TwoFiles(*files).read() == (["one", "two"], ["eins", "zw\u2028ei"])
    pairs = TwoFiles(*files)
    assert pairs.count() == 2
    assert pairs.languages == ("en", "de")
    assert pairs.location(1) == (f"{scheme}://bucket/a.en:2", f"{scheme}://bucket/a.de.gz:2")


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_file_is_fetched_once_and_again_when_it_has_changed(store, capfd, scheme):
    file, path = store / "bucket" / "text", f"{scheme}://bucket/text"
    file.write_text("old\n")
    pairs = TwoFiles(path, path)
    before = pairs.identity()
    assert list(lines(path)) == list(lines(path)) == ["old"]
    assert capfd.readouterr().err.count("fetching") == 1

    file.write_text("new\n")
    os.utime(file, (time.time() + 10,) * 2)
    assert list(lines(path)) == ["new"]
    assert capfd.readouterr().err.count(f"fetching {path}") == 1
    assert pairs.identity() != before
    assert len([p for p in user_cache.folder("fetched").iterdir() if p.name != ".lock"]) == 1


def test_errors_in_a_remote_file_name_its_remote_path(store):
    (store / "bucket" / "latin").write_bytes(b"a\nsch\xf6n\n")
    with pytest.raises(InputError, match="^gs://bucket/latin:2: byte 0xf6"):
        list(lines("gs://bucket/latin"))
    with pytest.raises(InputError, match="^gs://bucket/no cannot be read: no such file"):
        list(lines("gs://bucket/no"))
    with pytest.raises(InputError, match="^gs://bucket cannot be read: it is a directory"):
        list(lines("gs://bucket"))


def test_an_interrupted_fetch_leaves_no_copy(store, monkeypatch):
    (store / "bucket" / "text").write_text("one\ntwo\n")

    def broken(source, target, _):
        target.write(source.read(5))
        raise ConnectionResetError("reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", broken)
        with pytest.raises(InputError, match="gs://bucket/text could not be fetched.*by peer"):
            list(lines("gs://bucket/text"))
    assert list(lines("gs://bucket/text")) == ["one", "two"]


# The workdir.

CONFIG = Config(model=TransformerConfig(vocab_size=8, num_layers=1, d_model=8, d_ff=8, num_heads=2))


def test_a_workdir_in_a_store_refuses_another_config(remote):
    directory, files = remote
    tokenizer = Tokenizer.train(["a b c d"], 8, "word")
    with workdir.open_for_training(directory, CONFIG):
        workdir.initialize(directory, CONFIG, Vocabularies(tokenizer, tokenizer))
    assert sorted(os.listdir(files)) == ["config.json", "tokenizer.model"]
    assert load_config("gs://bucket/run") == CONFIG
    assert Tokenizer.load("gs://bucket/run/tokenizer.model").model == tokenizer.model
    other = CONFIG.replace(training=CONFIG.training.replace(seed=1))
    with (
        pytest.raises(InputError, match="gs://bucket/run was started with another config"),
        workdir.open_for_training(directory, other),
    ):
        pass


# Metrics.


def test_the_log_of_a_remote_workdir_is_copied_with_each_validation(remote):
    directory, files = remote
    with metrics_log.MetricsLog(directory, 0, tensorboard=True) as log:
        log.write(1, "train", {"loss": 2.0})
        assert not files.exists()
        log.write(1, "validation", {"nll": 3.0})
        assert lines_of(files / "metrics.jsonl") == [
            {"step": 1, "split": "train", "loss": 2.0},
            {"step": 1, "split": "validation", "nll": 3.0},
        ]
        log.write(2, "train", {"loss": 1.0})
        assert len(lines_of(files / "metrics.jsonl")) == 2
    assert len(lines_of(files / "metrics.jsonl")) == 3
    with metrics_log.MetricsLog(directory, 1, tensorboard=False) as log:
        log.write(2, "train", {"loss": 1.5})
    assert [line.get("loss") for line in lines_of(files / "metrics.jsonl")] == [2.0, None, 1.5]
    [events] = files.glob("events.out.tfevents.*")
    found = [
        (event.step, value.tag, value.tensor.float_val[0])
        for event in event_file_loader.EventFileLoader(str(events)).Load()
        for value in event.summary.value
    ]
    assert found == [(1, "train/loss", 2), (1, "validation/nll", 3), (2, "train/loss", 1)]


def test_the_log_of_a_remote_workdir_is_copied_at_intervals(remote, monkeypatch):
    monkeypatch.setattr(metrics_log.MetricsLog, "COPY_INTERVAL_SECONDS", 0.0)
    directory, files = remote
    with metrics_log.MetricsLog(directory, 0, tensorboard=False) as log:
        log.write(1, "train", {"loss": 2.0})
        assert len(lines_of(files / "metrics.jsonl")) == 1


def test_a_store_that_is_briefly_unavailable_does_not_stop_a_training(remote, monkeypatch, caplog):
    directory, files = remote

    def unreachable(*_, **__):
        raise RuntimeError("503")

    with metrics_log.MetricsLog(directory, 0, tensorboard=False) as log:
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["gcsfs"].GCSFileSystem, "_open", unreachable)
            log.write(1, "validation", {"nll": 3.0})
        assert "not copied: gs://bucket/run/metrics.jsonl cannot be written: 503" in caplog.text
    assert len(lines_of(files / "metrics.jsonl")) == 1


def test_only_process_0_logs_and_shows_progress(tmp_path, capfd):
    values = {"loss": 1.0, "tokens_per_second": 1.0, "learning_rate": 1.0, "seconds_left": 1.0}
    with (
        metrics_log.MetricsLog(None, 0, tensorboard=True) as log,
        TrainingProgress(0, 2, shown=False) as progress,
    ):
        log.write(1, "validation", values)
        progress.advance(1)
        progress.report(1, values)
        progress.say("a line")
    assert capfd.readouterr() == ("", "")
    with TrainingProgress(0, 2) as progress:
        progress.report(1, values)
    assert "step 1/2" in capfd.readouterr().err


# Every app.


def test_every_app_refuses_an_unusable_path_with_one_message(given):
    for command in (
        "train --workdir=ftp://host/run --config=copy",
        "evaluate --workdir=ftp://host/run",
        "translate --workdir={run} --input=ftp://host/text",
        "translate --workdir={run} --input={run}/config.json --output=ftp://host/text",
        "compare --outputs=a,b --target=c --output=ftp://host/page.html",
    ):
        program, *arguments = command.format(run=given / "run").split()
        finished = run(f"experiments.{program}", *arguments)
        assert finished.status == 1
        assert "the scheme ftp:// is unknown" in finished.err
        assert "Traceback" not in finished.err


# A whole training.


@pytest.fixture
def apps(tmp_path):
    """Runs an app for which a local folder is gs://; a server receives the arrays of Orbax."""
    (tmp_path / "bucket").mkdir()
    server = subprocess.Popen(
        [sys.executable, STORES / "server.py", tmp_path], stdout=subprocess.PIPE, text=True
    )
    url = f"http://localhost:{server.stdout.readline().strip()}"
    variables = {"STORE": str(tmp_path), "TENSORSTORE_GCS_HTTP_URL": url, "EPATH_USE_TF": "0"}
    own = environment() | variables
    own["PYTHONPATH"] = os.pathsep.join([str(STORES), own["PYTHONPATH"]])

    def app(name, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", f"experiments.{name}", *map(str, arguments)],
            cwd=REPOSITORY,
            env=own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    yield app
    server.kill()
    server.communicate()


@pytest.mark.slow
def test_a_complete_experiment_runs_in_an_object_store(apps, tmp_path):
    (tmp_path / "bucket" / "words").write_text("a b c d\nd c b\na a\nb d\n" * 5)

    def finished(name, *arguments):
        process = apps(name, *arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return out.splitlines(), err

    workdir = "--workdir=gs://bucket/run"
    data = [
        f"--config.data.{split}_{side}=gs://bucket/words"
        for split in ("train", "validation", "test")
        for side in ("source", "target")
    ]
    settings = [
        flag for flag in training(tmp_path) if "_source=" not in flag and "_target" not in flag
    ]
    train = "train", workdir, *settings, *data, "--config.logging.tensorboard=True"
    out, _ = finished(*train)
    assert json.loads(out[-1])["step"] == 2
    out, err = finished(*train, "--config.training.steps=3")
    assert "continuing from step 2" in err
    assert json.loads(out[-1])["step"] == 3
    files = tmp_path / "bucket" / "run"
    assert [line["step"] for line in lines_of(files / "metrics.jsonl")] == [1, 1, 2, 2, 3, 3]
    assert len([*files.glob("events.out.tfevents.*")]) == 2
    assert not (files / "tokens").exists(), "they are in the user's cache folder"

    out, err = finished("evaluate", workdir)
    [report] = (files / "evaluations").glob("test-*.html")
    assert f"report: gs://bucket/run/evaluations/{report.name}" in err
    assert json.loads(report.with_suffix(".json").read_text()) == json.loads(out[-1])
    finished("translate", workdir, "--input=gs://bucket/words", "--output=gs://bucket/out")
    assert (tmp_path / "bucket" / "out").read_text() == report.with_suffix(".txt").read_text()
