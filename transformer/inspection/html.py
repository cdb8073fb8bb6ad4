# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages: the page itself, sections, tables, sentences, and line charts as SVG.

page("Learning", section("Loss", line_chart("Loss", [Series("train", steps, losses)],
                                            x_label="step", y_label="nats a token")))

A page is one file: no network, no library, no font of its own, and no script but the one it is
made with, if any. It follows the reader's light or dark setting and prints. Whatever is put into
markup is escaped, unless it is `Html`. The same arguments give the same bytes.
"""

import base64
import dataclasses
import hashlib
import html
import itertools
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence

from transformer.inspection import squeeze

_NOT_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that an HTML file cannot hold."""


Number = int | float
Point = tuple[Number, Number]


class Html(str):
    """Text that is markup already and is not escaped again."""


def escape(text: object) -> Html:
    """The text as markup that shows it; `Html` stays as it is."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_NOT_HTML.sub("\ufffd", str(text))))


def element(tag: str, *content: object, **attributes: object) -> Html:
    """``<tag attribute="...">content</tag>``, escaped.

    Args:
      tag: the element's name.
      *content: text, numbers or `Html`, one after the other.
      **attributes: an underscore at the end is dropped (``class_``), others become hyphens; those
        that are None are left out.
    """
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    given = "".join(f' {name}="{escape(v)}"' for name, v in named.items() if v is not None)
    if tag in _WITHOUT_CONTENT:
        return Html(f"<{tag}{given}>")
    return Html(f"<{tag}{given}>{''.join(map(escape, content))}</{tag}>")


_WITHOUT_CONTENT = ("br", "hr", "link", "meta")


def page(title: str, *sections: Html, style: str | None = None, script: str = "") -> str:
    """A whole file, in English; the title is its heading too.

    Args:
      title: of the page.
      *sections: its content.
      style: what the page's own style leaves out; `REPORT_STYLE` unless given.
      script: runs when the content is there. The browser is told its digest and runs nothing else.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # What the page promises, the browser holds it to.
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content="; ".join([*_POLICY, *([f"script-src {_digest(script)}"] if script else [])]),
        ),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Html(squeeze.style(_STYLE + (REPORT_STYLE if style is None else style)))),
    )
    scripts = [element("script", Html(script))] if script else []
    body = element("body", element("main", element("h1", title), *sections), *scripts)
    return "<!DOCTYPE html>\n" + element("html", head, "\n", body, lang="en") + "\n"


_POLICY = ("default-src 'none'", "style-src 'unsafe-inline'", "img-src data:")


def _digest(script: str) -> str:
    """How a Content-Security-Policy names a script by its content."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def json_block(name: str, value: object) -> Html:
    """A value for a page's script to read, by the id `name`; nothing in it can be markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", r"\u003c")
    return element("script", Html(text), type="application/json", id=name)


def section(heading: str, *content: object) -> Html:
    """A part of a page under a heading."""
    return element("section", element("h2", heading), *content, Html("\n"))


def paragraph(*content: object) -> Html:
    """A paragraph of text."""
    return element("p", *content)


def sentence(text: str) -> Html:
    """A sentence of a corpus, in the direction of its own script, apart from the text around it.

    Control characters and line separators, which nobody would see, are shown by their code points.
    """
    if not text.strip():
        return element("em", "(empty)" if not text else "(only spaces)")
    pieces = (_shown(character) for character in text)
    return element("bdi", *pieces, dir="auto")


def _shown(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs"):
        return element("span", f"U+{ord(character):04X}", class_="code")
    return character


def sentences(heading: str, lines: Sequence[tuple[str, str]]) -> Html:
    """Several versions of one sentence below each other: (what it is, the text)."""
    pairs = ((element("dt", name), element("dd", sentence(text))) for name, text in lines)
    return element("article", element("h3", heading), element("dl", *itertools.chain(*pairs)))


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numeric: Collection[int] = (),
) -> Html:
    """A table; the first cell of a row is its heading.

    Args:
      caption: what the table shows.
      columns: their headings.
      rows: as many cells each.
      numeric: the columns, from 0, that are aligned on the right.
    """

    def cell(tag: str, column: int, content: object, scope: str | None = None) -> Html:
        kind = "number" if column in numeric else None
        return element(tag, content, scope=scope, class_=kind)

    head = element("tr", *(cell("th", place, name, "col") for place, name in enumerate(columns)))
    body = []
    for row in rows:
        assert len(row) == len(columns), (caption, row)
        first, *others = row
        cells = [cell("td", place, content) for place, content in enumerate(others, start=1)]
        body.append(element("tr", cell("th", 0, first, "row"), *cells))
    parts = (element("caption", caption), element("thead", head), element("tbody", *body))
    # Wider than a small screen, it scrolls by itself, by keyboard too.
    return element("div", element("table", *parts), class_="wide", tabindex=0)


