# SPDX-License-Identifier: Apache-2.0
"""The tree of hypotheses of a beam search."""

from collections.abc import Sequence
from numbers import Real

from matplotlib.axes import Axes

from transformer.inspection.figures import parts, style
from transformer.inspection.figures.decoding_plots import tokens_of
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, shortened
from transformer.inspection.search_log import Finished, SearchLog

LEFT, TOP, WIDTH, HEIGHT = 0.75, 0.35, 1.02, 0.3
"""Position of the first hypothesis, and size of each."""
STEP, ROW, FINISHED_STEP = 1.2, 0.62, 1.65
"""Distance between hypotheses, between steps, and between finished hypotheses."""


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
    right = LEFT + STEP * beams + 0.25
    title = title or (
        f"Beam search with {beams} beams" if beams > 1 else "Greedy search: a beam search of one"
    )
    note = (
        "One row a step: the active hypotheses, best first, each with its last token and its log "
        "P. Thick: the path to the best result. Dashed frame: greedy search, the most probable "
        "token at every step. Right: hypotheses that ended with EOS, with log P and score; ★ the "
        "best result, ✓ the other results."
    )
    width = right + FINISHED_STEP * max(*finished, 1)
    figure = parts.sheet(width, TOP + ROW * (len(log.steps) + 0.1) + 0.35, title, note)
    for x, heading in ((LEFT, "active hypotheses"), (right, "finished")):
        parts.put_text(figure.content, x, 0.05, heading, ha="left", color=style.SOFT)
    _draw_tree(figure.content, log, vocabulary, right)
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


def _draw_tree(content: Axes, log: SearchLog, vocabulary: Sequence[str], right: Real) -> None:
    best, greedy = (log.path() if log.results else ()), _greedy_beams(log)
    ranks = {result.tokens[:-1]: rank for rank, result in enumerate(log.results)}
    for index, step in enumerate(log.steps):
        y, text = TOP + ROW * index + HEIGHT / 2, f"step {index + 1}"
        parts.put_text(content, 0, y, text, ha="left", color=style.SOFT)
        for beam, tokens in enumerate(step.tokens):
            on_path = index < len(best) and best[index] == beam
            if index:
                _draw_edge(content, index, step.parents[beam], beam, on_path)
            token = tokens_of(vocabulary, tokens[-1:])[0] if tokens else "start"
            _draw_active(content, index, beam, token, step.log_probs[beam])
            _draw_node(content, *_corner(index, beam), WIDTH, on_path, greedy.get(index) == beam)
        for number, end in enumerate(step.finished):
            rank = ranks.get(step.tokens[end.beam])
            _draw_finished(content, index, end, number, right, rank)


def _corner(index: int, beam: int) -> tuple[float, float]:
    """Left and top of an active hypothesis."""
    return LEFT + STEP * beam, TOP + ROW * index


def _draw_edge(content: Axes, index: int, parent: int, beam: int, on_path: bool) -> None:
    """A line from a hypothesis to its continuation."""
    (from_x, from_y), (x, y) = _corner(index - 1, parent), _corner(index, beam)
    content.plot(
        [from_x + WIDTH / 2, x + WIDTH / 2],
        [from_y + HEIGHT + 0.015, y - 0.015],
        color=style.VERMILION if on_path else style.SOFT,
        linewidth=2.4 if on_path else 0.8,
        zorder=1,
        gid=f"edge {index} {beam} from {parent}",
    )


def _draw_active(content: Axes, index: int, beam: int, token: str, log_prob: float) -> None:
    """Token and log-probability of an active hypothesis."""
    x, y = _corner(index, beam)
    middle, look = y + HEIGHT / 2, {"zorder": 3}
    text = shortened(token, WIDTH - 0.5, style.TEXT)
    parts.put_text(content, x + 0.05, middle, text, ha="left", **look)
    text = _two_decimals(log_prob)
    parts.put_text(content, x + WIDTH - 0.05, middle, text, ha="right", fontsize=6.5, **look)


def _draw_finished(
    content: Axes, index: int, end: Finished, number: int, right: Real, rank: int | None
) -> None:
    """A finished hypothesis and the line that leads to it."""
    x, y = _corner(index, end.beam)
    left, best = right + FINISHED_STEP * number, rank == 0
    bottom = y + HEIGHT + 0.1 + 0.06 * number
    content.plot(
        [x + WIDTH / 2, x + WIDTH / 2, left + 0.1, left + 0.1],
        [y + HEIGHT + 0.015, bottom, bottom, y + HEIGHT],
        color=style.VERMILION if best else style.SOFT,
        linewidth=2.0 if best else 0.7,
        zorder=0,
        gid=f"finished {index} {end.beam}",
    )
    _draw_node(content, left, y, FINISHED_STEP - 0.1, best, False)
    mark = "" if rank is None else "★ " if best else "✓ "
    text = f"{mark}{_two_decimals(end.log_prob)}   score {end.score:.3f}"
    look = {"fontsize": style.TINY, "zorder": 3}
    parts.put_text(content, left + 0.08, y + HEIGHT / 2, text, ha="left", **look)


def _draw_node(
    content: Axes, left: Real, top: Real, width: Real, strong: bool, dashed: bool
) -> None:
    parts.put_box(
        content,
        left,
        top,
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
