# SPDX-License-Identifier: Apache-2.0
"""`experiments.learn_lexicon` learns from a workdir's training text, and `translate` uses it."""

import json

import numpy as np
import pytest
from apps import run
from test_translate import CONFIG, make_workdir

from experiments.learn_lexicon import coverage
from transformer.arrays import EOS_ID, NUM_SPECIAL_IDS
from transformer.text.lexicon import MOST, Lexicon

SOURCES = "a b\nb c\n\na c\nc c c c c c c c\nb\n"
"""Six lines, of which one is empty and one too long for the model."""
TARGETS = "e f\nf g\nd\ne g\nd\nf\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a workdir that was trained on two files."""
    folder = tmp_path_factory.mktemp("shortlist")
    for split in ("train", "validation"):
        (folder / f"{split}.source").write_text(SOURCES)
        (folder / f"{split}.target").write_text(TARGETS)
    files = {
        f"{split}_{side}": str(folder / f"{split}.{side}")
        for split in ("train", "validation")
        for side in ("source", "target")
    }
    make_workdir(folder / "run", 1)
    config = CONFIG.replace(data=CONFIG.data.replace(dataset="text_files", **files))
    (folder / "run" / "config.json").write_text(config.to_json(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def learned(place):
    """What the command says."""
    return run("experiments.learn_lexicon", f"--workdir={place / 'run'}")


def test_what_the_lists_hold_is_said_and_is_the_last_line(place, learned):
    assert (learned.status, learned.err) == (0, "")
    *table, last = learned.out.splitlines()
    figures = json.loads(last)
    assert figures["pairs"] == 4, "without the empty and the too long pair"
    assert [one["translations"] for one in figures["coverage"]] == [5, 10, 20, 50, 100]
    assert any(line.split()[:4] == ["5", "8", "of", "11"] for line in table), learned.out
    assert Lexicon.load(place / "run" / "shortlist.npz", 11).translations[4, 0] != 0


def test_translations_keep_to_the_list(place, learned):
    sentences = b"a\nb c\n\n"
    run_of = ("experiments.translate", f"--workdir={place / 'run'}")
    plain = run(*run_of, stdin=sentences)
    listed = run(*run_of, "--config.decode.shortlist=1", stdin=sentences)
    assert (listed.status, listed.err) == (0, "")
    assert len(listed.out.splitlines()) == len(plain.out.splitlines()) == 3
    assert set(listed.out.split()) <= set("abcdefg")


def test_only_some_pairs_are_read_where_there_are_more(place):
    few = run("experiments.learn_lexicon", f"--workdir={place / 'run'}", "--pairs=2")
    # Every third of six lines: the first and the fourth.
    assert json.loads(few.out.splitlines()[-1])["pairs"] == 2


def test_without_a_lexicon_translate_says_how_to_make_one(tmp_path):
    make_workdir(tmp_path / "run", 1)
    finished = run(
        "experiments.translate", f"--workdir={tmp_path / 'run'}", "--config.decode.shortlist=5"
    )
    assert (finished.status, finished.out) == (1, "")
    assert "shortlist.npz is missing, which decode.shortlist needs; make it with" in finished.err
    assert "Traceback" not in finished.err


def test_coverage_counts_by_hand():
    """Of two sentences, one needs a word that is not on its list."""
    translations = np.zeros((12, MOST), np.int32)
    translations[5, :2] = 9, 10
    own = Lexicon(translations, np.array([EOS_ID]))
    sources, targets = [[5, EOS_ID], [6, EOS_ID]], [[9, 10, EOS_ID], [6, 9, EOS_ID]]
    assert coverage(own, sources, targets, 2) == {
        "translations": 2,
        "listed": NUM_SPECIAL_IDS + (3 + 1) / 2,
        "tokens": 5 / 6,
        "sentences": 1 / 2,
    }
    assert coverage(own, sources, targets, 1)["tokens"] == 4 / 6