@dataclasses.dataclass(frozen=True)
class Series:
    """A named line of a chart; points that are not finite leave a gap."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]


WIDTH, HEIGHT = 640, 270
LEFT, TOP, RIGHT, BOTTOM = 70, 12, 620, 228
"""The chart's size and the edges of its plot, in the units of its view box."""

_DASHES = (None, "7 4", "2 3", "9 3 2 3")
_MARKS = (
    "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0z",
    "M-3,-3h6v6h-6z",
    "M0,-4l4,7h-8z",
    "M0,-4l4,4l-4,4l-4,-4z",
)
_MOST_MARKED = 30
"""Points of a series that each have a mark; of longer ones the line is enough."""


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    include: Sequence[Number] = (),
) -> Html:
    """Lines over common axes, as SVG; told apart by dashes and marks as well as by colour.

    Args:
      title: what a screen reader calls it; shown above.
      series: the lines; a point that is not finite leaves a gap.
      x_label: what the horizontal axis shows, and in which unit.
      y_label: what the vertical axis shows.
      include: values that the vertical axis reaches, whatever the lines do.
    """
    runs = [list(_runs(line)) for line in series]
    points = [point for of_series in runs for run in of_series for point in run]
    if not points:
        return element("figure", element("figcaption", title), paragraph("There are no values."))
    across = _Axis.over([x for x, _ in points], LEFT, RIGHT)
    across = dataclasses.replace(across, whole=all(float(x).is_integer() for x, _ in points))
    up = _Axis.over([*(y for _, y in points), *include], BOTTOM, TOP).rounded()
    drawing = [
        element("title", title),
        element("desc", "; ".join(map(_told, series, runs))),
        *_axes(across, up),
        element("text", x_label, x=(LEFT + RIGHT) // 2, y=HEIGHT - 8, text_anchor="middle"),
    ]
    for number, of_series in enumerate(runs):
        marked = sum(map(len, of_series)) <= _MOST_MARKED
        for run in of_series:
            placed = [(across.place(x), up.place(y)) for x, y in run]
            drawing += _line(placed, number, marked or len(run) == 1)
    svg = element("svg", *drawing, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    caption = element("figcaption", title, element("span", y_label, class_="unit"))
    keys = [element("li", _key(place), line.name) for place, line in enumerate(series)]
    legend = [element("ul", *keys, class_="legend")] if len(series) > 1 else []
    return element("figure", caption, *legend, svg, Html("\n"))


def _runs(line: Series) -> Iterator[list[Point]]:
    """The unbroken stretches of a line."""
    points = zip(map(float, line.x), map(float, line.y), strict=True)
    for drawn, run in itertools.groupby(points, key=lambda point: all(map(math.isfinite, point))):
        if drawn:
            yield list(run)


def _told(line: Series, runs: list[list[Point]]) -> str:
    """The line in words."""
    points = [point for run in runs for point in run]
    if not points:
        return f"{line.name}: no values"
    (first_x, first), (last_x, last) = points[0], points[-1]
    values = [y for _, y in points]
    return (
        f"{line.name}: {first:.4g} at {first_x:g}, {last:.4g} at {last_x:g}, "
        f"lowest {min(values):.4g}, highest {max(values):.4g}"
    )


@dataclasses.dataclass(frozen=True)
class _Axis:
    """From values to places: `low` lies at `start`, `high` at `end`."""

    low: Number
    high: Number
    start: Number
    end: Number
    whole: bool = False
    """Ticks at whole numbers only."""

    @classmethod
    def over(cls, values: Sequence[Number], start: Number, end: Number) -> "_Axis":
        """The axis that begins and ends with the values; one value alone lies in its middle."""
        low, high = min(values), max(values)
        if high / 6 - low / 6 == 0:
            around = abs(low) / 10 or 1.0
            low, high = low - around, high + around
        return cls(low, high, start, end)

    def rounded(self) -> "_Axis":
        """The axis made longer, to the next ticks."""
        step = _step(self.low, self.high)
        low, high = math.floor(self.low / step + 1e-9), math.ceil(self.high / step - 1e-9)
        return dataclasses.replace(self, low=low * step, high=high * step)

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        step = max(_step(self.low, self.high), float(self.whole))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def place(self, value: float) -> float:
        """Where a value lies, in the units of the view box."""
        # Halves, so that no difference overflows.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + share * (self.end - self.start)


def _step(low: Number, high: Number) -> float:
    """1, 2 or 5 times a power of 10, such that about 2 to 7 multiples lie between the two."""
    closest = high / 6 - low / 6
    power = 10.0 ** math.floor(math.log10(closest))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= closest)


def _axes(across: _Axis, up: _Axis) -> Iterator[Html]:
    yield element("path", d=f"M{LEFT},{TOP}V{BOTTOM}H{RIGHT}", class_="axis", **_STROKE)
    for value in up.ticks():
        y = _rounded(up.place(value))
        yield element("path", d=f"M{LEFT},{y}H{RIGHT}", class_="grid", **_STROKE)
        yield element("text", _label(value), x=LEFT - 7, y=y, dy="0.32em", text_anchor="end")
    for value in across.ticks():
        x = _rounded(across.place(value))
        yield element("path", d=f"M{x},{BOTTOM}v5", class_="axis", **_STROKE)
        yield element("text", _label(value), x=x, y=BOTTOM + 19, text_anchor="middle")


_STROKE = {"fill": "none", "stroke": "currentColor"}
"""Colours without the page's style, for a chart that is shown elsewhere."""


def _line(points: list[Point], number: int, marked: bool) -> Iterator[Html]:
    """One unbroken stretch of a series, and the marks of its points."""
    places = [f"{_rounded(x)},{_rounded(y)}" for x, y in _visible(points)]
    # The fifth line has the dashes of the first and another colour, and so on: 16 are different.
    colour = f"s{(number + number // 4) % 4}"
    style = {"stroke_dasharray": _DASHES[number % 4], **_STROKE}
    yield element("path", d="M" + "L".join(places), class_=colour, **style)
    if marked:
        for place in places:
            mark = {"d": _MARKS[number % 4], "transform": f"translate({place})"}
            yield element("path", **mark, class_=f"mark {colour}")


def _visible(points: list[Point]) -> Iterator[Point]:
    """The points without those that change nothing: of the points in one column of the picture,
    the first, the lowest, the highest and the last draw the same line as all of them.
    """
    for _, column in itertools.groupby(points, key=lambda point: round(point[0])):
        column = list(column)
        order = range(len(column))
        ends = {0, len(column) - 1}
        extremes = {pick(order, key=lambda place: column[place][1]) for pick in (min, max)}
        yield from (column[place] for place in sorted(ends | extremes))


def _key(number: int) -> Html:
    """The piece of line that stands beside a series' name."""
    drawing = [
        *_line([(2.0, 7.0), (32.0, 7.0)], number, marked=False),
        *_line([(17.0, 7.0)], number, marked=True),
    ]
    return element("svg", *drawing, viewBox="0 0 34 14", aria_hidden="true")


def _rounded(place: float) -> str:
    return f"{place:.1f}".removesuffix(".0")


def _label(value: float) -> str:
    text = f"{value:.6g}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 and "." not in text else text


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #5c5c5c; --line: #d4d4d4; --paper: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a9a9a9; --line: #474747;
  --paper: #161616 } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
main { max-width: 54rem; margin: 0 auto; padding: 1rem 1rem 3rem }
h1 { font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line) }
.wide { overflow-x: auto; margin: .8rem 0 }
table { border-collapse: collapse }
caption { text-align: left; color: var(--soft) }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0;
  border-top: 1px solid var(--line); font-weight: normal }
