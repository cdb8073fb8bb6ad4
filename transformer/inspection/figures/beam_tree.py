# SPDX-License-Identifier: Apache-2.0
"""The tree of hypotheses that a beam search looked at."""

from collections.abc import Sequence
from numbers import Real

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from transformer.arrays import EOS_ID
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.decoding_plots import words_of
from transformer.inspection.figures.style import Picture
from transformer.inspection.search_log import Finished, SearchLog

LEFT, TOP, WIDE, HIGH = 0.75, 0.35, 1.02, 0.3
"""Where the first hypothesis' box is, and its size, in inches."""
STEP, ROW, END_STEP = 1.2, 0.62, 1.65
"""From box to box, from step to step, and from one finished hypothesis to the next."""


@style.styled
def plot_beam_tree(
    log: SearchLog, vocabulary: Sequence[str], *, title: str | None = None
) -> Picture:
    """The hypotheses of every step, best first from the left, and what each goes on from.

    Args:
      log: of `search_log.record`.
      vocabulary: every token, in the order of their ids.
      title: above the figure.

    Raises:
      InputError: for a vocabulary that is too short.
    """
    source = words_of(vocabulary, log.source)
    beams = max(len(step.tokens) for step in log.steps)
    finished = [len(step.finished) for step in log.steps]
    ends = LEFT + STEP * beams + 0.25
    width = ends + max(END_STEP * max(finished), END_STEP)
    height = TOP + ROW * (len(log.steps) + 0.1) + 0.35
    title = title or (
        f"Beam search with {beams} beams" if beams > 1 else "Greedy search: a beam search of one"
    )
    note = (
        "A row a step: the live hypotheses, best first, each with its last token and log P so far. "
        "Thick: the way to the best result. Dashed frame: the most probable token every time "
        "(greedy). Right: hypotheses that the end token finished, with log P and score; ★ the best "
        "result, ✓ the other results."
    )
    picture = style.sheet(width, height, title, note)
    content = style.canvas(picture, width, height)
    heading = {"ha": "left", "color": style.SOFT}
    parts.unit_text(content, LEFT, 0.05, "live hypotheses", **heading)
    parts.unit_text(content, ends, 0.05, "finished", **heading)
    best, greedy = (log.path() if log.results else ()), _greedy(log)
    ranks = {result.tokens: rank for rank, result in enumerate(log.results)}
    for index, step in enumerate(log.steps):
        parts.unit_text(content, 0, TOP + ROW * index + HIGH / 2, f"step {index + 1}", **heading)
        for beam, tokens in enumerate(step.tokens):
            strong = index < len(best) and best[index] == beam
            if index:
                _edge(content, index, step.parents[beam], beam, strong)
            token = words_of(vocabulary, tokens[-1:])[0] if tokens else "start"
            _live(content, index, beam, token, step.log_probs[beam])
            _node(content, *_place(index, beam), WIDE, strong, greedy.get(index) == beam)
        for number, one in enumerate(step.finished):
            rank = ranks.get((*step.tokens[one.beam], EOS_ID))
            _finished(content, index, one, number, ends + END_STEP * number, rank)
    told = [
        f"{' '.join(words_of(vocabulary, result.tokens))!r} with log-probability "
        f"{result.log_prob:.2f} and score {result.score:.3f}"
        for result in log.results
    ]
    picture.description = (
        f"{title}, {len(log.steps)} steps for {' '.join(source)!r}; finished hypotheses: "
        f"{sum(finished)}. Results, best first: {parts.list_of(told, 4)}."
    )
    return picture


def _place(index: int, beam: int) -> tuple[float, float]:
    """The left and the top of a live hypothesis' box."""
    return LEFT + STEP * beam, TOP + ROW * index


def _edge(content: Axes, index: int, parent: int, beam: int, strong: bool) -> None:
    """From a hypothesis of the step before to one that goes on from it."""
    (from_x, from_y), (x, y) = _place(index - 1, parent), _place(index, beam)
    content.plot(
        [from_x + WIDE / 2, x + WIDE / 2],
        [from_y + HIGH + 0.015, y - 0.015],
        color=style.VERMILION if strong else style.SOFT,
        linewidth=2.4 if strong else 0.8,
        zorder=1,
        gid=f"edge {index} {beam} from {parent}",
    )


def _live(content: Axes, index: int, beam: int, token: str, log_prob: float) -> None:
    """What stands in a live hypothesis' box."""
    x, y = _place(index, beam)
    middle, look = y + HIGH / 2, {"zorder": 3}
    text = style.shortened(token, WIDE - 0.5, 8)
    parts.unit_text(content, x + 0.05, middle, text, ha="left", **look)
    said = _two_digits(log_prob)
    parts.unit_text(content, x + WIDE - 0.05, middle, said, ha="right", fontsize=6.5, **look)


def _finished(
    content: Axes, index: int, one: Finished, number: int, left: Real, rank: int | None
) -> None:
    """A finished hypothesis, and the line that leads to it."""
    x, y = _place(index, one.beam)
    strong = rank == 0
    bottom = y + HIGH + 0.1 + 0.06 * number
    content.plot(
        [x + WIDE / 2, x + WIDE / 2, left + 0.1, left + 0.1],
        [y + HIGH + 0.015, bottom, bottom, y + HIGH],
        color=style.VERMILION if strong else style.SOFT,
        linewidth=2.0 if strong else 0.7,
        zorder=0,
        gid=f"finished {index} {one.beam}",
    )
    _node(content, left, y, END_STEP - 0.1, strong, False)
    mark = "" if rank is None else "★ " if strong else "✓ "
    text = f"{mark}{_two_digits(one.log_prob)}   score {one.score:.3f}"
    look = {"fontsize": 7, "fontweight": style.weight(text, strong), "zorder": 3}
    parts.unit_text(content, left + 0.08, y + HIGH / 2, text, ha="left", **look)


def _greedy(log: SearchLog) -> dict[int, int]:
    """Which live hypothesis of each step greedy search would have, as long as it is live."""
    found, tokens = {0: 0}, ()
    for index, step in enumerate(log.steps[:-1]):
        tokens = (*tokens, int(step.top_tokens[found[index]][0]))
        following = log.steps[index + 1].tokens
        if tokens not in following:
            break
        found[index + 1] = following.index(tokens)
    return found


def _two_digits(value: float) -> str:
    """Without the sign of a zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _node(content: Axes, left: Real, top: Real, wide: Real, strong: bool, dashed: bool) -> None:
    """A box."""
    content.add_patch(
        FancyBboxPatch(
            (left, top),
            wide,
            HIGH,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=style.PAPER,
            edgecolor=style.VERMILION if strong else style.INK if dashed else style.SOFT,
            linewidth=1.8 if strong else 1.2 if dashed else 0.6,
            linestyle=(0, (4, 2)) if dashed else "-",
            zorder=2,
        )
    )
