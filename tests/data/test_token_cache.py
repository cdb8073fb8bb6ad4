# SPDX-License-Identifier: Apache-2.0
"""A corpus is tokenized once, completely or not at all, and reads back as if tokenized again."""

import itertools
import json
import logging
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from apps import REPOSITORY

from experiments.console import progress
from experiments.data import registry, token_cache
from experiments.data.batching import fill_rows
from experiments.data.text_files import TwoFiles
from experiments.data.token_cache import load_or_tokenize
from experiments.data.token_corpus import TokenCorpus
from transformer.arrays import SpecialIds
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer, Vocabularies

EOS_ID = SpecialIds().eos

LINES = 1000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two files of letters, one of them with lines of white space."""
    folder = tmp_path_factory.mktemp("letters")
    generator = random.Random(0)
    lines = [" ".join(generator.choices("abcdefgh", k=1 + i % 9)) for i in range(LINES)]
    lines[17], lines[400] = "", " \t\u3000"
    (folder / "source").write_text("".join(f"{line}\n" for line in lines))
    (folder / "target").write_text("".join(f"{line.upper() or 'A'}\n" for line in lines))
    return str(folder / "source"), str(folder / "target")


@pytest.fixture(scope="module")
def pairs(files):
    """The sentence pairs of these files."""
    return TwoFiles(*files)


@pytest.fixture(scope="module")
def vocabularies():
    """A shared vocabulary of letters."""
    return Vocabularies.shared(Tokenizer.train(["a b c d e f g h A B C D E F G H"], 20, "word"))


@pytest.fixture
def small_chunks(monkeypatch):
    """Even a small corpus is tokenized in many chunks."""
    monkeypatch.setattr(token_cache, "CHUNK", 70)


def arrays(corpus):
    """All four arrays, as lists."""
    sides = corpus.source, corpus.target
    return [array.tolist() for side in sides for array in (side.ids, side.offsets)]


def expected(files, vocabularies):
    """The arrays of tokenizing all at once, with lines of white space as empty ones."""
    split = registry.from_files(*files)
    sources, targets = (
        [line if line.strip() else "" for line in lines] for lines in (split.sources, split.targets)
    )
    return arrays(TokenCorpus.encode(sources, targets, vocabularies))


def contents(folder):
    """The names in a folder, except the lock file."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_the_cache_equals_tokenizing_all_at_once(files, pairs, vocabularies, tmp_path, capsys):
    corpus = load_or_tokenize(pairs, vocabularies, tmp_path)
    assert arrays(corpus) == expected(files, vocabularies)
    assert corpus.source.ids.dtype == np.uint16
    assert corpus.source.offsets.dtype == np.int64
    assert corpus.source.lengths.dtype == np.int32
    assert token_cache.id_dtype(65_536) == np.uint16
    assert token_cache.id_dtype(65_537) == np.int32
    batch = fill_rows([corpus.source[3], corpus.source[8]], np.arange(2), (8, 12), pad_id=0)[0]
    assert batch.dtype == np.int32
    assert (batch != 0).sum(axis=1).tolist() == [5, 10, 0, 0, 0, 0, 0, 0]
    # A pair with a side of white space keeps its index and counts as empty.
    assert np.flatnonzero(~corpus.nonempty).tolist() == [17, 400]
    start, end = corpus.source.offsets[400:402]
    assert corpus.source.ids[start:end].tolist() == [EOS_ID]
    assert pairs.location(400)[0].endswith("source:401")
    [meta] = tmp_path.glob("*/meta.json")
    values = json.loads(meta.read_text())
    assert (values["corpus"], values["pairs"]) == (pairs.name, LINES)
    assert capsys.readouterr() == ("", ""), "a small corpus is tokenized without a word"


def test_threads_and_chunks_do_not_change_the_result(
    files, pairs, vocabularies, tmp_path, small_chunks
):
    for threads in (1, 2, 5):
        corpus = load_or_tokenize(pairs, vocabularies, tmp_path / str(threads), threads)
        assert arrays(corpus) == expected(files, vocabularies)


def test_each_side_has_its_tokenizer(files, pairs, vocabularies, tmp_path):
    upper = Tokenizer.train(["H H H G G F E D C B A"], 12, "word")
    separate = Vocabularies(vocabularies.source, upper)
    corpus = load_or_tokenize(pairs, separate, tmp_path)
    assert arrays(corpus) == expected(files, separate)
    assert arrays(corpus) != expected(files, vocabularies)
    load_or_tokenize(pairs, vocabularies, tmp_path)
    assert len(contents(tmp_path)) == 2


def test_a_second_start_reads_no_text(pairs, vocabularies, tmp_path, monkeypatch):
    first = load_or_tokenize(pairs, vocabularies, tmp_path)
    monkeypatch.setattr(TwoFiles, "__iter__", None)
    monkeypatch.setattr(TwoFiles, "count", None)
    assert arrays(load_or_tokenize(pairs, vocabularies, tmp_path)) == arrays(first)


def test_another_text_direction_or_vocabulary_is_another_corpus(files, vocabularies, tmp_path):
    copy = tmp_path / "source"
    copy.write_bytes(pathlib.Path(files[0]).read_bytes())
    pairs, cache = TwoFiles(str(copy), files[1]), tmp_path / "cache"
    load_or_tokenize(pairs, vocabularies, cache)
    assert len(contents(cache)) == 1
    load_or_tokenize(pairs.in_direction("backward"), vocabularies, cache)
    assert len(contents(cache)) == 2
    other = Vocabularies.shared(Tokenizer.train(["a b c"], 7, "word"))
    load_or_tokenize(pairs, other, cache)
    assert len(contents(cache)) == 3
    copy.write_text("h\n" * LINES)
    corpus = load_or_tokenize(pairs, vocabularies, cache)
    assert len(contents(cache)) == 4
    assert set(corpus.source.lengths) == {2}


