# SPDX-License-Identifier: Apache-2.0
"""Pages of views are small, whole and closed, and their pictures show what the views do."""

import base64
import hashlib
import re

import numpy as np
import pytest
from exhibits import (
    data_of,
    every_view,
    one_head,
    pair,
    softmax_weights,
    words,
)
from test_html import AWKWARD, Reader

from transformer.inspection.html import escape
from transformer.inspection.search_log import Result, SearchLog, SearchStep
from transformer.inspection.views import picture
from transformer.inspection.views.compare_view import compare
from transformer.inspection.views.grid import grid
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.replay import replay
from transformer.inspection.views.step_view import steps
from transformer.inspection.views.view import FILES, HEAD_COLOURS, page


@pytest.mark.parametrize("view", every_view(), ids=lambda view: view.kind)
def test_the_template_of_a_view_is_under_ten_kilobytes(view):
    text = re.sub(r'(id="data">).*?(</script>)', r"\1\2", view.html)
    for content in map(escape, (view.picture, view.told, view.title)):
        assert content in text
        text = text.replace(content, "")
    assert len(text.encode()) < 10_000


@pytest.mark.parametrize("view", every_view(), ids=lambda view: view.kind)
def test_a_page_runs_its_own_script_only_and_has_no_address(view):
    read = Reader(view.html)
    assert "://" not in view.html
    assert "url(" not in view.html
    [policy] = [meta["content"] for meta in read.all("meta") if "http-equiv" in meta]
    assert re.findall(r"script-src [^;]*", policy) == [f"script-src {digest_of(view.html)}"]
    assert "default-src 'none'" in policy
    assert [script.get("type") for script in read.all("script")] == ["application/json", None]
    for tag, attributes in read.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                assert value.startswith("data:"), (tag, value)


def digest_of(text):
    """What the policy calls the script that runs."""
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@pytest.mark.parametrize("view", every_view(), ids=lambda view: view.kind)
def test_a_view_has_a_picture_and_words_without_its_script(view):
    read = Reader(view.html)
    assert read.all("svg")[0]["role"] == "img"
    assert view.told in read.text
    assert "NaN" not in view.picture
    assert "nan" not in view.picture


def test_the_same_arguments_give_the_same_bytes():
    assert [view.html for view in every_view()] == [view.html for view in every_view()]
    assert page("x", every_view()) == page("x", every_view())
    assert every_view()[0]._repr_html_() == every_view()[0]._repr_html_()


def test_a_view_is_told_in_a_line_where_only_text_is_shown():
    for view in every_view():
        assert repr(view) == f"<View: {view.title}>"


def test_weights_are_on_a_page_once_however_many_views_show_them():
    both = pair()
    data = data_of(page("x", [head_view(both), grid(both), compare(both, pair(seed=3))]))
    assert len(data["pairs"]) == 2
    assert [view["pairs"] for view in data["views"]] == [[0], [0], [0, 1]]


def test_a_notebook_gets_a_frame_and_a_picture_for_where_frames_are_taken_out():
    view = head_view(pair())
    read = Reader(view._repr_html_())
    [frame] = read.all("iframe")
    assert frame["srcdoc"] == view.html
    assert frame["sandbox"] == "allow-scripts allow-downloads", "not the notebook's own origin"
    assert len(read.all("svg")) == 1, "the frame's own are in its document"
    assert view.told in read.text


@pytest.mark.parametrize("text", AWKWARD)
def test_a_token_of_any_kind_stays_text(text):
    view = head_view(pair(tokens=[text, *words(4, "s")]))
    read = Reader(view.html)
    assert len(read.all("script")) == 2
    assert data_of(view.html)["pairs"][0][0]["columns"][0] == [text]
    assert text in Reader(view.picture).text


