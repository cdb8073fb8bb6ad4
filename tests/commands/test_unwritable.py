# SPDX-License-Identifier: Apache-2.0
"""A file or folder that cannot be written or does not exist results in one message."""

import concurrent.futures
import contextlib
import os
import resource
import types

import pytest
from apps import lines_of, run
from workdirs import contents, training

from experiments.storage import user_cache
from experiments.training import metrics_log
from transformer import compile_cache, paths
from transformer.errors import InputError


@contextlib.contextmanager
def file_size_limit(size):
    """Writes beyond this size of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("tensorboard", [False, True], ids=["lines", "events"])
def test_metrics_on_a_full_disk_are_one_message(tmp_path, tensorboard):
    directory = paths.reachable(tmp_path)
    with (
        pytest.raises(InputError) as raised,
        metrics_log.MetricsLog(directory, 0, tensorboard) as log,
        file_size_limit(100),
    ):
        for step in range(9):
            log.write(step, "train", {"loss": 1.0})
    assert f"metrics cannot be written to {tmp_path}" in str(raised.value)
    assert "free space there" in str(raised.value)
    # The truncated line is dropped, and the next start continues.
    with metrics_log.MetricsLog(directory, 9, tensorboard) as log:
        log.write(9, "train", {"loss": 1.0})
    assert lines_of(tmp_path / "metrics.jsonl")[-1]["step"] == 9


def test_a_start_on_a_full_disk_keeps_the_old_metrics(tmp_path):
    old = b'{"step": 1, "split": "train"}\n'
    (tmp_path / "metrics.jsonl").write_bytes(old)
    (tmp_path / "metrics.jsonl.partial").symlink_to("/dev/full")
    with pytest.raises(InputError, match="metrics.jsonl cannot be written: No space left"):
        metrics_log.MetricsLog(paths.reachable(tmp_path), 1, tensorboard=False)
    assert (tmp_path / "metrics.jsonl").read_bytes() == old
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_a_cache_folder_that_cannot_be_created_is_named_with_the_remedy(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="file/attention.*Not a directory; .* XDG_CACHE_HOME"):
        user_cache.folder("tokens")
    # A run does not need the cache of compiled programs.
    unset = types.SimpleNamespace(jax_compilation_cache_dir=None, update=pytest.fail)
    monkeypatch.setattr(compile_cache, "jax", types.SimpleNamespace(config=unset))
    compile_cache.enable()
    assert "compiled programs are not kept" in caplog.text


def test_a_missing_data_file_at_a_restart_changes_nothing(given, given_copy):
    before = contents(given_copy)
    (given / "words").rename(given / "away")
    try:
        flags = f"--workdir={given_copy / 'run'}", *training(given, training__steps=3)
        restarted = run("experiments.train", *flags)
    finally:
        (given / "away").rename(given / "words")
    assert restarted.status == 1
    assert "which cannot be read: No such file" in restarted.err
    assert "Traceback" not in restarted.err
    after = contents(given_copy)
    assert {path: after.get(path) for path in before} == before


def test_a_link_is_followed_and_a_pipe_is_not_replaced(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    paths.write_atomic(paths.reachable(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    with concurrent.futures.ThreadPoolExecutor(1) as reader:
        read = reader.submit((tmp_path / "pipe").read_bytes)
        paths.write_atomic(paths.reachable(tmp_path / "pipe"), b"new")
        assert read.result(timeout=60) == b"new"
    assert (tmp_path / "pipe").is_fifo()
