# SPDX-License-Identifier: Apache-2.0
"""Pages of views are self-contained, and show their content without scripts too."""

import base64
import hashlib
import pathlib
import re

import numpy as np
import pytest
from exhibits import EXHIBITS, data_of, every_view, exhibit, one_head, pair, softmax_weights
from html_reader import AWKWARD, Reader

from transformer.inspection import figures, views
from transformer.inspection.figures.style import HEAD_COLORS
from transformer.inspection.search_log import Result, SearchLog, SearchStep
from transformer.inspection.views.attention_steps import attention_steps
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.search_replay import search_replay
from transformer.inspection.views.sentence_comparison import compare_sentences
from transformer.inspection.views.view import SCRIPTS, page

VIEWS = pathlib.Path(views.__file__).parent


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_page_runs_only_its_script_has_no_address_and_can_be_read_without(name):
    view = exhibit(name)
    read = Reader(view.html)
    assert "://" not in view.html.replace("http://www.w3.org/2000/svg", "the namespace")
    assert "url(" not in view.html
    [script] = re.findall(r"<script>(.*?)</script>", view.html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = [meta["content"] for meta in read.all("meta") if "http-equiv" in meta]
    assert re.findall(r"script-src [^;]*", policy) == [f"script-src 'sha256-{digest}'"]
    assert "default-src 'none'" in policy
    assert [script.get("type") for script in read.all("script")] == ["application/json", None]
    for tag, attributes in read.elements:
        for attribute, value in attributes.items():
            assert not attribute.startswith("on"), (tag, attribute)
            if attribute in ("src", "href"):
                assert value.startswith(("data:", "#")), (tag, value)
    assert repr(view) == f"<View: {view.title}>"
    static = Reader(view.static_html)
    assert static.all("table") or [image["alt"] for image in static.all("img") if image["alt"]]
    assert view.description in static.text
    assert "nan" not in static.text.lower()


def test_scripts_and_styles_are_in_a_page_as_they_are_and_begin_with_a_description():
    text = exhibit("head_view").html
    assert {path.name for path in VIEWS.glob("*.js")} == set(SCRIPTS)
    for path in [*VIEWS.glob("*.js"), *VIEWS.glob("*.css"), VIEWS.parent / "page.css"]:
        content = path.read_text(encoding="utf-8")
        assert content in text
        if path.suffix == ".js":
            first, second, *_ = content.splitlines()
            assert first == "// SPDX-License-Identifier: Apache-2.0"
            assert second.startswith("// ")


@pytest.mark.slow
def test_the_same_arguments_give_the_same_bytes():
    again = [EXHIBITS[name]() for name in EXHIBITS]
    assert [view.html for view in every_view()] == [view.html for view in again]
    assert page("x", every_view()) == page("x", again)
    assert every_view()[0]._repr_html_() == again[0]._repr_html_()


def test_the_weights_of_a_sentence_pair_are_in_a_page_once():
    both = pair()
    comparison = compare_sentences(both, pair(seed=3))
    data = data_of(page("x", [head_view(both), head_overview(both), comparison]))
    assert len(data["pairs"]) == 2
    assert [view["pairs"] for view in data["views"]] == [[0], [0], [0, 1]]


def test_a_notebook_gets_a_frame_and_static_content_for_sites_that_remove_frames():
    view = exhibit("head_view")
    read = Reader(view._repr_html_())
    [frame] = read.all("iframe")
    assert frame["srcdoc"] == view.html
    assert frame["sandbox"] == "allow-scripts allow-downloads", "not the notebook's origin"
    assert len(read.all("img")) == 1, "the frame's image is in its document"
    assert view.description in read.text


def test_any_token_stays_text_and_invisible_ones_are_shown_by_name(tmp_path):
    tokens = [*AWKWARD, "", " ", "a\u2028\x07"]
    view = head_view(pair(source=len(tokens), tokens=tokens), row=0)
    view.save(tmp_path / "view.html")
    assert (tmp_path / "view.html").read_bytes() == view.html.encode()
    assert len(Reader(view.html).all("script")) == 2
    columns = data_of(view.html)["pairs"][0][0]["columns"]
    assert columns == [[text] for text in (*AWKWARD, "(empty)", "(space)", "aU+2028U+0007")]
    assert AWKWARD[0] in Reader(view.static_html).text, "the row that it shows"


@pytest.mark.slow
def test_a_page_of_6_layers_8_heads_and_30_tokens_is_under_2_megabytes():
    both = pair(30, 30, (6, 8), (6, 8))
    assert [attention.weights.shape for attention in both] == [(6, 8, 30, 30)] * 3
    views = [
        head_view(both),
        head_overview(both),
        attention_steps(*one_head(30, 30, 64, 64)),
        search_replay(*long_search()),
    ]
    assert len(page("A page", views).encode()) < 2_000_000


def long_search():
    """Four beams and thirty steps in a model of 6 layers and 8 heads, and its vocabulary."""
    source, beams = tuple(range(4, 34)), range(4)
    hypotheses = [tuple(4 + (index + beam) % 30 for index in range(30)) for beam in beams]
    log_steps = [
        SearchStep(
            tokens=tuple(hypotheses[beam][:index] for beam in beams),
            log_probs=tuple(-0.1234 * index - beam for beam in beams),
            parents=tuple(beams),
            top_tokens=np.arange(4, 24).reshape(4, 5),
            top_log_probs=np.log(np.full((4, 5), 0.123456)),
            cross_attention=softmax_weights(4, 6, 8, 30, seed=index),
            finished=(),
        )
        for index in range(30)
    ]
    log = SearchLog(source, tuple(log_steps), (Result(hypotheses[0], -1.0, -2.0),))
    return log, [f"▁word{token}" for token in range(34)]


def luminance(color):
    """Relative luminance as defined by WCAG."""
    shares = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(weight * s for weight, s in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def palettes():
    """The custom properties of the light and of the dark palette."""
    style = (VIEWS.parent / "page.css").read_text(encoding="utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)", 1)
    found = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", text)) for text in (light, dark)]
    return found[0], found[0] | found[1]


def test_colors_have_contrast_in_both_schemes():
    for color in HEAD_COLORS:
        for background in ("#ffffff", "#16181c"):
            assert contrast(color, background) >= 3, (color, background)
    for palette in palettes():
        for name in ("ink", "soft", "accent", "high", "low"):
            for paper in ("paper", "panel"):
                assert contrast(palette[name], palette[paper]) >= 4.5, (name, paper)
        assert contrast(palette["ink"], palette["marked"]) >= 4.5


def test_the_static_content_of_the_head_view_is_the_figure_of_its_row():
    encoder = pair()[0]
    view = head_view(pair(), layer=0, row=2)
    labels = [token for (token,) in encoder.columns]
    figure = figures.plot_token_heads(encoder.weights[0], 2, labels, labels)
    assert figures.to_svg(view.static) == figures.to_svg(figure)
    assert "row 3" in view.description
    [image] = Reader(view.static_html).all("img")
    assert image["alt"] == figure.description
    assert "'<s> → t0'" in head_view(pair()[1:]).static.description, "rows as in the figures"
