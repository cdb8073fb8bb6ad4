# SPDX-License-Identifier: Apache-2.0
"""`experiments.learn_lexicon` learns from the training text of a workdir, `translate` uses it."""

import json
import shutil

import numpy as np
import pytest
from apps import run
from test_translate import CONFIG, make_workdir

from experiments.learn_lexicon import coverage
from transformer.arrays import SpecialIds
from transformer.text.lexicon import MAX_TRANSLATIONS, Lexicon

EOS_ID = SpecialIds().eos

SOURCES = "a b\nb c\n\na c\nc c c c c c c c\nb\n"
"""Six lines, one of them empty and one too long."""
TARGETS = "e f\nf g\nd\ne g\nd\nf\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the workdir of a run on two files."""
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
def learned(folder):
    """Output of the command."""
    return run("experiments.learn_lexicon", f"--workdir={folder / 'run'}")


def test_the_coverage_of_the_lists_is_printed_as_a_table_and_as_json(folder, learned):
    assert (learned.status, learned.err) == (0, "")
    *table, last = learned.out.splitlines()
    figures = json.loads(last)
    assert figures["pairs"] == 4, "without the empty and the long pair"
    assert [one["translations"] for one in figures["coverage"]] == [5, 10, 20, 50, 100]
    assert any(line.split()[:4] == ["5", "8", "of", "11"] for line in table), learned.out
    assert Lexicon.load(folder / "run" / "shortlist.npz", 11).translations[4, 0] != 0


@pytest.mark.slow
def test_translations_consist_of_listed_subwords(folder, learned):
    sentences = b"a\nb c\n\n"
    run_of = ("experiments.translate", f"--workdir={folder / 'run'}")
    plain = run(*run_of, stdin=sentences)
    listed = run(*run_of, "--config.decode.shortlist=1", stdin=sentences)
    assert (listed.status, listed.err) == (0, "")
    assert len(listed.out.splitlines()) == len(plain.out.splitlines()) == 3
    assert set(listed.out.split()) <= set("abcdefg")


@pytest.mark.slow
def test_evaluations_with_different_lexicons_are_kept_apart(folder, learned, tmp_path):
    workdir = shutil.copytree(folder / "run", tmp_path / "run")
    arguments = (f"--workdir={workdir}", "--split=validation", "--config.decode.shortlist=1")
    runs = [run("experiments.evaluate", *arguments)]
    run("experiments.learn_lexicon", f"--workdir={workdir}", "--pairs=1")
    runs.append(run("experiments.evaluate", *arguments))
    assert [one.status for one in runs] == [0, 0], runs
    first, second = (one.result["origin"]["lexicon"] for one in runs)
    assert first != second
    assert len(list((workdir / "evaluations").glob("*.json"))) == 2


def test_pairs_limits_the_number_of_pairs_read(folder):
    few = run("experiments.learn_lexicon", f"--workdir={folder / 'run'}", "--pairs=2")
    # Every third of six lines: the first and the fourth.
    assert json.loads(few.out.splitlines()[-1])["pairs"] == 2


def test_without_a_lexicon_translate_names_the_command_that_creates_one(tmp_path):
    make_workdir(tmp_path / "run", 1)
    finished = run(
        "experiments.translate", f"--workdir={tmp_path / 'run'}", "--config.decode.shortlist=5"
    )
    assert (finished.status, finished.out) == (1, "")
    assert "shortlist.npz is missing, which decode.shortlist needs; create it with" in finished.err
    assert "Traceback" not in finished.err


def test_coverage_counts_by_hand():
    """One of two sentences needs a word that is not on its list."""
    translations = np.zeros((12, MAX_TRANSLATIONS), np.int32)
    translations[5, :2] = 9, 10
    lexicon = Lexicon(translations, np.array([EOS_ID]))
    sources, targets = [[5, EOS_ID], [6, EOS_ID]], [[9, 10, EOS_ID], [6, 9, EOS_ID]]
    assert coverage(lexicon, sources, targets, 2) == {
        "translations": 2,
        "listed": len(SpecialIds()) + (3 + 1) / 2,
        "tokens": 5 / 6,
        "sentences": 1 / 2,
    }
    assert coverage(lexicon, sources, targets, 1)["tokens"] == 4 / 6


def test_a_bundle_is_not_changed(folder, learned):
    bundle = folder / "model.zip"
    packed = run("experiments.bundle", f"--workdir={folder / 'run'}", f"--output={bundle}")
    assert packed.status == 0, packed.err
    refused = run("experiments.learn_lexicon", f"--workdir={bundle}")
    assert (refused.status, refused.out) == (1, "")
    assert f"--workdir={bundle} is a bundle" in refused.err
