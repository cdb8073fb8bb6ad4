# SPDX-License-Identifier: Apache-2.0
"""The command that opens a model up: one page of one sentence."""

import pytest
from test_apps import run
from test_html import Reader
from test_translate import make_workdir
from test_views import data_of


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the workdir of a model whose stacks differ."""
    folder = tmp_path_factory.mktemp("look")
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "encoder_heads": 4, "decoder_heads": 2}
    make_workdir(folder / "run", 1, **sizes)
    return folder


@pytest.fixture(scope="module")
def look(place):
    """The command with some flags."""
    return lambda *flags: run("experiments.look", f"--workdir={place / 'run'}", *flags)


@pytest.fixture(scope="module")
def made(place, look):
    """What the command says, and its page."""
    finished = look("--sentence=a b c", f"--output={place / 'page.html'}")
    assert finished.status == 0, finished.err
    return finished, (place / "page.html").read_text(encoding="utf-8")


def test_it_prints_the_path_of_the_page_alone(place, made):
    assert made[0].out == f"{place / 'page.html'}\n"


def test_the_page_shows_every_layer_and_head_of_both_stacks(made):
    data = data_of(made[1])
    [pair] = data["pairs"]
    assert [(family["layers"], family["heads"]) for family in pair] == [(1, 4), (2, 2), (2, 2)]
    assert [view["kind"] for view in data["views"]] == ["heads", "grid", "steps", "replay"]
    assert pair[0]["columns"] == [["▁a"], ["▁b"], ["▁c"], ["</s>"]]
    assert len(data["views"][2]["heads"]) == 4 + 2 * 2 * 2


def test_the_decoder_reads_the_translation_that_the_search_found(made):
    data = data_of(made[1])
    found = data["views"][3]["results"][0]["tokens"]
    read, predicted = zip(*data["pairs"][0][1]["rows"], strict=True)
    assert list(read) == ["<s>", *found[:-1]]
    assert list(predicted) == found


def test_a_given_target_is_read_in_its_place(place, look):
    finished = look("--sentence=a b", "--target=g d", f"--output={place / 'other.html'}")
    assert finished.status == 0, finished.err
    text = (place / "other.html").read_text(encoding="utf-8")
    rows = data_of(text)["pairs"][0][1]["rows"]
    assert rows == [["<s>", "▁g"], ["▁g", "▁d"], ["▁d", "</s>"]]
    assert "What the decoder reads here: g d" in Reader(text).text


@pytest.mark.slow
def test_the_same_command_writes_the_same_bytes(place, look, made):
    finished = look("--sentence=a b c", f"--output={place / 'again.html'}")
    assert finished.status == 0, finished.err
    assert (place / "again.html").read_text(encoding="utf-8") == made[1]


def test_it_says_what_it_does_not_show_and_asks_for_nothing(made):
    assert "What this does not show." in Reader(made[1]).text
    assert "://" not in made[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sentence=a"], "missing --output=FILE.html"),
        (["--output=x.html"], "missing --sentence=TEXT"),
        (["--output=x.html", "--sentence= "], "--sentence is empty"),
        (["--output=x.html", "--sentence=a\nb"], "--sentence has several lines"),
        (["--output=x.html", "--sentence=a", "--target="], "--target is empty"),
        (
            ["--output=x.html", "--sentence=a b c d e f g"],
            "8 tokens, more than data.max_length = 6",
        ),
        (["--output=x.html", "--sentence=a", "--ensemble=other"], "a page shows one model"),
        (["--output=x.html", "--sentence=a", "--config.decode.method=sample"], "decode.method"),
        (["--output=no/x.html", "--sentence=a"], "--output=no/x.html cannot be written"),
        (["--output=.", "--sentence=a"], "--output=. cannot be written"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(look, flags, message):
    finished = look(*flags)
    assert (finished.status, finished.out) == (1, "")
    [line] = finished.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