def test_a_cache_of_an_earlier_version_is_found_under_its_digest():
    """The digest of a shared vocabulary: format, SHA-256 of the model, identity of the pairs."""

    class Fixed:
        model = b"model"

    class Named:
        def identity(self):
            return "files"

    digest = token_cache._digest(Named(), (Fixed, Fixed))
    assert digest == "86e9b6a04fb19a9bff5a5369ea05084c"


def test_a_damaged_cache_is_detected_and_written_again(pairs, vocabularies, tmp_path, caplog):
    first = arrays(load_or_tokenize(pairs, vocabularies, tmp_path))
    [home] = [tmp_path / folder for folder in contents(tmp_path)]
    damages = (
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        lambda path: path.write_bytes(b"null"),
        lambda path: path.unlink(),
    )
    for damage, name in itertools.product(damages, ("source.ids", "target.offsets", "meta.json")):
        damage(home / name)
        with caplog.at_level(logging.WARNING):
            assert arrays(load_or_tokenize(pairs, vocabularies, tmp_path)) == first
        assert f"{home} is damaged" in caplog.text
        caplog.clear()
        assert arrays(load_or_tokenize(pairs, vocabularies, tmp_path)) == first
        assert caplog.text == ""


def test_an_error_in_the_text_names_its_line_and_leaves_no_files(
    files, vocabularies, tmp_path, small_chunks
):
    lines = pathlib.Path(files[0]).read_bytes().split(b"\n")
    lines[800] = b"a \xff"
    (tmp_path / "bad").write_bytes(b"\n".join(lines))
    cache = tmp_path / "cache"
    with pytest.raises(InputError, match=rf"{tmp_path}/bad:801: byte 0xff at column 3 "):
        load_or_tokenize(TwoFiles(str(tmp_path / "bad"), files[1]), vocabularies, cache)
    assert contents(cache) == []


def test_files_of_unequal_length_are_refused_before_any_work(files, vocabularies, tmp_path):
    (tmp_path / "longer").write_text("a\n" * (LINES + 1))
    pairs = TwoFiles(files[0], str(tmp_path / "longer"))
    with pytest.raises(InputError, match=f"has {LINES} lines but .* has {LINES + 1}"):
        load_or_tokenize(pairs, vocabularies, tmp_path / "cache")
    assert contents(tmp_path / "cache") == []


def test_the_partial_files_of_a_killed_run_are_removed(pairs, vocabularies, tmp_path):
    (tmp_path / "0123.partial").mkdir()
    (tmp_path / "0123.partial" / "source.ids").write_bytes(b"\0")
    load_or_tokenize(pairs, vocabularies, tmp_path)
    [only] = contents(tmp_path)
    assert not only.endswith(".partial")


def test_of_runs_that_start_together_one_tokenizes_and_all_succeed(
    files, pairs, vocabularies, tmp_path, monkeypatch, capsys
):
    writes, results = [], []
    write = token_cache._write

    def slowly(*arguments):
        writes.append(arguments)
        time.sleep(0.2)
        write(*arguments)

    def run():
        results.append(arrays(load_or_tokenize(pairs, vocabularies, tmp_path)))

    monkeypatch.setattr(token_cache, "_write", slowly)
    runs = [threading.Thread(target=run) for _ in range(3)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert results == [expected(files, vocabularies)] * 3
    assert len(writes) == 1
    assert "waiting for another run" in capsys.readouterr().err


def test_a_cache_folder_that_is_a_file_is_named_with_a_remedy(pairs, vocabularies, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="data.token_cache=FOLDER") as raised:
        load_or_tokenize(pairs, vocabularies, tmp_path / "file")
    assert str(tmp_path / "file") in str(raised.value)


def test_slow_tokenizing_prints_progress_on_stderr(
    pairs, vocabularies, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(token_cache, "CHUNK", 400)
    load_or_tokenize(pairs, vocabularies, tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    shown = [line.rpartition(": ")[2].partition(" pairs")[0] for line in err.splitlines()]
    assert shown == ["400 of 1,000", "800 of 1,000"]


ENDLESS = """
import pathlib, sys
from experiments.data import token_cache
from experiments.data.pairs import SentencePairs
from transformer.text.tokenizer import Tokenizer, Vocabularies

class Endless(SentencePairs):
    name = "endless"
    def __iter__(self):
        print("started", flush=True)
        while True:
            yield "a b c", "a b c"
    def count(self):
        return 10**9
    def location(self, index):
        raise NotImplementedError
    def identity(self):
        return "endless"
    swapped = None

vocabularies = Vocabularies.shared(Tokenizer.train(["a b c"], 7, "word"))
try:
    token_cache.load_or_tokenize(Endless(), vocabularies, pathlib.Path(sys.argv[1]), 2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupted_run_stops_at_once_and_leaves_no_files(tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path / "cache")],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with run:
        assert run.stdout.readline() == b"started\n"
        time.sleep(0.3)
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=20) == 130
        assert run.stderr.read() == b""
    assert contents(tmp_path / "cache") == []
