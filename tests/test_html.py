# SPDX-License-Identifier: Apache-2.0
"""Pages are whole files of well-formed HTML, show text as it is, and draw lines where they lie."""

import html.parser
import math
import os
import re
import subprocess

import pytest
from browsing import BROWSER

from transformer.inspection.html import (
    Html,
    Series,
    element,
    escape,
    line_chart,
    page,
    paragraph,
    section,
    sentence,
    sentences,
    table,
)

VOID = ("br", "hr", "link", "meta")


class Reader(html.parser.HTMLParser):
    """Reads a page as a browser does; every element must be closed where it was opened."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.shown = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.shown.append(data)

    @property
    def text(self):
        """All that is shown."""
        return "".join(self.shown)

    def all(self, tag):
        """The attributes of every such element."""
        return [attributes for name, attributes in self.elements if name == tag]


AWKWARD = [
    "</script><script>alert(1)</script>",
    "\"double\" and 'single' & <b>bold</b> &amp; <!-- no comment -->",
    "שלום עולם 123 (abc)",
    "👩‍👩‍👧 naïve ẞ 你好",
    "\u202ereversed",
    "]]> --> ${x} {{y}} %s \\n",
]


def rich():
    """A page with one of everything."""
    steps = list(range(0, 1000, 10))
    chart = line_chart(
        "Loss <of> it",
        [
            Series("train & more", steps, [8 / (1 + step) for step in steps]),
            Series('"validation"', steps[::20], [1.0, math.nan, 0.5, math.inf, 0.25]),
        ],
        x_label="step",
        y_label="nats",
    )
    return page(
        AWKWARD[0],
        section(AWKWARD[1], paragraph(*AWKWARD), chart),
        section("Sentences", sentences("line 1", [(text, text) for text in AWKWARD])),
        section("Table", table(AWKWARD[2], AWKWARD[:2], [AWKWARD[2:4], ["a", 1]], numeric=(1,))),
    )


def test_a_page_is_well_formed_and_says_its_title_and_language():
    text = rich()
    assert text.startswith("<!DOCTYPE html>\n")
    read = Reader(text)
    assert read.all("html") == [{"lang": "en"}]
    assert AWKWARD[0] in read.text
    assert {"charset": "utf-8"} in read.all("meta")
    assert len(read.all("title")) == 2, "the page's and the chart's"
    assert len(read.all("h1")) == 1


def test_a_page_is_one_file_without_script_or_address():
    read = Reader(rich())
    assert "script" not in {tag for tag, _ in read.elements}
    for tag, attributes in read.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action"):
                assert value.startswith("data:"), (tag, value)
    assert "://" not in rich()
    assert "url(" not in rich()
    assert "@import" not in rich()
    [policy] = [meta["content"] for meta in read.all("meta") if "http-equiv" in meta]
    assert "default-src 'none'" in policy


@pytest.mark.parametrize("text", AWKWARD)
def test_every_text_is_shown_as_it_is_wherever_it_stands(text):
    for made in (
        page(text),
        section(text),
        paragraph(text),
        sentence(text),
        sentences(text, [("source", "x")]),
        sentences("x", [(text, "x")]),
        table(text, ["a"], [["b"]]),
        table("x", [text], [["b"]]),
        table("x", ["a"], [[text]]),
        line_chart(text, [Series("a", [1], [1])], x_label="x", y_label="y"),
        line_chart("a", [Series(text, [1], [1])] * 2, x_label="x", y_label="y"),
        line_chart("a", [Series("a", [1], [1])], x_label=text, y_label="y"),
        line_chart("a", [Series("a", [1], [1])], x_label="x", y_label=text),
    ):
        assert text in Reader(made).text


def test_attributes_are_escaped_named_as_in_html_and_left_out_when_none():
    made = element("a", "x", class_='"><b>', aria_label="it's", title=None)
    assert Reader(made).elements == [("a", {"class": '"><b>', "aria-label": "it's"})]
    assert element("br") == "<br>"


def test_markup_is_not_escaped_twice_and_plain_text_always_is():
    assert escape(escape("a < b")) == "a &lt; b"
    assert paragraph(element("b", "<"), "<") == "<p><b>&lt;</b>&lt;</p>"
    assert isinstance(paragraph("x"), Html)
    assert not isinstance(paragraph("x") + "<", Html)


def test_what_a_file_cannot_hold_is_replaced():
    text = page("a\x00b\x1b[31mc\ud800d")
    assert "a\ufffdb\ufffd[31mc\ufffdd" in text
    text.encode("utf-8")


def test_a_sentence_keeps_to_the_direction_of_its_script():
    assert Reader(sentence("שלום")).all("bdi") == [{"dir": "auto"}]


@pytest.mark.parametrize(
    ("character", "code"),
    [
        ("\u2028", "U+2028"),
        ("\u2029", "U+2029"),
        ("\x85", "U+0085"),
        ("\x00", "U+0000"),
        ("\t", "U+0009"),
    ],
)
def test_invisible_separators_of_a_sentence_are_shown_by_their_codes(character, code):
    assert Reader(sentence(f"one{character}two")).text == f"one{code}two"


def test_a_sentence_without_a_word_is_said_to_be_empty():
    assert Reader(sentence("")).text == "(empty)"
    assert Reader(sentence("  ")).text == "(only spaces)"


def test_a_table_has_a_caption_and_its_headings_say_what_they_head():
    read = Reader(table("Scores", ["measure", "value"], [["BLEU", 34], ["chrF", 60]], numeric=(1,)))
    assert [head.get("scope") for head in read.all("th")] == ["col", "col", "row", "row"]
    assert read.text == "ScoresmeasurevalueBLEU34chrF60"
    assert read.all("td") == [{"class": "number"}] * 2
    assert read.all("div")[0]["tabindex"] == "0", "it scrolls by keyboard"


def test_the_template_is_small_and_the_same_page_has_the_same_bytes():
    assert len(page("")) < 10_000
    assert rich() == rich()


# Line charts. The plot reaches from x = 70 to 620 and from y = 228 up to 12.


def lines(chart):
    """The paths of the series."""
    drawing = chart[chart.index('role="img"') :]
    return re.findall(r'<path d="([^"]*)" class="s\d"', drawing)


def drawn(*series, **options):
    return line_chart("title", series, x_label="x", y_label="y", **options)


def test_points_lie_where_the_axes_say():
    [line] = lines(drawn(Series("a", [0, 5, 10], [0, 50, 100])))
    assert line == "M70,228L345,120L620,12"


def test_the_vertical_axis_ends_with_round_values_and_the_horizontal_one_with_the_data():
    chart = drawn(Series("a", [50, 1000], [0.3, 5.1]))
    labels = [text for text in Reader(chart).shown if re.fullmatch(r"[\d,.]+", text)]
    assert labels == ["0", "1", "2", "3", "4", "5", "6", "200", "400", "600", "800", "1,000"]
    # 0.3 of 6 lies 5% up: 228 - 216 * 0.05; 5.1 of 6 lies 85% up.
    assert lines(chart) == ["M70,217.2L620,44.4"]


def test_a_value_may_be_included_that_no_line_reaches():
    chart = drawn(Series("a", [0, 1], [0.5, 1]), include=(0,))
    assert lines(chart) == ["M70,120L620,12"]


@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_leaves_a_gap(missing):
    chart = drawn(Series("a", [0, 1, 2, 3, 4], [0, 4, missing, 4, 0]))
    assert lines(chart) == ["M70,228L207.5,12", "M482.5,12L620,228"]
    assert "nan" not in chart
    assert "inf" not in chart


def test_a_point_between_gaps_has_a_mark_even_in_a_long_line():
    values = [1.0] * 100 + [math.nan, 2.0, math.nan] + [1.0] * 100
    chart = drawn(Series("a", range(len(values)), values))
    marks = [path for path in Reader(chart).all("path") if "mark" in path.get("class", "")]
    assert len(marks) == 1


def test_lines_are_told_apart_by_more_than_colour():
    chart = drawn(*(Series(f"line {n}", [0, 1], [n, n + 1]) for n in range(4)))
    paths = Reader(chart).all("path")
    assert len({p.get("stroke-dasharray") for p in paths if p.get("class") in COLOURS}) == 4
    assert len({p["d"] for p in paths if "mark" in p.get("class", "")}) == 4


COLOURS = ("s0", "s1", "s2", "s3")


def test_sixteen_lines_all_look_different():
    chart = drawn(*(Series(f"line {n}", [0, 1], [n, n]) for n in range(16)))
    looks = {
        (path["class"], path.get("stroke-dasharray"))
        for path in Reader(chart).all("path")
        if path.get("class") in COLOURS
    }
    assert len(looks) == 16


def test_a_chart_says_in_words_what_it_shows():
    read = Reader(drawn(Series("loss", [50, 100, 150], [6, 2, 3]), Series("none", [], [])))
    assert read.all("svg")[-1]["role"] == "img"
    assert "loss: 6 at 50, 3 at 150, lowest 2, highest 6; none: no values" in read.text


def test_a_long_line_is_small_and_loses_no_peak():
    values = [math.sin(step / 7000) for step in range(100_000)]
    values[54_321] = 9.0
    values[65_432] = -9.0
    chart = drawn(Series("a", range(len(values)), values))
    assert len(chart) < 60_000
    [line] = lines(chart)
    heights = [float(height) for height in re.findall(r",([\d.]+)", line)]
    # From -10 to 10; 9 lies 5% below the top.
    assert min(heights) == pytest.approx(12 + 0.05 * 216, abs=0.05)
    assert max(heights) == pytest.approx(228 - 0.05 * 216, abs=0.05)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([3], [7]),
        ([3, 4], [0, 0]),
        ([3, 3], [1, 2]),
        ([0, 1], [1e-300, 2e-300]),
        ([0, 1], [-1e308, 1e308]),
        ([0, 1], [1.0, 1.0000000000000002]),
        ([0, 1], [0.0, 5e-324]),
        ([1e9, 2e9], [-5, -4]),
    ],
    ids=str,
)
def test_values_of_any_size_can_be_drawn(x, y):
    chart = drawn(Series("a", x, y))
    places = re.findall(r"[\d.]+,[\d.]+", "".join(lines(chart)))
    assert len(places) == len(x)
    for place in places:
        across, up = map(float, place.split(","))
        assert 70 <= across <= 620
        assert 12 <= up <= 228


@pytest.mark.parametrize("series", [(), (Series("a", [], []),), (Series("a", [1], [math.nan]),)])
def test_a_chart_of_nothing_says_so(series):
    assert "There are no values." in Reader(drawn(*series)).text


def test_coordinates_in_unequal_numbers_are_an_error():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        drawn(Series("a", [1, 2], [1]))


@pytest.mark.skipif(BROWSER is None, reason="no browser; continuous integration has one")
def test_a_browser_shows_the_page(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(rich(), encoding="utf-8")
    finished = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=True,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    seen = Reader(finished.stdout)
    assert [t for t, _ in seen.elements] == [t for t, _ in Reader(rich()).elements]
    for text in AWKWARD:
        assert text in seen.text
