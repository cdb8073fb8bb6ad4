# SPDX-License-Identifier: Apache-2.0
"""The base of all views: data for a script, static content for readers without scripts, a page.

A page contains the ``.js`` files of this package as they are, and its data as JSON.
The weights of a sentence pair are in it once, however many views show them.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.inspection import figures, html
from transformer.inspection.figures import DescribedFigure
from transformer.inspection.figures.style import HEAD_COLORS
from transformer.inspection.html import Html, element, paragraph
from transformer.inspection.views.attention_kinds import Label, LabeledAttention

SCRIPTS = (
    *("elements.js", "attention_data.js", "heat_map.js", "head_view.js", "head_overview.js"),
    *("attention_steps.js", "search_replay.js", "sentence_comparison.js", "value_map.js"),
    "start.js",
)

SANDBOX = "allow-scripts allow-downloads"
"""Permissions of a page inside a notebook: run its script and save a picture on a click."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class View:
    """One interactive view: displayed by a notebook, or written to a page with `save`."""

    script: str
    """The function in this package's scripts that draws it."""
    title: str
    description: str
    """One sentence about the static content."""
    static: DescribedFigure | Html
    """Shown where no script runs, with the initial options."""
    options: Mapping[str, Any]
    """Arguments of the script, converted to JSON."""
    attention: tuple[tuple[LabeledAttention, ...], ...] = ()
    """The sentence pairs whose attention it shows."""
    height: int = 700
    """Height of its frame in a notebook, in pixels."""
    about: str = ""
    """One line about it in a page whose views are folded; set by `introduced`."""
    note: Html = Html("")
    """Shown above it in a page; set by `introduced`."""

    def introduced(self, about: str, *note: Html) -> "View":
        """The same view for a page: one line about it, and paragraphs above it."""
        return dataclasses.replace(self, about=about, note=Html("".join(note)))

    def __repr__(self) -> str:
        """The title alone; the data would fill a page."""
        return f"<{type(self).__name__}: {self.title}>"

    @property
    def html(self) -> str:
        """A complete page with this view alone."""
        return page(self.title, [self])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        pathlib.Path(path).write_text(self.html, encoding="utf-8", newline="\n")

    @functools.cached_property
    def static_html(self) -> Html:
        """The static content as it is in a page and in a notebook."""
        content = self.static
        if not isinstance(content, Html):
            # A notebook's PNG: smaller than SVG, and shown by more of the sites without scripts.
            content = html.image(content.png(), content.description, media_type="image/png")
        return Html(content + paragraph(self.description))

    def _repr_html_(self) -> str:
        """The page in a sandboxed frame, which can neither read nor change the notebook.

        Sites that show notebooks without running them remove frames. They show the static content,
        which is hidden where the frame is present.
        """
        hide = element("style", Html(".transformer-view:has(+iframe[srcdoc]){display:none}"))
        frame = element(
            "iframe",
            srcdoc=self.html,
            sandbox=SANDBOX,
            title=self.title,
            style=f"width:100%;height:{self.height}px;border:0",
        )
        return hide + element("div", self.static_html, class_="transformer-view") + frame


def page(title: str, parts: Sequence[View | Html], *, folded: bool = False) -> str:
    """A self-contained page of views and sections, in the given order.

    Args:
      folded: Whether the views are closed until the reader opens them.
    """
    views = [part for part in parts if isinstance(part, View)]
    pairs = list(dict.fromkeys(pair for view in views for pair in view.attention))
    data = {
        "headColors": HEAD_COLORS,
        "pairs": [[attention.to_json() for attention in pair] for pair in pairs],
        "views": [
            {
                "script": view.script,
                "pairs": [pairs.index(pair) for pair in view.attention],
                "options": view.options,
            }
            for view in views
        ],
    }
    sections = [
        _view_section(part, heading=len(parts) > 1, folded=folded)
        if isinstance(part, View)
        else part
        for part in parts
    ]
    return html.page(
        title,
        *sections,
        html.json_block("data", data),
        script="\n".join(html.file_of(__package__, name) for name in SCRIPTS),
    )


def _view_section(view: View, *, heading: bool, folded: bool) -> Html:
    """The static content of a view, which the script replaces."""
    static = element("div", view.static_html)
    if folded:
        content = element("section", static, class_="view", aria_label=view.title)
        return html.folded(view.title, view.about, view.note, content)
    headings = [element("h2", view.title)] if heading else []
    return element(
        "section",
        *headings,
        view.note,
        static,
        class_="view",
        aria_label=view.title,
        id=html.anchor(view.title),
    )


def figure_html(figure: DescribedFigure) -> Html:
    """A figure embedded in a page, where nothing moves."""
    svg = figures.to_svg(figure, text_as_paths=True)
    return html.image(svg.encode(), figure.description)


def figure_labels(labels: Sequence[Label]) -> list[str]:
    """Labels in the form that `figures` takes."""
    if len(labels[0]) == 1:
        return [token for (token,) in labels]
    return figures.read_predict(*zip(*labels, strict=True))
