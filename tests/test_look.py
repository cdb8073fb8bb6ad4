# SPDX-License-Identifier: Apache-2.0
"""The command that opens a model up: one page of one sentence."""

import re

import numpy as np
import pytest
from apps import run
from exhibits import data_of
from test_html import Reader
from test_translate import make_workdir


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the workdir of a model whose stacks differ."""
    folder = tmp_path_factory.mktemp("look")
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "encoder_heads": 4, "decoder_heads": 2}
    make_workdir(folder / "run", 3, **sizes)
    return folder


@pytest.fixture(scope="module")
def look(place):
    """The command with some flags."""
    return lambda *flags: run("experiments.look", f"--workdir={place / 'run'}", *flags)


@pytest.fixture(scope="module")
def made(place, look):
    """What the command says, and its page, of a sentence and of one that differs in a word."""
    finished = look("--sentence=a b c", "--compare=a d c", f"--output={place / 'page.html'}")
    assert finished.status == 0, finished.err
    return finished, (place / "page.html").read_text(encoding="utf-8")


def read(place, look, *flags):
    """Another page."""
    finished = look(*flags, f"--output={place / 'other.html'}")
    assert finished.status == 0, finished.err
    return (place / "other.html").read_text(encoding="utf-8")


def kinds(text):
    """Of the views on a page."""
    return [view["kind"] for view in data_of(text)["views"]]


def test_it_prints_the_path_of_the_page_alone(place, made):
    assert made[0].out == f"{place / 'page.html'}\n"


def test_the_page_shows_every_layer_and_head_of_both_stacks(made):
    data = data_of(made[1])
    pair = data["pairs"][0]
    assert [(family["layers"], family["heads"]) for family in pair] == [(1, 4), (2, 2), (2, 2)]
    assert kinds(made[1]) == ["heads", "grid", "steps", "replay", "numbers", "compare"]
    assert pair[0]["columns"] == [["▁a"], ["▁b"], ["▁c"], ["</s>"]]
    assert len(data["views"][2]["heads"]) == 4 + 2 * 2 * 2


def test_the_decoder_reads_the_translation_that_the_search_found(made):
    data = data_of(made[1])
    found = data["views"][3]["results"][0]["tokens"]
    read, predicted = zip(*data["pairs"][0][1]["rows"], strict=True)
    assert list(read) == ["<s>", *found[:-1]]
    assert list(predicted) == found


def test_every_head_has_its_numbers_and_every_layer_its_prediction(made):
    measures = data_of(made[1])["views"][1]["measures"]
    assert [measure["name"] for measure in measures] == [
        "mean entropy in bits",
        "loss added without the head, nats a token",
        "mean distance",
        *(f"weight on the {place} position" for place in ("previous", "next", "first", "last")),
        "weight on the own position",
    ]
    text = Reader(made[1]).text
    for heading in ("Logit lens", "Residual stream", "What the contributions add up to"):
        assert heading in text
    assert "layer 2: output" in text


def test_contributions_and_the_gap_make_the_difference_that_the_words_make(made):
    [shown] = [view for view in data_of(made[1])["views"] if view["kind"] == "numbers"]
    rows = re.findall(r"<td class=\"number\">(-?[0-9.]+)</td>", made[1].split("<caption>Nats<")[1])
    predictions = len(shown["rows"])
    for row, values in zip(
        np.reshape(rows[: 4 * predictions], (-1, 4)).astype(float), shown["values"], strict=True
    ):
        value, baseline, total, gap = row
        assert total == pytest.approx(sum(values), abs=0.01)
        assert abs(total - (value - baseline)) == pytest.approx(gap, abs=0.003)


def test_two_sentences_of_one_length_have_a_difference_and_a_map_of_where_the_answer_lies(made):
    shown = data_of(made[1])["views"][-1]
    text = Reader(made[1]).text
    assert "The second sentence: a d c" in text
    assert shown["pairs"] == [1, 2]
    assert np.shape(shown["patch"]) == (2, 4)
    # The sentences differ in the second token: at the input, nothing else can restore anything.
    assert shown["patch"][0][0] == shown["patch"][0][2] == shown["patch"][0][3] == 0
    assert shown["patch"][0][1] == pytest.approx(1, abs=1e-3)
    assert sum(shown["patch"][1]) != 0


@pytest.mark.slow
def test_sentences_of_two_lengths_have_no_patch_map_and_the_page_says_why(place, look):
    text = read(place, look, "--sentence=a b c", "--compare=a b")
    assert "The first sentence has 4 tokens, the second 3: their positions" in Reader(text).text
    assert kinds(text)[-2:] == ["numbers", "heads"]
    assert data_of(text)["pairs"][-1][0]["columns"] == [["▁a"], ["▁b"], ["</s>"]]


@pytest.mark.slow
def test_a_sentence_compared_with_itself_has_no_patch_map(place, look):
    text = read(place, look, "--sentence=a b", "--compare=a b", "--target=g")
    assert "There is no patch map: the two sentences are the same." in Reader(text).text
    assert "patch" not in data_of(text)["views"][-1]


@pytest.mark.slow
def test_a_given_target_is_read_in_its_place(place, look):
    text = read(place, look, "--sentence=a b", "--target=g d")
    rows = data_of(text)["pairs"][0][1]["rows"]
    assert rows == [["<s>", "▁g"], ["▁g", "▁d"], ["▁d", "</s>"]]
    assert "What the decoder reads here: g d" in Reader(text).text


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        {"norm": "pre", "positions": "learned", "attention_bias": True, "activation": "gelu"},
        {"sinusoid_layout": "halves", "attention_kernel": "chunked", "d_k": 3, "d_v": 5},
        {"compute_dtype": "bfloat16"},
    ],
    ids=["pre-norm", "chunked", "bfloat16"],
)
def test_models_of_any_kind_are_opened(tmp_path, sizes):
    make_workdir(tmp_path / "run", 1, **sizes)
    workdir = f"--workdir={tmp_path / 'run'}"
    text = read(
        tmp_path, lambda *flags: run("experiments.look", workdir, *flags), "--sentence=a b c"
    )
    assert kinds(text) == ["heads", "grid", "steps", "replay", "numbers"]


@pytest.mark.slow
def test_a_report_of_6_layers_8_heads_and_30_tokens_is_under_400_kilobytes(tmp_path):
    """Of a fresh model, whose weights are all small and none is nearly 0: the most characters."""
    words = [f"word{number}" for number in range(7)]
    make_workdir(
        tmp_path / "run", 1, words=" ".join(words), num_layers=6, num_heads=8, d_model=64, d_k=64
    )
    sentences = [" ".join(words[(place + first) % 7] for place in range(29)) for first in (0, 1)]
    text = read(
        tmp_path,
        lambda *flags: run("experiments.look", f"--workdir={tmp_path / 'run'}", *flags),
        f"--sentence={sentences[0]}",
        f"--target={sentences[1]}",
        "--config.data.max_length=30",
        "--config.data.bucket_lengths=(30,)",
        "--config.data.tokens_per_batch=240",
        "--config.decode.extra_length=1",
    )
    assert [len(family["rows"]) for family in data_of(text)["pairs"][0]] == [30, 30, 30]
    assert len(text.encode()) < 400_000


@pytest.mark.slow
def test_the_same_command_writes_the_same_bytes(place, look, made):
    again = read(place, look, "--sentence=a b c", "--compare=a d c")
    assert again == made[1]


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
        (["--output=x.html", "--sentence=a", "--compare= "], "--compare is empty"),
        (["--output=x.html", "--sentence=a", "--workdir=no"], "no"),
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
