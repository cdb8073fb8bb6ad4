# SPDX-License-Identifier: Apache-2.0
"""Word vectors in two dimensions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.studies.embeddings.knowledge import KINDS, Knowledge, Pair
from experiments.studies.embeddings.word_vectors import Side, WordVectors, principal_components
from transformer.inspection import figures
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.typesetting import text_width

MARKERS = {"m": "^", "f": "o", "n": "s", "": "x"}
GENDER_NAMES = {"m": "masculine", "f": "feminine", "n": "neuter", "": "plural"}
COLORS = dict(zip(KINDS, (*style.LINE_COLORS, "#8c564b", "#7f7f7f"), strict=False))
PANEL = 5.4
"""Width and height of a panel in inches."""
MOST_FREQUENT = 60
"""Words in the picture of a corpus whose words have no kinds."""


@style.styled
def draw(
    spaces: Mapping[str, WordVectors], known: Knowledge, side: Side
) -> figures.DescribedFigure:
    """Draw two spaces: nouns colored by kind, each joined with its plural."""
    kinds = known.labels.get("kind", {})
    genders = next((each for name, each in known.labels.items() if name.startswith("gender")), {})
    words = next(iter(spaces.values())).words
    chosen = [word for word in words if word in kinds] or list(words[:MOST_FREQUENT])
    number = known.pairs.get("number", ())
    figure = parts.sheet(
        2 * PANEL + 0.5 + (1.2 if kinds else 0.0),
        PANEL + 0.3,
        f"Word vectors of the {side} in two dimensions",
        "Principal components of the words shown. Words that would overlap others have no name. "
        + ("Lines join singular and plural." if number else ""),
    )
    shares = []
    for index, (name, space) in enumerate(spaces.items()):
        points, share = principal_components(
            space.vectors[[space.words.index(word) for word in chosen]]
        )
        shares.append(f"{name} ({share:.0%} of the variance)")
        left = index * (PANEL + 0.4)
        heading = {"ha": "left", "fontsize": style.HEADING}
        parts.put_text(figure.content, left, 0.05, shares[-1], **heading)
        ax = parts.axes(figure, left, 0.25, PANEL, PANEL, name)
        ax.set_xticks([])
        ax.set_yticks([])
        named = dict(zip(chosen, points, strict=True))
        _draw_plurals(ax, named, number)
        for word, (x, y) in named.items():
            marker = MARKERS[genders.get(word, "")] if genders else "o"
            color = COLORS.get(kinds.get(word), style.SOFT)
            ax.plot([x], [y], marker, color=color, markersize=3.8, zorder=2)
        _write_names(ax, named, kinds)
    legend = [(kind, "o", COLORS[kind]) for kind in KINDS if kind in kinds.values()]
    if genders:
        shown = [each for each in MARKERS if each in genders.values()]
        legend += [(GENDER_NAMES[each], MARKERS[each], style.SOFT) for each in [*shown, ""]]
    for row, (text, marker, color) in enumerate(legend):
        x, y = 2 * PANEL + 0.65, 0.45 + 0.22 * row
        figure.content.plot([x], [y], marker, color=color, markersize=5)
        parts.put_text(figure.content, x + 0.15, y, text, ha="left")
    figure.description = (
        f"{len(chosen)} words of the {side} in two dimensions by {' and '.join(shares)}."
    )
    return figure


def _draw_plurals(ax: Any, points: Mapping[str, np.ndarray], number: Sequence[Pair]) -> None:
    for one, many in number:
        if one in points and many in points:
            ends = zip(points[one], points[many], strict=True)
            ax.plot(*ends, color=style.FAINT, lw=0.7, zorder=1)


def _write_names(ax: Any, points: Mapping[str, np.ndarray], kinds: Mapping[str, str]) -> None:
    """Write the names that overlap no earlier name."""
    ax.margins(0.06)
    ax.autoscale_view()
    low, high = np.transpose([ax.get_xlim(), ax.get_ylim()])
    used = np.zeros((0, 4))  # left, bottom, right, top in inches
    for word, point in points.items():
        left, bottom = (point - low) / (high - low) * PANEL + [0.05, -0.05]
        right, top = left + text_width(word, style.TEXT), bottom + 0.11
        apart = (used[:, :2] >= [right, top]) | (used[:, 2:] <= [left, bottom])
        if right > PANEL or not apart.any(1).all():
            continue
        used = np.vstack([used, [left, bottom, right, top]])
        look = {"fontsize": style.TEXT, "va": "center"}
        look["color"] = COLORS.get(kinds.get(word), style.SOFT)
        ax.annotate(word, point, xytext=(0.05 * 72, 0), textcoords="offset points", **look)
