# SPDX-License-Identifier: Apache-2.0
"""What every view is: data, a picture for where no script runs, and a page that shows itself.

A page is self-contained. Its script is the text of this package's ``.js`` files that its views
need; the weights of one sentence pair are on it once, however many views show them.
"""

import dataclasses
import functools
import importlib.resources
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.inspection import html, squeeze
from transformer.inspection.html import Html, element, paragraph
from transformer.inspection.views.attention_data import Family

HEAD_COLOURS = (
    *("#0b7fc4", "#d0650f", "#2c9150", "#b455b4"),
    *("#92790a", "#cf4466", "#5f73d8", "#159393"),
)
"""The ninth head has the first one's colour again. Each stands out from white and from black."""

FILES = {
    "heads": ("share.js", "weights.js", "heads.js"),
    "grid": ("share.js", "weights.js", "map.js", "grid.js", "grid.css"),
    "steps": ("steps.js",),
    "replay": ("share.js", "replay.js", "maps.css"),
    "numbers": ("map.js", "numbers.js"),
    "compare": ("share.js", "weights.js", "map.js", "compare.js", "maps.css"),
}
"""The files of each kind of view, beside those that every page has."""

SANDBOX = "allow-scripts allow-downloads"
"""What a page may do within a notebook: run its script and, at a click, save a picture."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class View:
    """One interactive view; it shows itself in a notebook, and `save` writes its page."""

    kind: str
    title: str
    told: str
    """What the picture shows, in a sentence."""
    picture: Html
    """SVG, of what the view shows at first."""
    options: Mapping[str, Any]
    families: tuple[tuple[Family, ...], ...] = ()
    """The sentence pairs whose attention it shows."""
    height: int = 700
    """Of its frame in a notebook, in pixels."""

    def __repr__(self) -> str:
        """Its name; the numbers of a page would fill one."""
        return f"<{type(self).__name__}: {self.title}>"

    @property
    def html(self) -> str:
        """A whole page with this view alone."""
        return page(self.title, [self])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page."""
        pathlib.Path(path).write_text(self.html, encoding="utf-8", newline="\n")

    def _repr_html_(self) -> str:
        """The page in a frame of its own, in which it can neither read nor change the notebook.

        Where frames are taken out, as on sites that show notebooks without running them, the
        picture stays; where the frame is there, the picture is hidden.
        """
        hide = element("style", Html(".transformer-view:has(+iframe[srcdoc]){display:none}"))
        frame = element(
            "iframe",
            srcdoc=self.html,
            sandbox=SANDBOX,
            title=self.title,
            style=f"width:100%;height:{self.height}px;border:0",
        )
        return hide + _still(self, class_="transformer-view") + frame


def page(title: str, parts: Sequence[View | Html]) -> str:
    """One self-contained page.

    Args:
      title: its heading.
      parts: views and sections, in the order in which they are shown.
    """
    views = [part for part in parts if isinstance(part, View)]
    pairs = list(dict.fromkeys(pair for view in views for pair in view.families))
    data = {
        "colours": HEAD_COLOURS,
        "pairs": [[family.packed() for family in pair] for pair in pairs],
        "views": [
            {**view.options, "kind": view.kind, "pairs": [pairs.index(p) for p in view.families]}
            for view in views
        ],
    }
    sections = [
        element(
            "section",
            *([element("h2", part.title)] if len(parts) > 1 else []),
            _still(part),
            class_="view",
            aria_label=part.title,
        )
        if isinstance(part, View)
        else part
        for part in parts
    ]
    charts = [html.CHART_STYLE] if len(views) < len(parts) else []
    own = dict.fromkeys(name for view in views for name in FILES[view.kind])
    names = ["views.css", "common.js", *own, "start.js"]
    return html.page(
        title,
        *sections,
        html.json_block("data", data),
        style="".join([*charts, *(_file(name) for name in names if name.endswith(".css"))]),
        script="\n".join(_file(name) for name in names if name.endswith(".js")),
    )


def _still(view: View, class_: str | None = None) -> Html:
    """The picture and what it shows, for where no script runs."""
    return element("div", view.picture, paragraph(view.told), class_=class_)


@functools.cache
def _file(name: str) -> str:
    """A script or a style of this package as a page has it."""
    text = importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return squeeze.script(text) if name.endswith(".js") else squeeze.style(text)
