# SPDX-License-Identifier: Apache-2.0
"""The page of the service: two boxes, alternatives, and attention over the source.

It is one file without requests to other hosts, made from the elements and the heat map of the
inspection views.
"""

from experiments.serving.languages import Languages
from transformer.inspection import html
from transformer.inspection.html import Html, element

MOST_ALTERNATIVES = 4
"""Largest number of alternatives that the page requests."""
_VIEWS = "transformer.inspection.views"
_UNKNOWN = {"source": "Text", "target": "Translation"}
"""Headings where the languages are unknown."""


def build(title: str, languages: Languages, *, alternatives: int, attention: bool) -> str:
    """The page as HTML.

    Args:
      title: heading of the page.
      languages: headings of the boxes.
      alternatives: number that the page requests.
      attention: whether the service answers ``/attention``.
    """
    names = [
        _UNKNOWN.get(code, languages.name(code)) for code in (languages.source, languages.target)
    ]
    targets = [{"code": code, "name": languages.name(code)} for code in languages.targets]
    settings = {"alternatives": alternatives, "attention": attention, "targets": targets}
    files = [(_VIEWS, "elements.js"), (_VIEWS, "heat_map.js")]
    files.append((__package__, "translation_page.js"))
    return html.page(
        title,
        _boxes(languages, *names),
        element("p", id="status", role="status"),
        element("div", id="token"),
        element("div", id="details"),
        html.json_block("settings", settings),
        style=html.file_of(__package__, "translation_page.css"),
        script="\n".join(html.file_of(*file) for file in files),
        connects=True,
    )


def _boxes(languages: Languages, source: str, target: str) -> Html:
    """The box for the text, with a layer for marks behind it, and the box of the translation."""
    known = [None if code in _UNKNOWN else code for code in (languages.source, languages.target)]
    if languages.marked:
        known[1] = None
    text = element(
        "textarea",
        id="source",
        lang=known[0],
        dir="auto",
        autofocus="",
        autocomplete="off",
        spellcheck="false",
        placeholder="Type or paste text, one sentence a line",
        aria_describedby="keys",
    )
    clear = element("button", "Clear", id="clear", type="button")
    copy = element("button", "Copy", id="copy", type="button")
    return element(
        "div",
        element(
            "section",
            element("div", element("label", source, for_="source"), clear, class_="head"),
            element("div", element("div", id="marks", aria_hidden="true"), text, class_="editor"),
        ),
        element(
            "section",
            element(
                "div",
                element("h2", target, id="target-name"),
                element("span", id="choice"),
                copy,
                class_="head",
            ),
            element(
                "div",
                id="target",
                lang=known[1],
                role="group",
                aria_labelledby="target-name",
                aria_live="polite",
            ),
        ),
        element(
            "p",
            "Tab reaches the translation; arrow keys choose a word, Escape returns to the text.",
            id="keys",
            class_="hint",
        ),
        class_="boxes",
    )
