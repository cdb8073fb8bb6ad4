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
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.inspection import html
from transformer.inspection.html import Html, element, paragraph
from transformer.inspection.views.attention import Family

HEAD_COLOURS = (
    *("#0b7fc4", "#d0650f", "#2c9150", "#b455b4"),
    *("#92790a", "#cf4466", "#5f73d8", "#159393"),
)
"""The ninth head has the first one's colour again. Each stands out from white and from black."""

SCRIPTS = {
    "heads": ("weights", "heads"),
    "grid": ("weights", "map", "grid"),
    "steps": ("steps",),
    "replay": ("replay",),
    "compare": ("weights", "map", "compare"),
}
"""The files of each view's script, after ``common`` and before ``start``."""

SANDBOX = "allow-scripts allow-downloads"
"""What a page may do within a notebook: run its script and, at a click, save a picture."""


@dataclasses.dataclass(frozen=True, eq=False)
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


def page(title: str, views: Sequence[View], before: Sequence[Html] = ()) -> str:
    """One self-contained page with all these views.

    Args:
      title: its heading.
      views: in the order in which they are shown.
      before: sections that come before them.
    """
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
            *([element("h2", view.title)] if len(views) > 1 or before else []),
            _still(view, class_="still"),
            class_="view",
            aria_label=view.title,
        )
        for view in views
    ]
    names = dict.fromkeys(name for view in views for name in SCRIPTS[view.kind])
    return html.page(
        title,
        *before,
        *sections,
        html.json_block("data", data),
        style=_file("views.css"),
        script="\n".join(map(_file, ["common.js", *(f"{name}.js" for name in names), "start.js"])),
    )


def _still(view: View, class_: str) -> Html:
    """The picture and what it shows, for where no script runs."""
    return element("div", view.picture, paragraph(view.told), class_=class_)


@functools.cache
def _file(name: str) -> str:
    """A file of this package without what no browser needs: comments, indentation, spaces."""
    text = importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    kept = "\n".join(line for line in lines if line and not line.startswith(("//", "/*")))
    # What stands between quotes stays as it is.
    pieces = re.split(r"""("[^"\n]*"|`[^`]*`)""", kept)
    pieces[::2] = [re.sub(r" ?([=*/<>?:;,&|{}]) ?", r"\1", code) for code in pieces[::2]]
    return re.sub(r"(?<=[,;{(])\n", "", "".join(pieces))
