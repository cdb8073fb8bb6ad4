# SPDX-License-Identifier: Apache-2.0
"""The path of an answer as a drawing: source words, encoder output and prediction.

Unlike the other views it needs no script: it opens a page, also on paper.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from transformer.inspection.html import Html, element
from transformer.inspection.views.attention_kinds import Label, label_text

WIDTH = 356
"""Width of the drawing at its natural size, the content of a phone's screen, in pixels."""
_ROW = 24
_TOP = 34
_LEFT, _OUTPUT, _OUTPUT_END, _ANSWER = 96, 152, 250, 296
"""Edges of the words, the boxes of the encoder's output, and the predictions."""
_FAINTEST = 0.02
"""Smaller weights have no line."""


@dataclasses.dataclass(frozen=True)
class ReadingPath:
    """What one prediction reads: a head of cross-attention, and before it a head of the encoder."""

    words: Sequence[Label]
    """The source tokens."""
    position: int
    """The source position whose reading is drawn."""
    predictions: Sequence[tuple[str, float]]
    """Candidates for the next token, with their probabilities."""
    encoder: Float[np.ndarray, " S"] | None = None
    """What a head of the encoder reads from the position."""
    cross: Float[np.ndarray, " S"] | None = None
    """What a head of cross-attention reads for the prediction."""
    shades: Float[np.ndarray, " S"] | None = None
    """A value of each position of the encoder's output, at most 1."""

    def drawing(self, description: str) -> Html:
        """The drawing as an ``<svg>`` element with a description."""
        parts = [
            self._heading(_OUTPUT, "encoder output"),
            self._heading(WIDTH - 2, "next token", anchor="end"),
        ]
        if self.encoder is not None:
            parts.append(self._heading(_LEFT, "source", anchor="end"))
            for index, word in enumerate(self.words):
                look = {"anchor": "end", "width": _LEFT}
                parts.append(_text(label_text(word), _LEFT, self._y(index), **look))
            parts += self._lines(self.encoder, _LEFT + 6, _OUTPUT)
        parts += self._outputs()
        if self.cross is not None:
            parts += self._lines(self.cross, _OUTPUT_END, _ANSWER - 6)
        parts += self._predictions()
        height = _TOP + _ROW * len(self.words)
        return element(
            "svg",
            element("title", description),
            *parts,
            viewBox=f"0 0 {WIDTH} {height}",
            role="img",
            aria_label=description,
        )

    def _y(self, position: int) -> float:
        """The middle of a row."""
        return _TOP + _ROW * (position + 0.5)

    def _heading(self, x: int, text: str, anchor: str = "start") -> Html:
        return element("text", text, x=x, y=14, class_="quiet", text_anchor=anchor)

    def _outputs(self) -> list[Html]:
        """A box for each position, in the color of its value."""
        boxes = []
        for index, word in enumerate(self.words):
            value = 0.0 if self.shades is None else float(self.shades[index])
            share, width = min(abs(value), 1.0), _OUTPUT_END - _OUTPUT
            frame = {"x": _OUTPUT, "y": self._y(index) - 11, "width": width, "height": 22, "rx": 4}
            box = element(
                "rect",
                **frame,
                class_="low" if value < 0 else "high",
                fill_opacity=f"{share:.3f}",
                stroke="currentColor",
                stroke_width=2 if index == self.position else 0.3,
            )
            look = {"width": width - 12, "class_": "on-dark" if share > 0.6 else None}
            boxes += [box, _text(label_text(word), _OUTPUT + 6, self._y(index), **look)]
        return boxes

    def _lines(self, weights: Float[np.ndarray, " S"], left: int, right: int) -> list[Html]:
        """A line for each weight, from its position on the left to the one that is drawn."""
        return [
            element(
                "line",
                x1=left,
                y1=f"{self._y(index):g}",
                x2=right,
                y2=f"{self._y(self.position):g}",
                class_="line",
                stroke_opacity=f"{weight:.3f}",
                stroke_width=f"{1 + 4 * weight:.2f}",
            )
            for index, weight in enumerate(map(float, weights))
            if weight >= _FAINTEST
        ]

    def _predictions(self) -> list[Html]:
        """The candidates beside the position: the token, below it a bar and the probability."""
        parts, width, bar = [], WIDTH - _ANSWER - 2, 28
        first = self._y(self.position) - 22 * (len(self.predictions) - 1) - 6
        for index, (token, probability) in enumerate(self.predictions):
            y = first + 44 * index
            frame = {"x": _ANSWER, "y": f"{y + 11:g}", "height": 8}
            outline = {"fill": "none", "stroke": "currentColor", "stroke_width": 0.3}
            parts += [
                _text(token, _ANSWER, y, width=width, class_="answer" if not index else None),
                _text(f"{probability:.2f}", WIDTH - 2, y + 15, anchor="end"),
                element("rect", width=f"{bar * probability:.1f}", class_="high", **frame),
                element("rect", width=bar, **frame, **outline),
            ]
        return parts


def _text(
    content: str,
    x: float | int,
    y: float | int,
    *,
    anchor: str = "start",
    width: float | int | None = None,
    class_: str | None = None,
) -> Html:
    """Text on a row; it is squeezed if it is likely to be wider than `width`."""
    squeezed = {}
    if width is not None and 7 * len(content) > width + 14:  # the isolates have no width
        squeezed = {"textLength": f"{width:g}", "lengthAdjust": "spacingAndGlyphs"}
    return element(
        "text", content, x=x, y=f"{y:g}", dy=".35em", text_anchor=anchor, class_=class_, **squeezed
    )
