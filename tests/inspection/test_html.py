# SPDX-License-Identifier: Apache-2.0
"""Pages are complete, well-formed HTML files that show any text as it is."""

import base64
import os
import subprocess

import pytest
from browsing import BROWSER
from html_reader import AWKWARD, Reader

from transformer.inspection.html import (
    Html,
    anchor,
    contents,
    details,
    element,
    escape,
    folded,
    image,
    page,
    paragraph,
    scale,
    section,
    sentence,
    sentence_versions,
    shaded,
    shaded_table,
    table,
)

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"></svg>'


def rich():
    """A page with one of everything."""
    return page(
        AWKWARD[0],
        section(AWKWARD[1], paragraph(*AWKWARD), image(SVG, AWKWARD[1]), details("more", "text")),
        section("Sentences", sentence_versions("line 1", [(text, text) for text in AWKWARD])),
        section("Table", table(AWKWARD[2], AWKWARD[:2], [AWKWARD[2:4], ["a", 1]], numeric=(1,))),
        folded(AWKWARD[1], AWKWARD[0], shaded_table(AWKWARD[2], ["", "x"], [("r", [shaded(1.0)])])),
    )


def test_a_page_is_well_formed_and_small_and_has_a_title_and_a_language():
    text = rich()
    assert text == rich(), "equal arguments give equal bytes"
    assert len(page("")) < 10_000
    assert text.startswith("<!DOCTYPE html>\n")
    read = Reader(text)
    assert read.all("html") == [{"lang": "en"}]
    assert AWKWARD[0] in read.text
    assert {"charset": "utf-8"} in read.all("meta")
    assert len(read.all("title")) == 1
    assert len(read.all("h1")) == 1


def test_a_page_has_no_script_and_no_address():
    read = Reader(rich())
    assert "script" not in {tag for tag, _ in read.elements}
    for tag, attributes in read.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action"):
                assert value.startswith(("data:", "#")), (tag, value)
    assert "://" not in rich()
    assert "url(" not in rich()
    assert "@import" not in rich()
    [policy] = [meta["content"] for meta in read.all("meta") if "http-equiv" in meta]
    assert "default-src 'none'" in policy


def test_any_text_is_shown_as_it_is_in_every_element():
    for text in AWKWARD:
        for made in (
            page(text),
            section(text),
            paragraph(text),
            sentence(text),
            sentence_versions(text, [("source", "x")]),
            sentence_versions("x", [(text, "x")]),
            details(text, "x"),
            table(text, ["a"], [["b"]]),
            table("x", [text], [["b"]]),
            table("x", ["a"], [[text]]),
        ):
            assert text in Reader(made).text


def test_attributes_are_escaped_and_named_as_in_html_and_none_is_left_out():
    made = element("a", "x", class_='"><b>', aria_label="it's", title=None)
    assert Reader(made).elements == [("a", {"class": '"><b>', "aria-label": "it's"})]
    assert element("br") == "<br>"


def test_markup_is_escaped_once_and_plain_text_always():
    assert escape(escape("a < b")) == "a &lt; b"
    assert paragraph(element("b", "<"), "<") == "<p><b>&lt;</b>&lt;</p>"
    assert isinstance(paragraph("x"), Html)
    assert not isinstance(paragraph("x") + "<", Html)


def test_characters_that_html_forbids_are_replaced():
    text = page("a\x00b\x1b[31mc\ud800d")
    assert "a\ufffdb\ufffd[31mc\ufffdd" in text
    text.encode("utf-8")


def test_a_sentence_has_the_direction_of_its_script_and_shows_what_is_invisible():
    assert Reader(sentence("שלום")).all("bdi") == [{"dir": "auto"}]
    for character in "\u2028\u2029\x85\x00\t":
        shown = f"oneU+{ord(character):04X}two"
        assert Reader(sentence(f"one{character}two")).text == shown
    assert Reader(sentence("")).text == "(empty)"
    assert Reader(sentence("  ")).text == "(only spaces)"


def test_a_table_has_a_caption_and_headings_with_their_scope():
    read = Reader(table("Scores", ["measure", "value"], [["BLEU", 34], ["chrF", 60]], numeric=(1,)))
    assert [head.get("scope") for head in read.all("th")] == ["col", "col", "row", "row"]
    assert read.text == "ScoresmeasurevalueBLEU34chrF60"
    assert read.all("td") == [{"class": "number"}] * 2
    assert read.all("div")[0]["tabindex"] == "0", "the keyboard can scroll it"


def test_the_color_of_a_cell_is_in_proportion_to_its_value():
    cells = [shaded(value, 2.0) for value in (0.0, 0.5, -1.0, 2.0, 3.0)]
    read = Reader("".join(cells))
    styles = [cell["style"] for cell in read.all("td")]
    assert styles == [f"--value:{share}" for share in ("0.000", "0.250", "0.500", "1.000", "1.000")]
    classes = [cell["class"].removeprefix("number ") for cell in read.all("td")]
    assert classes == ["high", "high", "low", "high strong", "high strong"]
    assert read.text == "0.000.50-1.002.003.00"
    assert Reader(shaded(-0.001)).text == "0.00", "zero has no sign"


def test_a_legend_names_both_ends_of_its_scale():
    assert Reader(scale("weight")).text == "weight 01"
    assert Reader(scale("nats", 1.25, signed=True, digits=2)).text == "nats −1.251.25"


def test_the_table_of_contents_links_to_every_part():
    headings = ["One head: who reads whom", "Scores", "你好"]
    read = Reader(contents(headings))
    links = [link["href"] for link in read.all("a")]
    assert links == ["#one-head-who-reads-whom", "#scores", "#你好"]
    for heading in headings:
        for made in (section(heading), folded(heading, "about")):
            assert anchor(heading) in [each.get("id") for _, each in Reader(made).elements]


def test_a_folded_part_shows_its_heading_and_one_line():
    read = Reader(folded("Scores", "what they mean", paragraph("content")))
    assert read.all("details") == [{"class": "part"}]
    assert read.text.strip() == "Scoreswhat they meancontent"


def test_an_image_is_embedded_with_its_text_alternative():
    [attributes] = Reader(image(SVG, "a <chart>")).all("img")
    assert attributes["alt"] == "a <chart>"
    address, encoded = attributes["src"].split(",")
    assert (address, base64.b64decode(encoded)) == ("data:image/svg+xml;base64", SVG)


@pytest.mark.skipif(BROWSER is None, reason="no browser; continuous integration has one")
def test_a_browser_parses_the_page_as_it_was_written(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(rich(), encoding="utf-8")
    finished = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=True,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    parsed = Reader(finished.stdout)
    assert [t for t, _ in parsed.elements] == [t for t, _ in Reader(rich()).elements]
    for text in AWKWARD:
        assert text in parsed.text
