# SPDX-License-Identifier: Apache-2.0
"""The page of the service: two boxes, alternatives, and attention over the source.

It is one file without requests to other hosts, made from the elements and the heat map of the
inspection views.
"""

from experiments.serving.languages import UNKNOWN, Languages
from transformer.inspection import html
from transformer.inspection.html import Html, element, escape

MOST_ALTERNATIVES = 4
"""Largest number of alternatives that the page requests."""
_VIEWS = "transformer.inspection.views"
_HEADINGS = dict(zip(UNKNOWN, ("Text", "Translation"), strict=True))
"""Headings where the languages are unknown."""


def build(title: str, languages: Languages, *, alternatives: int, attention: bool) -> str:
    """Build the page as HTML.

    Args:
      title: title of the page.
      languages: languages of the model, which head the boxes.
      alternatives: number of alternatives that the page requests.
      attention: whether the service answers ``/attention``.
    """
    targets = [{"code": code, "name": languages.name(code)} for code in languages.targets]
    settings = {"alternatives": alternatives, "attention": attention, "targets": targets}
    files = [(_VIEWS, "elements.js"), (_VIEWS, "heat_map.js")]
    files.append((__package__, "translation_page.js"))
    return html.page(
        title,
        _boxes(languages),
        element("p", id="status", role="status"),
        element("div", id="token"),
        element("div", id="details"),
        html.json_block("settings", settings),
        style=html.file_of(__package__, "translation_page.css"),
        script="\n".join(html.file_of(*file) for file in files),
        connects=True,
    )


def _boxes(languages: Languages) -> Html:
    """The box for the text, with a layer for marks behind it, and the box of the translation."""
    source, target = languages.source, languages.targets[0]
    codes = ["" if code in UNKNOWN else escape(code) for code in (source, target)]
    names = [escape(_HEADINGS.get(code, languages.name(code))) for code in (source, target)]
    target_code = "" if languages.marked else codes[1]
    return Html(f"""
<div class="boxes">
  <section>
    <div class="head">
      <label for="source">{names[0]}</label> <button id="clear" type="button">Clear</button>
    </div>
    <div class="editor">
      <div id="marks" aria-hidden="true"></div>
      <textarea id="source" lang="{codes[0]}" dir="auto" autofocus autocomplete="off"
        spellcheck="false" placeholder="Type or paste text, one sentence a line"
        aria-describedby="keys"></textarea>
    </div>
  </section>
  <section>
    <div class="head">
      <h2 id="target-name">{names[1]}</h2> <span id="choice"></span>
      <button id="copy" type="button">Copy</button>
    </div>
    <div id="target" lang="{target_code}" role="group" aria-labelledby="target-name"
      aria-live="polite"></div>
  </section>
  <p id="keys" class="hint">
    Tab reaches the translation; arrow keys choose a word, Escape returns to the text.
  </p>
</div>
""")
