# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages: elements, sections, tables, sentences and embedded figures.

page("Evaluation", section("Scores", table("BLEU and chrF", ["measure", "value"], rows)))

A page is one file that needs no network. It follows the reader's light or dark setting and prints.
Everything put into markup is escaped, unless it is `Html`. Equal arguments give equal bytes.
"""

import base64
import functools
import hashlib
import html
import importlib.resources
import itertools
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that an HTML file cannot contain."""

_VOID_TAGS = ("br", "hr", "img", "input", "link", "meta")

_POLICY = ("default-src 'none'", "style-src 'unsafe-inline'", "img-src data:")
"""The Content-Security-Policy of every page: the browser refuses any request to the network."""


class Html(str):
    """Markup, which is not escaped again."""


def escape(text: object) -> Html:
    """Escape text for use in markup; `Html` is returned unchanged."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_FORBIDDEN.sub("\ufffd", str(text))))


def element(tag: str, *content: object, **attributes: object) -> Html:
    """``<tag attribute="...">content</tag>``, escaped.

    Args:
      *content: Text, numbers or `Html`, concatenated.
      **attributes: A trailing underscore is dropped (``class_``), other underscores become
        hyphens. Attributes that are None are left out.
    """
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    written = "".join(
        f' {names[name]}="{escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID_TAGS:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{''.join(map(escape, content))}</{tag}>")


def page(
    title: str, *sections: Html, style: str = "", script: str = "", connects: bool = False
) -> str:
    """A complete HTML file in English.

    Args:
      title: Title and first heading of the page.
      style: Style sheet in addition to ``page.css``.
      script: Script to run after the content has loaded. The page's Content-Security-Policy names
        its digest, so the browser runs no other script.
      connects: Whether the script may send requests to the server that the page is from.
    """
    policy = list(_POLICY)
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy.append(f"script-src 'sha256-{digest}'")
    if connects:
        policy.append("connect-src 'self'")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content="; ".join(policy)),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Html(file_of(__package__, "page.css") + style)),
    )
    scripts = [element("script", Html(script))] if script else []
    body = element("body", element("main", element("h1", title), *sections), *scripts)
    return "<!DOCTYPE html>\n" + element("html", head, "\n", body, lang="en") + "\n"


@functools.cache
def file_of(package: str, name: str) -> str:
    """The text of a style sheet or a script that is a file of a package."""
    return importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8")


def json_block(name: str, value: object) -> Html:
    """JSON data that the page's script reads by the element id `name`."""
    # No "<" means that no string can end the script element.
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", r"\u003c")
    return element("script", Html(text), type="application/json", id=name)


def section(heading: str, *content: object) -> Html:
    """A part of a page under a heading, which a link can name by `anchor`."""
    return element("section", element("h2", heading), *content, Html("\n"), id=anchor(heading))


def folded(heading: str, about: str, *content: object) -> Html:
    """A part of a page that is closed at first: only its heading and one line about it are shown.

    A link to it, the keyboard and a search in the page open it; paper shows all of it.
    """
    summary = element("summary", element("h2", heading), element("span", about))
    # The link names an element inside, because browsers open what is around the target of a link.
    inside = element("section", *content, id=anchor(heading))
    return element("details", summary, inside, Html("\n"), class_="part")


def anchor(heading: str) -> str:
    """The id of the part of a page with this heading."""
    return re.sub(r"[^\w]+", "-", heading.lower()).strip("-") or "part"


def contents(headings: Iterable[str]) -> Html:
    """A table of contents with a link to each part of a page."""
    items = (
        element("li", element("a", heading, href=f"#{anchor(heading)}")) for heading in headings
    )
    return element("nav", element("ol", *items), class_="contents", aria_label="Contents")


def paragraph(*content: object) -> Html:
    """A paragraph of text."""
    return element("p", *content)


def details(summary: str, *content: object) -> Html:
    """Content that the reader can open and close."""
    return element("details", element("summary", summary), *content)


def image(data: bytes, description: str, *, media_type: str = "image/svg+xml") -> Html:
    """An embedded image with its text alternative; wide images scroll on small screens."""
    address = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
    return element("figure", element("img", src=address, alt=description), class_="wide")


def sentence(*parts: str) -> Html:
    """A sentence of a corpus, isolated from the direction of the text around it.

    Control characters and line separators are shown as code points. Parts that are `Html`, such as
    those of `mark`, are inserted as they are.
    """
    if not any(part.strip() for part in parts):
        return element("em", "(only spaces)" if any(parts) else "(empty)")
    return element("bdi", *map(_visible, parts), dir="auto")