@pytest.mark.parametrize(
    ("token", "shown"), [("", "(empty)"), (" ", "(space)"), ("a\u2028\x07", "aU+2028U+0007")]
)
def test_tokens_that_nobody_would_see_are_named(token, shown):
    assert pair(tokens=[token, *words(4, "s")])[0].columns[0] == (shown,)


def test_a_report_of_6_layers_8_heads_and_30_tokens_is_under_400_kilobytes():
    both = pair(30, 30, (6, 8), (6, 8))
    assert [family.weights.shape for family in both] == [(6, 8, 30, 30)] * 3
    views = [
        head_view(both),
        grid(both),
        steps([one_head(30, 30, 64, 64)]),
        replay(*long_search(), layers=[-1]),
    ]
    assert len(page("A report", views).encode()) < 400_000


def long_search():
    """Four beams over thirty steps in a model of 6 layers and 8 heads, and its tokens."""
    source, beams = tuple(range(4, 34)), range(4)
    found = [tuple(4 + (place + beam) % 30 for place in range(30)) for beam in beams]
    log_steps = [
        SearchStep(
            tokens=tuple(found[beam][:index] for beam in beams),
            log_probs=tuple(-0.1234 * index - beam for beam in beams),
            parents=tuple(beams),
            top_tokens=np.arange(4, 24).reshape(4, 5),
            top_log_probs=np.log(np.full((4, 5), 0.123456)),
            cross_attention=softmax_weights(4, 6, 8, 30, seed=index),
            finished=(),
        )
        for index in range(30)
    ]
    log = SearchLog(source, tuple(log_steps), (Result(found[0], -1.0, -2.0),))
    return log, lambda ids: [f"▁word{token}" for token in ids]


def test_a_page_is_saved_as_it_is(tmp_path):
    view = grid(pair())
    view.save(tmp_path / "view.html")
    assert (tmp_path / "view.html").read_bytes() == view.html.encode()


def luminance(colour):
    """Relative luminance as WCAG defines it."""
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(weight * s for weight, s in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colour", [*HEAD_COLOURS, picture.MORE, picture.LESS])
@pytest.mark.parametrize("paper", ["#ffffff", "#161616"])
def test_colours_stand_out_in_both_schemes(colour, paper):
    low, high = sorted((luminance(colour), luminance(paper)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_every_kind_of_view_names_its_files():
    assert {view.kind for view in every_view()} == set(FILES)


def test_a_still_head_view_names_its_heads_and_draws_what_is_not_weak():
    both = pair()
    read = Reader(head_view(both, heads=[1, 3], row=2).picture)
    weights = both[0].weights[-1][[1, 3], 2]
    lines = [path for path in read.all("path") if "L" in path["d"]]
    expected = [f"{weight:.2f}" for weight in weights.ravel().tolist() if weight >= 0.05]
    assert [line["stroke-opacity"] for line in lines] == expected
    squares = [path for path in read.all("path") if "L" not in path["d"]]
    assert len(squares) == (weights >= 0.01).sum() > len(lines)
    assert [text for text in read.shown if text.isdigit()] == ["2", "4"]


def test_cells_that_are_all_positive_are_one_image_of_so_many_pixels():
    drawn = picture.heat_map("x", np.full((2, 3), 0.5), ["r", "s"], ["a", "b", "c"])
    [image] = Reader(drawn).all("image")
    kind, _, encoded = image["href"].partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(encoded)[16:24] == bytes([0, 0, 0, 3, 0, 0, 0, 2])
    assert float(image["width"]) / float(image["height"]) == 3 / 2


def test_negative_cells_are_round_and_shades_follow_the_square_root():
    drawn = picture.heat_map("x", np.array([[0.25, -1.0, 0.0]]), ["r"], ["a", "b", "c"])
    paths = Reader(drawn).all("path")
    assert [(path["fill"], path["fill-opacity"]) for path in paths] == [
        (picture.MORE, "0.5"),
        (picture.LESS, "1.0"),
    ]
    assert "a" in paths[1]["d"]
    assert "a" not in paths[0]["d"]
