# SPDX-License-Identifier: Apache-2.0
"""Embedded corpora in the user's cache survive killed runs and damaged files."""

import os
import subprocess
import sys

import pytest
import tensorflow_datasets as tfds
from apps import REPOSITORY

from experiments.data import embedded
from experiments.data.embedded import EmbeddedCorpus


class TinyGrammar(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A corpus of a few records."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="upper")]

    def _info(self):
        text = tfds.features.Text()
        features = tfds.features.FeaturesDict({"source": text, "target": text})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples("abcdefgh" * 20)}

    def _generate_examples(self, letters):
        for index, letter in enumerate(letters):
            yield index, {"source": letter, "target": letter.upper()}


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """The folder of the corpora, of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "attention-transformer" / "datasets"


def read():
    """All pairs, read as in a new process."""
    embedded._prepare.cache_clear()
    corpus = EmbeddedCorpus(TinyGrammar)
    pairs = corpus.pairs("upper", "train").read()
    examples = corpus.examples("upper", "train")
    assert [example["source"] for example in examples] == pairs[0]
    return pairs


def flip(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "flipped": flip,
    "zeroed": lambda data: bytes(len(data)),
    "garbage": lambda data: b"{" * 40,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_set_aside_and_generated_again(datasets, capfd, damage):
    expected = read()
    folder = datasets / "tiny_grammar" / "upper" / "1.0.0"
    names = sorted(path.name for path in folder.iterdir() if path.name != "digests.json")
    assert len(names) >= 3
    for name in names:
        path = folder / name
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
        capfd.readouterr()
        assert read() == expected
        out, err = capfd.readouterr()
        assert out == ""
        assert err.splitlines()[0] == f"{folder} is damaged; it is now {folder}.damaged"
        assert err.splitlines()[1] == f"generating tiny_grammar/upper (once, into {datasets})"
        assert len(err.splitlines()) == 2
    assert read() == expected
    assert capfd.readouterr().err == ""
    for path in folder.glob("*array_record*"):
        path.unlink()
    assert read() == expected, "a missing file is damage too"


KILLED = """
import os, signal
from experiments.data import embedded
from experiments.data.grammars import symbols

def kill(self, split):
    os.kill(os.getpid(), signal.SIGKILL)
    yield

symbols.SymbolsGrammar._generate_examples = kill
embedded.EmbeddedCorpus(symbols.SymbolsGrammar).pairs("copy", "train")
"""


def test_a_run_killed_while_it_generates_leaves_nothing_for_good(datasets):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=REPOSITORY, env=os.environ, check=False
    )
    assert killed.returncode == -9
    read()
    assert sorted(path.name for path in datasets.iterdir()) == [".lock", "tiny_grammar"]