def mark(text: str) -> Html:
    """A part of a sentence that is highlighted."""
    return element("mark", _visible(text))


def _visible(text: str) -> Html:
    """Escaped text with code points for invisible characters."""
    if isinstance(text, Html):
        return text
    characters = (
        element("span", f"U+{ord(each):04X}", class_="code") if is_invisible(each) else escape(each)
        for each in text
    )
    return Html("".join(characters))


def is_invisible(character: str) -> bool:
    """Whether a character is a control, a line separator or an unpaired surrogate."""
    return unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs")


def sentence_versions(heading: str, versions: Sequence[tuple[str, str]]) -> Html:
    """Several versions of one sentence, as (name, text or `sentence`), under a heading."""
    items = (
        (element("dt", name), element("dd", text if isinstance(text, Html) else sentence(text)))
        for name, text in versions
    )
    return element("article", element("h3", heading), element("dl", *itertools.chain(*items)))


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numeric: Collection[int] = (),
    chosen: int | None = None,
    class_: str | None = None,
) -> Html:
    """A table; the first cell of each row is the row's heading.

    Args:
      rows: Contents of cells, or complete cells as `shaded` makes them.
      numeric: Indices of the columns that are aligned on the right.
      chosen: Index of a row that is framed.
    """

    def cell(tag: str, column: int, content: object, scope: str | None = None) -> Html:
        if isinstance(content, Html) and content.startswith("<td"):
            return content
        return element(tag, content, scope=scope, class_="number" if column in numeric else None)

    head = element("tr", *(cell("th", column, name, "col") for column, name in enumerate(columns)))
    body = []
    for index, row in enumerate(rows):
        assert len(row) == len(columns), (caption, row)
        first, *others = row
        cells = [cell("td", column, content) for column, content in enumerate(others, start=1)]
        frame = "chosen" if index == chosen else None
        body.append(element("tr", cell("th", 0, first, "row"), *cells, class_=frame))
    parts = (element("caption", caption), element("thead", head), element("tbody", *body))
    # The tab stop lets the keyboard scroll a table that is wider than the screen.
    return element("div", element("table", *parts, class_=class_), class_="wide", tabindex=0)


def number_table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[tuple[object, Iterable[float]]],
) -> Html:
    """A table of numbers; each row is a heading and its numbers."""
    cells = [[heading, *(f"{number:.3f}" for number in numbers)] for heading, numbers in rows]
    return table(caption, columns, cells, numeric=range(1, len(columns)))


STRONG = 0.6
"""Share of the scale from which digits in a cell are in the color of the paper."""


def shaded(value: float, limit: float = 1.0, *, text: str | None = None, digits: int = 2) -> Html:
    """A table cell whose color is in proportion to its value: blue above zero, orange below.

    Args:
      limit: The absolute value that has the full color; larger ones have it too.
      text: Shown instead of the number.
      digits: Digits of the number after the point.
    """
    share = min(abs(value) / limit, 1.0) if limit else 0.0
    classes = ["number", "low" if value < 0 else "high", *(["strong"] if share > STRONG else [])]
    # Zero has no sign.
    shown = f"{round(value, digits) + 0.0:.{digits}f}" if text is None else text
    return element("td", shown, class_=" ".join(classes), style=f"--value:{share:.3f}")


def shaded_table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[tuple[object, Sequence[Html]]],
    *,
    chosen: int | None = None,
) -> Html:
    """A table of `shaded` cells; each row is a heading and its cells, the chosen one framed."""
    cells = [(heading, *shades) for heading, shades in rows]
    return table(caption, columns, cells, chosen=chosen, class_="shaded")


def scale(name: str, limit: float = 1.0, *, signed: bool = False, digits: int = 0) -> Html:
    """The legend of a scale: its colors between its ends, and its name."""
    steps = (0.0, 0.25, 0.5, 0.75, 1.0)
    cells = [element("i", class_="high", style=f"--value:{share}") for share in steps]
    low = f"{0:.{digits}f}"
    if signed:
        below = [element("i", class_="low", style=f"--value:{share}") for share in steps[:0:-1]]
        cells, low = below + cells, f"−{limit:.{digits}f}"
    return element(
        "span", name, " ", low, element("span", *cells), f"{limit:.{digits}f}", class_="scale"
    )
