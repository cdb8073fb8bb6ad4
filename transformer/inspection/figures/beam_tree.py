# SPDX-License-Identifier: Apache-2.0
"""The tree of hypotheses of a beam search."""

import dataclasses
from collections.abc import Sequence
from numbers import Real

import numpy as np
from matplotlib.axes import Axes

from transformer.inspection.figures import parts, style
from transformer.inspection.figures.decoding_plots import tokens_of
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, printable, shortened, text_width
from transformer.inspection.search_log import Finished, SearchLog

LEFT, TOP, HEIGHT = 0.65, 0.32, 0.24
"""Position of the first hypothesis, and height of each."""
LOG_PROB, FINISHED = 0.56, 1.75
"""Width of a log-probability, and of a finished hypothesis."""
BETWEEN, BELOW = 0.15, 0.17
"""Distance between hypotheses, and between steps."""


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Positions of the hypotheses in inches."""

    tops: Sequence[Real]
    """Of the steps."""
    width: Real
    """Of an active hypothesis."""
    beams: int

    @property
    def right(self) -> float:
        """Left edge of the finished hypotheses."""
        return LEFT + (self.width + BETWEEN) * self.beams + 0.15

    def corner(self, index: int, beam: int) -> tuple[float, float]:
        """Left and top of an active hypothesis."""
        return LEFT + (self.width + BETWEEN) * beam, self.tops[index]

    def middle(self, beam: int) -> float:
        """Middle of an active hypothesis."""
        return LEFT + (self.width + BETWEEN) * beam + self.width / 2


@style.styled
def plot_beam_tree(
    log: SearchLog, vocabulary: Sequence[str], *, title: str | None = None
) -> DescribedFigure:
    """The hypotheses of every step, best first from the left, and their parents.

    Args:
      log: of `search_log.record`.
      vocabulary: every token, in the order of their ids.
    """
    source = tokens_of(vocabulary, log.source)
    beams = max(len(step.tokens) for step in log.steps)
    finished = [len(step.finished) for step in log.steps]
    title = title or (
        f"Beam search with {beams} beams" if beams > 1 else "Greedy search: a beam search of one"
    )
    note = (
        "One row a step: the active hypotheses, best first, each with its last token and its log "
        "P. Thick: the path to the best result. Dashed frame: greedy search, the most probable "
        "token at every step. Right: hypotheses that ended with EOS, with log P and score; ★ the "
        "best result, ✓ the other results."
    )
    layout = _layout(log, vocabulary, beams)
    bottom = layout.tops[-1] + (HEIGHT + 0.06) * max(finished[-1], 1) + 0.1
    figure = parts.sheet(layout.right + FINISHED, bottom, title, note)
    for x, heading in ((LEFT, "active hypotheses"), (layout.right, "finished")):
        parts.put_text(figure.content, x, 0.1, heading, ha="left", color=style.SOFT)
    _draw_tree(figure.content, log, vocabulary, layout)
    items = [
        f"{' '.join(tokens_of(vocabulary, result.tokens))!r} with log-probability "
        f"{result.log_prob:.2f} and score {result.score:.3f}"
        for result in log.results
    ]
    figure.description = (
        f"{title}, {len(log.steps)} steps for {' '.join(source)!r}; finished hypotheses: "
        f"{sum(finished)}. Results, best first: {listed(items, 4)}."
    )
    return figure


def _layout(log: SearchLog, vocabulary: Sequence[str], beams: int) -> _Layout:
    """Rows as high as their finished hypotheses, columns as wide as the longest token."""
    heights = [(HEIGHT + 0.06) * max(len(step.finished), 1) + BELOW for step in log.steps]
    tops = TOP + np.cumsum([0.0, *heights[:-1]])
    last = {tokens[-1] for step in log.steps for tokens in step.tokens if tokens}
    names = [printable(token) for token in tokens_of(vocabulary, sorted(last))]
    longest = max((text_width(name, style.TEXT) for name in names), default=0.0)
    return _Layout(tops.tolist(), min(max(longest, 0.35), 1.1) + LOG_PROB + 0.12, beams)


def _draw_tree(content: Axes, log: SearchLog, vocabulary: Sequence[str], layout: _Layout) -> None:
    best, greedy = (log.path() if log.results else ()), _greedy_beams(log)
    ranks = {result.tokens[:-1]: rank for rank, result in enumerate(log.results)}
    for index, step in enumerate(log.steps):
        y, text = layout.tops[index] + HEIGHT / 2, f"step {index + 1}"
        parts.put_text(content, 0, y, text, ha="left", color=style.SOFT)
        for beam, tokens in enumerate(step.tokens):
            on_path = index < len(best) and best[index] == beam
            if index:
                _draw_edge(content, layout, index, step.parents[beam], beam, on_path)
            token = tokens_of(vocabulary, tokens[-1:])[0] if tokens else "start"
            corner = layout.corner(index, beam)
            _draw_active(content, corner, layout.width, token, step.log_probs[beam])
            _draw_node(content, corner, layout.width, on_path, greedy.get(index) == beam)
        for number, end in enumerate(step.finished):
            rank = ranks.get(step.tokens[end.beam])
            _draw_finished(content, layout, index, end, number, rank)


def _draw_edge(
    content: Axes, layout: _Layout, index: int, parent: int, beam: int, on_path: bool
) -> None:
    """A line from a hypothesis to its continuation."""
    content.plot(
        [layout.middle(parent), layout.middle(beam)],
        [layout.tops[index - 1] + HEIGHT + 0.015, layout.tops[index] - 0.015],
        color=style.VERMILION if on_path else style.SOFT,
        linewidth=2.4 if on_path else 0.8,
        zorder=1,
        gid=f"edge {index} {beam} from {parent}",
    )


def _draw_active(
    content: Axes, corner: tuple[Real, Real], width: Real, token: str, log_prob: float
) -> None:
    """Token and log-probability of an active hypothesis."""
    x, y = corner
    middle, look = y + HEIGHT / 2, {"zorder": 3}
    text = shortened(token, width - LOG_PROB - 0.08, style.TEXT)
    parts.put_text(content, x + 0.05, middle, text, ha="left", **look)
    look["color"] = style.SOFT
    parts.put_text(content, x + width - 0.05, middle, _two_decimals(log_prob), ha="right", **look)


def _draw_finished(
    content: Axes, layout: _Layout, index: int, end: Finished, number: int, rank: int | None
) -> None:
    """A finished hypothesis and the line that leads to it."""
    top, best = layout.tops[index] + (HEIGHT + 0.06) * number, rank == 0
    # The line runs below the row of active hypotheses, and reaches its own from the left.
    below = layout.tops[index] + HEIGHT + 0.05 + 0.035 * number
    turn = layout.right - 0.06 - 0.05 * number
    content.plot(
        [layout.middle(end.beam), layout.middle(end.beam), turn, turn, layout.right],
        [layout.tops[index] + HEIGHT + 0.015, below, below, *[top + HEIGHT / 2] * 2],
        color=style.VERMILION if best else style.SOFT,
        linewidth=2.0 if best else 0.7,
        zorder=0,
        gid=f"finished {index} {end.beam}",
    )
    _draw_node(content, (layout.right, top), FINISHED, best, False)
    mark = "" if rank is None else "★ " if best else "✓ "
    text = f"{mark}{_two_decimals(end.log_prob)}   score {end.score:.3f}"
    parts.put_text(content, layout.right + 0.08, top + HEIGHT / 2, text, ha="left", zorder=3)


def _draw_node(
    content: Axes, corner: tuple[Real, Real], width: Real, strong: bool, dashed: bool
) -> None:
    parts.put_box(
        content,
        *corner,
        width,
        HEIGHT,
        facecolor=style.PAPER,
        edgecolor=style.VERMILION if strong else style.INK if dashed else style.SOFT,
        linewidth=1.8 if strong else 1.2 if dashed else 0.6,
        linestyle=(0, (4, 2)) if dashed else "-",
        zorder=2,
    )


def _greedy_beams(log: SearchLog) -> dict[int, int]:
    """The beam that holds the greedy hypothesis, by step, as long as it is active."""
    beams, tokens = {0: 0}, ()
    for index, step in enumerate(log.steps[:-1]):
        tokens = (*tokens, int(step.top_tokens[beams[index]][0]))
        following = log.steps[index + 1].tokens
        if tokens not in following:
            break
        beams[index + 1] = following.index(tokens)
    return beams


def _two_decimals(value: float) -> str:
    """Without the sign of a zero."""
    return f"{round(value, 2) + 0.0:.2f}"
