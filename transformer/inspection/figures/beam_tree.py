# SPDX-License-Identifier: Apache-2.0
"""The tree of hypotheses that a beam search looked at."""

from collections.abc import Sequence

from matplotlib.patches import FancyBboxPatch

from transformer.arrays import EOS_ID
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.decoding import words_of
from transformer.inspection.figures.style import Picture
from transformer.inspection.search_log import SearchLog


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
    most_finished = max(len(step.finished) for step in log.steps)
    wide, high, step_x, row = 1.02, 0.3, 1.2, 0.62
    left, top = 0.75, 0.35
    ends = left + step_x * beams + 0.25
    width = ends + max(1.65 * most_finished, 1.5)
    height = top + row * (len(log.steps) + 0.1) + 0.35
    best = log.path() if log.results else ()
    greedy = _greedy(log)
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
    parts.unit_text(content, left, 0.05, "live hypotheses", ha="left", color=style.SOFT)
    parts.unit_text(content, ends, 0.05, "finished", ha="left", color=style.SOFT)

    def place(index: int, beam: int) -> tuple[float, float]:
        return left + step_x * beam, top + row * index

    ranks = {result.tokens: rank for rank, result in enumerate(log.results)}
    for index, step in enumerate(log.steps):
        parts.unit_text(
            content,
            0,
            top + row * index + high / 2,
            f"step {index + 1}",
            ha="left",
            color=style.SOFT,
        )
        tokens = ["start" if not t else words_of(vocabulary, t[-1:])[0] for t in step.tokens]
        for beam, token in enumerate(tokens):
            x, y = place(index, beam)
            on_best = index < len(best) and best[index] == beam
            if index:
                from_x, from_y = place(index - 1, step.parents[beam])
                content.plot(
                    [from_x + wide / 2, x + wide / 2],
                    [from_y + high + 0.015, y - 0.015],
                    color=style.VERMILION if on_best else style.SOFT,
                    linewidth=2.4 if on_best else 0.8,
                    zorder=1,
                    gid=f"edge {index} {beam} from {step.parents[beam]}",
                )
            _node(content, x, y, wide, high, on_best, greedy.get(index) == beam)
            text = style.shortened(token, wide - 0.5, 8)
            parts.unit_text(content, x + 0.05, y + high / 2, text, ha="left", zorder=3)
            parts.unit_text(
                content,
                x + wide - 0.05,
                y + high / 2,
                _two_digits(step.log_probs[beam]),
                ha="right",
                fontsize=6.5,
                zorder=3,
            )
        for number, one in enumerate(step.finished):
            x, y = place(index, one.beam)
            at = ends + 1.65 * number
            rank = ranks.get((*step.tokens[one.beam], EOS_ID))
            mark = "" if rank is None else ("★ " if rank == 0 else "✓ ")
            look = {"color": style.VERMILION if rank == 0 else style.SOFT}
            bottom = y + high + 0.1 + 0.06 * number
            content.plot(
                [x + wide / 2, x + wide / 2, at + 0.1, at + 0.1],
                [y + high + 0.015, bottom, bottom, y + high],
                linewidth=2.0 if rank == 0 else 0.7,
                zorder=0,
                gid=f"finished {index} {one.beam}",
                **look,
            )
            _node(content, at, y, 1.55, high, rank == 0, False)
            text = f"{mark}{_two_digits(one.log_prob)}   score {one.score:.3f}"
            parts.unit_text(
                content,
                at + 0.08,
                y + high / 2,
                text,
                ha="left",
                fontsize=7,
                fontweight="bold" if rank == 0 else "normal",
                zorder=3,
            )
    told = [
        f"{' '.join(words_of(vocabulary, result.tokens))!r} with log-probability "
        f"{result.log_prob:.2f} and score {result.score:.3f}"
        for result in log.results
    ]
    finished = sum(len(step.finished) for step in log.steps)
    picture.description = (
        f"{title}, {len(log.steps)} steps for {' '.join(source)!r}; finished hypotheses: "
        f"{finished}. Results, best first: {parts.list_of(told, 4)}."
    )
    return picture


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


def _node(content, left, top, wide, high, strong, dashed) -> None:
    content.add_patch(
        FancyBboxPatch(
            (left, top),
            wide,
            high,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=style.PAPER,
            edgecolor=style.VERMILION if strong else style.INK if dashed else style.SOFT,
            linewidth=1.8 if strong else 1.2 if dashed else 0.6,
            linestyle=(0, (4, 2)) if dashed else "-",
            zorder=2,
        )
    )
