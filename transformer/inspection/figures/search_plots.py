# SPDX-License-Identifier: Apache-2.0
"""A search: decoding step by step as a film strip, and the tree of its hypotheses."""

import dataclasses
from collections.abc import Sequence
from numbers import Real

import numpy as np
from matplotlib.axes import Axes

from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, printable, shortened, text_width
from transformer.inspection.search_log import Finished, SearchLog
from transformer.inspection.words import display_tokens

ROW_HEIGHT = 0.22
"""Height of a step of the film strip."""
LEFT, TOP, HEIGHT = 0.65, 0.32, 0.24
"""Position of the first hypothesis of the tree, and height of each."""
LOG_PROB, FINISHED = 0.56, 1.75
"""Width of a log-probability, and of a finished hypothesis."""
BETWEEN, BELOW = 0.15, 0.17
"""Distance between hypotheses, and between steps."""


def tokens_of(vocabulary: Sequence[str], ids: Sequence[int]) -> list[str]:
    """Labels of the tokens of these ids.

    Raises:
      InputError: when the vocabulary is too short for one.
    """
    missing = [token for token in ids if token >= len(vocabulary)]
    if missing:
        raise InputError(
            f"vocabulary has {len(vocabulary)} tokens, but the log has the id {missing[0]}; give "
            "every token of the model's vocabulary, in the order of their ids"
        )
    labels = display_tokens(vocabulary)
    return [labels[token] for token in ids]


@style.styled
def plot_decoding(
    log: SearchLog,
    vocabulary: Sequence[str],
    *,
    title: str = "Decoding, one token after the other",
) -> DescribedFigure:
    """A film strip of the best result: what each step reads, attends to and predicts.

    The cross-attention is that of the last layer, averaged over its heads.
    """
    best = log.results[0]
    steps = list(zip(log.steps, log.path(), strict=False))  # a search may outlast its best result
    totals = [step.log_probs[beam] for step, beam in steps] + [best.log_prob]
    probabilities = np.exp(np.diff(totals))  # of the chosen tokens
    source, chosen = tokens_of(vocabulary, log.source), tokens_of(vocabulary, best.tokens)
    top_tokens = [step.top_tokens[beam].tolist() for step, beam in steps]
    summaries = [f"{t!r} ({p:.2g})" for t, p in zip(chosen, probabilities, strict=True)]

    pairs = parts.read_predict(["start", *chosen[:-1]], chosen)
    rows: list[str] | None = [f"{i + 1}   {text}" for i, text in enumerate(pairs)]
    note, panels = "The source is encoded once, before step 1. Framed: the chosen token.", []
    if log.steps[0].cross_attention is not None:
        weights = np.stack([step.cross_attention[beam, -1].mean(0) for step, beam in steps])
        layers = log.steps[0].cross_attention.shape[1]
        note += f" Cross-attention: mean of the heads of decoder layer {layers}."
        most = (source[key] for key in weights.argmax(-1))
        summaries = [
            f"{each} reading most from {key!r}" for each, key in zip(summaries, most, strict=True)
        ]
        panels.append(
            parts.Panel(
                values=weights,
                cell=(min(max(2.7 / len(source), parts.SMALLEST_CELL), 0.4), ROW_HEIGHT),
                name="attention",
                heading="cross-attention to the source",
                rows=rows,
                columns=source,
                legend="attention weight",
            )
        )
        rows = None
    unlisted = [
        "" if token in top else f"{shortened(text, 0.7, 7.5)} {probability:.2g}"
        for token, top, text, probability in zip(
            best.tokens, top_tokens, chosen, probabilities, strict=True
        )
    ]
    panels.append(
        parts.Panel(
            values=np.exp([step.top_log_probs[beam] for step, beam in steps]),
            cell=(0.92, ROW_HEIGHT),
            name="probabilities",
            heading="most probable next tokens",
            rows=rows,
            beside={"chosen": unlisted} if any(unlisted) else {},
            legend="probability",
        )
    )
    figure, images = parts.draw_panels([panels], title=title, note=note)
    parts.write_tokens(images[-1], [tokens_of(vocabulary, ids) for ids in top_tokens])
    for row, (token, top) in enumerate(zip(best.tokens, top_tokens, strict=True)):
        if token in top:
            column = top.index(token)
            parts.outline(images[-1].axes, row, column, style.VERMILION, f"chosen {row}")
    for image in images:
        for row in range(1, len(steps)):
            image.axes.axhline(row - 0.5, color=style.PAPER, linewidth=1.5)
    figure.description = (
        f"{title}: {len(steps)} steps for a source of {len(source)} tokens, with log-probability "
        f"{best.log_prob:.2f}. {listed(summaries, 12)}."
    )
    return figure


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Positions of the hypotheses in inches."""

    tops: Sequence[Real]
    """Top edge of each step."""
    width: Real
    """Width of an active hypothesis."""
    beams: int

    @property
    def right(self) -> float:
        """Left edge of the finished hypotheses."""
        return self.left(self.beams) + 0.15

    def left(self, beam: int) -> float:
        """Left edge of an active hypothesis."""
        return LEFT + (self.width + BETWEEN) * beam

    def middle(self, beam: int) -> float:
        """Middle of an active hypothesis."""
        return self.left(beam) + self.width / 2


@style.styled
def plot_beam_tree(
    log: SearchLog, vocabulary: Sequence[str], *, title: str | None = None
) -> DescribedFigure:
    """The hypotheses of every step, best first from the left, and their parents."""
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
        top = layout.tops[index]
        middle, text = top + HEIGHT / 2, f"step {index + 1}"
        parts.put_text(content, 0, middle, text, ha="left", color=style.SOFT)
        for beam, (tokens, log_prob) in enumerate(zip(step.tokens, step.log_probs, strict=True)):
            on_path = index < len(best) and best[index] == beam
            if index:
                parent = step.parents[beam]
                content.plot(
                    [layout.middle(parent), layout.middle(beam)],
                    [layout.tops[index - 1] + HEIGHT + 0.015, top - 0.015],
                    color=style.VERMILION if on_path else style.SOFT,
                    linewidth=2.4 if on_path else 0.8,
                    zorder=1,
                    gid=f"edge {index} {beam} from {parent}",
                )
            left, right = layout.left(beam), layout.left(beam) + layout.width
            token = tokens_of(vocabulary, tokens[-1:])[0] if tokens else "start"
            token = shortened(token, layout.width - LOG_PROB - 0.08, style.TEXT)
            parts.put_text(content, left + 0.05, middle, token, ha="left", zorder=3)
            number = parts.formatted(log_prob, "{:.2f}")
            look = {"ha": "right", "color": style.SOFT, "zorder": 3}
            parts.put_text(content, right - 0.05, middle, number, **look)
            _draw_node(content, (left, top), layout.width, on_path, greedy.get(index) == beam)
        for number, end in enumerate(step.finished):
            rank = ranks.get(step.tokens[end.beam])
            _draw_finished(content, layout, index, end, number, rank)


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
    text = f"{mark}{parts.formatted(end.log_prob, '{:.2f}')}   score {end.score:.3f}"
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
