# SPDX-License-Identifier: Apache-2.0
"""A corpus is tokenized once, whole or not at all, and is then what tokenizing it again gives."""

import json
import logging
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from apps import REPOSITORY

from experiments.corpora import registry
from experiments.corpora.text_files import TwoFiles
from experiments.pipeline import token_cache, tokenizing
from experiments.pipeline.token_corpus import Corpus
from transformer.arrays import EOS_ID
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer

LINES = 1000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two files of letters, one of them with lines of white space."""
    folder = tmp_path_factory.mktemp("letters")
    generator = random.Random(0)
    rows = [" ".join(generator.choices("abcdefgh", k=1 + i % 9)) for i in range(LINES)]
    rows[17], rows[400] = "", " \t\u3000"
    (folder / "source").write_text("".join(f"{row}\n" for row in rows))
    (folder / "target").write_text("".join(f"{row.upper() or 'A'}\n" for row in rows))
    return str(folder / "source"), str(folder / "target")


@pytest.fixture(scope="module")
def pairs(files):
    """The pairs of these files."""
    return TwoFiles(*files)


@pytest.fixture(scope="module")
def tokenizer():
    """A vocabulary of letters."""
    return Tokenizer.train(["a b c d e f g h A B C D E F G H"], 20, "word")


@pytest.fixture
def in_processes(monkeypatch):
    """Even a small corpus is tokenized by processes, in many pieces."""
    monkeypatch.setattr(token_cache, "PIECE", 70)
    monkeypatch.setattr(token_cache, "WORTH_PROCESSES", 1)


def arrays(corpus):
    """All four of them, as lists."""
    sides = corpus.source, corpus.target
    return [array.tolist() for side in sides for array in (side.ids, side.offsets)]


def expected(files, tokenizer):
    """What tokenizing all at once gives, when lines of white space are empty."""
    split = registry.from_files(*files)
    sources, targets = (
        [line if line.strip() else "" for line in lines] for lines in (split.sources, split.targets)
    )
    return arrays(Corpus.tokenized(sources, targets, tokenizer))


def left(folder):
    """The names in a folder, but for the lock's."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def children(pid):
    """The processes that a process has started."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


def test_the_cache_is_what_tokenizing_all_at_once_gives(files, pairs, tokenizer, tmp_path):
    corpus = token_cache.tokenized(pairs, tokenizer, tmp_path, None)
    assert arrays(corpus) == expected(files, tokenizer)
    assert corpus.source.ids.dtype == np.uint16
    assert corpus.source.offsets.dtype == np.int64
    assert corpus.source.lengths.dtype == np.int32


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_any_number_of_processes_gives_the_same(
    files, pairs, tokenizer, tmp_path, in_processes, processes
):
    before = children(os.getpid())
    corpus = token_cache.tokenized(pairs, tokenizer, tmp_path, processes)
    assert arrays(corpus) == expected(files, tokenizer)
    assert children(os.getpid()) == before


def test_a_batch_of_narrow_ids_is_int32(pairs, tokenizer, tmp_path):
    source = token_cache.tokenized(pairs, tokenizer, tmp_path, 1).source
    batch = source.padded(np.array([3, 8]), (8, 12))
    assert batch.dtype == np.int32
    assert (batch != 0).sum(axis=1).tolist() == [5, 10, 0, 0, 0, 0, 0, 0]


def test_an_id_needs_two_bytes_up_to_a_vocabulary_of_65536():
    assert tokenizing.smallest_type(65_536) == np.uint16
    assert tokenizing.smallest_type(65_537) == np.int32


def test_a_pair_with_a_side_of_white_space_keeps_its_index_and_is_not_usable(
    pairs, tokenizer, tmp_path
):
    corpus = token_cache.tokenized(pairs, tokenizer, tmp_path, 1)
    assert np.flatnonzero(~corpus.usable).tolist() == [17, 400]
    start, end = corpus.source.offsets[400:402]
    assert corpus.source.ids[start:end].tolist() == [EOS_ID]
    assert pairs.place(400)[0].endswith("source:401")


def test_a_second_start_reads_no_text(pairs, tokenizer, tmp_path, monkeypatch):
    first = token_cache.tokenized(pairs, tokenizer, tmp_path, 1)
    monkeypatch.setattr(TwoFiles, "chunks", None)
    monkeypatch.setattr(TwoFiles, "count", None)
    assert arrays(token_cache.tokenized(pairs, tokenizer, tmp_path, 1)) == arrays(first)


def test_another_text_direction_or_vocabulary_is_another_corpus(files, tokenizer, tmp_path):
    copy = tmp_path / "source"
    copy.write_bytes(pathlib.Path(files[0]).read_bytes())
    pairs, cache = TwoFiles(str(copy), files[1]), tmp_path / "cache"
    token_cache.tokenized(pairs, tokenizer, cache, 1)
    assert len(left(cache)) == 1
    token_cache.tokenized(registry.directed(pairs, "backward"), tokenizer, cache, 1)
    assert len(left(cache)) == 2
    token_cache.tokenized(pairs, Tokenizer.train(["a b c"], 7, "word"), cache, 1)
    assert len(left(cache)) == 3
    copy.write_text("h\n" * LINES)
    corpus = token_cache.tokenized(pairs, tokenizer, cache, 1)
    assert len(left(cache)) == 4
    assert set(corpus.source.lengths) == {2}


@pytest.mark.parametrize("name", ["source.ids", "target.offsets", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "null"])
def test_a_damaged_cache_is_noticed_and_made_again(
    pairs, tokenizer, tmp_path, caplog, name, damage
):
    first = arrays(token_cache.tokenized(pairs, tokenizer, tmp_path, 1))
    [home] = [tmp_path / folder for folder in left(tmp_path)]
    if damage == "cut":
        (home / name).write_bytes((home / name).read_bytes()[:-5])
    elif damage == "null":
        (home / name).write_bytes(b"null")
    else:
        (home / name).unlink()
    with caplog.at_level(logging.WARNING):
        assert arrays(token_cache.tokenized(pairs, tokenizer, tmp_path, 1)) == first
    assert f"{home} is damaged" in caplog.text
    caplog.clear()
    assert arrays(token_cache.tokenized(pairs, tokenizer, tmp_path, 1)) == first
    assert caplog.text == ""


def test_the_description_of_a_cache_says_what_it_is(pairs, tokenizer, tmp_path):
    token_cache.tokenized(pairs, tokenizer, tmp_path, 1)
    [meta] = tmp_path.glob("*/meta.json")
    values = json.loads(meta.read_text())
    assert values["corpus"] == pairs.name
    assert values["pairs"] == LINES


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_wrong_with_the_text_is_said_and_leaves_nothing(
    files, tokenizer, tmp_path, in_processes, processes
):
    lines = pathlib.Path(files[0]).read_bytes().split(b"\n")
    lines[800] = b"a \xff"
    (tmp_path / "bad").write_bytes(b"\n".join(lines))
    cache = tmp_path / "cache"
    with pytest.raises(InputError, match=rf"{tmp_path}/bad:801: byte 0xff at column 3 "):
        token_cache.tokenized(
            TwoFiles(str(tmp_path / "bad"), files[1]), tokenizer, cache, processes
        )
    assert left(cache) == []


def test_files_of_unequal_length_are_refused_before_any_work(files, tokenizer, tmp_path):
    (tmp_path / "longer").write_text("a\n" * (LINES + 1))
    pairs = TwoFiles(files[0], str(tmp_path / "longer"))
    with pytest.raises(InputError, match=f"has {LINES} lines but .* has {LINES + 1}"):
        token_cache.tokenized(pairs, tokenizer, tmp_path / "cache", 1)
    assert left(tmp_path / "cache") == []


def test_a_process_that_is_killed_is_an_error_with_a_remedy(
    pairs, tokenizer, tmp_path, in_processes, monkeypatch
):
    send = token_cache._Worker.send

    def killed(worker, value):
        worker._process.kill()
        worker._process.wait()
        send(worker, value)

    monkeypatch.setattr(token_cache._Worker, "send", killed)
    with pytest.raises(InputError, match="status -9.*memory.*tokenizing_processes=1"):
        token_cache.tokenized(pairs, tokenizer, tmp_path, 2)
    assert left(tmp_path) == []


def test_what_a_killed_run_left_half_done_is_removed(pairs, tokenizer, tmp_path):
    (tmp_path / "0123.partial").mkdir()
    (tmp_path / "0123.partial" / "source.ids").write_bytes(b"\0")
    token_cache.tokenized(pairs, tokenizer, tmp_path, 1)
    [only] = left(tmp_path)
    assert not only.endswith(".partial")


def test_runs_that_start_together_both_succeed_and_one_of_them_works(
    files, pairs, tokenizer, tmp_path, monkeypatch, capsys
):
    made, found = [], []
    write = token_cache._write

    def slowly(*arguments):
        made.append(arguments)
        time.sleep(0.2)
        write(*arguments)

    def run():
        found.append(arrays(token_cache.tokenized(pairs, tokenizer, tmp_path, 1)))

    monkeypatch.setattr(token_cache, "_write", slowly)
    runs = [threading.Thread(target=run) for _ in range(3)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert found == [expected(files, tokenizer)] * 3
    assert len(made) == 1
    assert "waiting for another run" in capsys.readouterr().err


def test_a_folder_that_cannot_be_one_is_named_with_a_remedy(pairs, tokenizer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="data.token_cache=FOLDER") as raised:
        token_cache.tokenized(pairs, tokenizer, tmp_path / "file", 1)
    assert str(tmp_path / "file") in str(raised.value)


def test_progress_is_said_on_standard_error_when_it_takes_long(
    pairs, tokenizer, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(token_cache._Progress, "FIRST", 0.0)
    monkeypatch.setattr(token_cache._Progress, "EVERY", 0.0)
    monkeypatch.setattr(token_cache, "PIECE", 400)
    token_cache.tokenized(pairs, tokenizer, tmp_path, 1)
    out, err = capsys.readouterr()
    assert out == ""
    shown = [line.rpartition(": ")[2].partition(" pairs")[0] for line in err.splitlines()]
    assert shown[:3] == [f"{done} of 1,000" for done in ("400", "800", "1,000")]


def test_a_small_corpus_is_tokenized_without_a_word(pairs, tokenizer, tmp_path, capsys):
    token_cache.tokenized(pairs, tokenizer, tmp_path, 1)
    assert capsys.readouterr() == ("", "")


def test_a_process_that_tokenizes_imports_neither_jax_nor_this_package(tokenizer):
    program = (
        "import runpy, sys, pickle; runpy.run_path(sys.argv[1], run_name='worker');"
        "pickle.load(sys.stdin.buffer);"
        "print([name for name in ('jax', 'transformer', 'experiments') if name in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-P", "-c", program, tokenizing.__file__],
        input=pickle.dumps(tokenizer.processor),
        capture_output=True,
        check=True,
    )
    assert finished.stdout == b"[]\n"


ENDLESS = """
import pathlib, sys
from experiments.pipeline import token_cache
from experiments.pipeline.pairs import Pairs
from transformer.text.tokenizer import Tokenizer

class Endless(Pairs):
    name = "endless"
    def chunks(self, size=10_000):
        print("begun", flush=True)
        while True:
            yield ["a b c"] * 100, ["a b c"] * 100
    def count(self):
        return 10**9
    def place(self, index):
        raise NotImplementedError
    def identity(self):
        return "endless"

tokenizer = Tokenizer.train(["a b c"], 7, "word")
try:
    token_cache.tokenized(Endless(), tokenizer, pathlib.Path(sys.argv[1]), 2)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_the_processes_end_with_the_one_that_started_them(tmp_path, number, status):
    run = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path / "cache")],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with run:
        assert run.stdout.readline() == b"begun\n"
        time.sleep(0.3)
        workers = children(run.pid)
        assert len(workers) == 2
        os.killpg(run.pid, number)
        assert run.wait(timeout=20) == status
        assert run.stderr.read() == b""
    deadline = time.monotonic() + 10
    while any(pathlib.Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if number == signal.SIGINT:
        assert left(tmp_path / "cache") == []