thead th { font-weight: 600; border-top: 0; vertical-align: bottom }
.number { text-align: right; font-variant-numeric: tabular-nums }
td.number { white-space: nowrap }
svg text { fill: currentColor; font-size: 12px }
"""
"""Of every page."""

CHART_STYLE = """
:root { --s0: #0b61a4; --s1: #b3430a; --s2: #2c7a2c; --s3: #7a3b9a }
@media (prefers-color-scheme: dark) { :root { --s0: #6cb4f0; --s1: #f0965a; --s2: #7fcf7f;
  --s3: #cc9be6 } }
figure { margin: 1.2rem 0; break-inside: avoid; overflow-x: auto }
figcaption { font-weight: 600 }
.unit { font-weight: normal; color: var(--soft); margin-left: .6rem }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.3rem; list-style: none; margin: 0;
  padding: 0 }
.legend svg { width: 34px; height: 14px; margin-right: .4rem; vertical-align: -2px }
figure > svg { width: 100%; min-width: 30rem; height: auto; color: var(--soft) }
.grid { stroke: var(--line) }
path.s0 { stroke: var(--s0) } path.s1 { stroke: var(--s1) }
path.s2 { stroke: var(--s2) } path.s3 { stroke: var(--s3) }
.s0, .s1, .s2, .s3 { stroke-width: 1.8 }
.mark.s0 { fill: var(--s0) } .mark.s1 { fill: var(--s1) }
.mark.s2 { fill: var(--s2) } .mark.s3 { fill: var(--s3) }
"""
"""Of pages with charts."""

REPORT_STYLE = (
    CHART_STYLE
    + """
h3 { font-size: 1rem; margin: 1.1rem 0 .2rem }
code, .code { font: .85em ui-monospace, monospace; overflow-wrap: anywhere }
.code { border: 1px solid var(--line); border-radius: 3px; padding: 0 .2em; margin: 0 .1em }
td:not(.number) { min-width: 11rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .9rem; margin: 0 }
dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere }
em { color: var(--soft) }
article { break-inside: avoid }
@media print { main { max-width: none; padding: 0 } }
"""
)
"""Of pages with charts and sentences."""
