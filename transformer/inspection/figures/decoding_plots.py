# SPDX-License-Identifier: Apache-2.0
"""A film strip of decoding: what is read, where in the source, and what is predicted."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from transformer.arrays import Float
from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import Picture
from transformer.inspection.search_log import SearchLog


@dataclasses.dataclass(frozen=True)
class Frame:
    """One step on the way to one result."""

    tokens: list[int]
    """The most probable next tokens, the most probable first."""
    probabilities: Float[np.ndarray, " k"]
    reads: Float[np.ndarray, " S"] | None
    """Encoder-decoder attention over the source, a mean over heads."""
    chosen: int
    probability: float
    """Of the chosen token, which need not be among the most probable."""

    @property
    def listed(self) -> bool:
        """Whether the chosen token is among the most probable."""
        return self.chosen in self.tokens


def frames_of(log: SearchLog, result: int, layer: int, head: int | None) -> list[Frame]:
    """The steps that led to a result.

    Raises:
      InputError: for a result, layer or head that is not there.
    """
    if not -len(log.results) <= result < len(log.results):
        raise InputError(
            f"result is {result}, but the search found {len(log.results)}; give 0 for the best"
        )
    found = log.results[result]
    path, frames = log.path(result), []
    totals = [log.steps[n].log_probs[beam] for n, beam in enumerate(path)] + [found.log_prob]
    for index, beam in enumerate(path):
        step = log.steps[index]
        reads = None
        if step.cross_attention is not None:
            reads = _mean_over_heads(step.cross_attention[beam], layer, head)
        frames.append(
            Frame(
                step.top_tokens[beam].tolist(),
                np.exp(step.top_log_probs[beam]),
                reads,
                found.tokens[index],
                float(np.exp(totals[index + 1] - totals[index])),
            )
        )
    return frames


def _mean_over_heads(
    weights: Float[np.ndarray, "L N S"], layer: int, head: int | None
) -> Float[np.ndarray, " S"]:
    for name, place, size in (("layer", layer, len(weights)), ("head", head, weights.shape[1])):
        if place is not None and not -size <= place < size:
            raise InputError(f"{name} is {place}, but the decoder has {size}, counted from 0")
    return weights[layer].mean(0) if head is None else weights[layer, head]


def words_of(vocabulary: Sequence[str], ids: Sequence[int]) -> list[str]:
    """The tokens of these ids.

    Raises:
      InputError: when the vocabulary is too short for one.
    """
    short = [token for token in ids if token >= len(vocabulary)]
    if short:
        raise InputError(
            f"vocabulary has {len(vocabulary)} tokens, but the log has the id {short[0]}; give "
            "every token of the model's vocabulary, in the order of their ids"
        )
    return [vocabulary[token] for token in ids]


def reading_of(layer: int, head: int | None, log: SearchLog) -> str:
    """Whose attention is drawn, in words."""
    depth, heads = log.steps[0].cross_attention.shape[1:3]
    who = "mean of the heads" if head is None else f"head {head % heads + 1}"
    return f"{who} of decoder layer {layer % depth + 1}"


@style.styled
def plot_decoding(
    log: SearchLog,
    vocabulary: Sequence[str],
    *,
    result: int = 0,
    layer: int = -1,
    head: int | None = None,
    title: str = "Decoding, one token after the other",
) -> Picture:
    """A film strip: at each step what is read, where in the source, and what is predicted.

    Args:
      log: of `search_log.record`.
      vocabulary: every token, in the order of their ids.
      result: which of the results, from the best, 0.
      layer: whose encoder-decoder attention.
      head: of that layer; the mean of all unless given.
      title: above the figure.

    Raises:
      InputError: for a result, layer or head that is not there, or a vocabulary that is too short.
    """
    frames = frames_of(log, result, layer, head)
    source = words_of(vocabulary, log.source)
    chosen = words_of(vocabulary, [frame.chosen for frame in frames])
    read = ["start", *chosen[:-1]]
    top_k = len(frames[0].tokens)
    cell, row, word = min(max(3.0 / len(source), 0.2), 0.4), 0.27, 0.92
    labels = [f"{n + 1}   {text}" for n, text in enumerate(parts.read_predict(read, chosen))]
    left = parts.label_width(labels) + 0.15
    reads = frames[0].reads is not None
    top = (parts.label_height(source, cell) if reads else 0.2) + 0.3
    wide, high = (cell * len(source) if reads else 0.0), row * len(frames)
    table = left + wide + (0.25 if reads else 0.0)
    end = table + word * top_k + (0.0 if all(frame.listed for frame in frames) else word + 0.1)
    width, height = end + parts.COLOUR_BAR_WIDTH, top + max(high, 0.9)
    note = "The source was encoded once, before step 1. Framed: the token that was taken."
    if reads:
        note += f" Attention: {reading_of(layer, head, log)}."
    picture = style.sheet(width, height, title, note)
    content = style.canvas(picture, width, height)
    if reads:
        ax = style.axes(picture, left, top, wide, high)
        ax.set_label("attention")
        parts.heat(ax, np.stack([frame.reads for frame in frames]))
        parts.lines_between_rows(ax, len(frames))
        parts.column_labels(ax, source)
        parts.row_labels(ax, labels)
        heading = "where it reads in the source"
        parts.unit_text(content, left, 0.0, heading, ha="left", color=style.SOFT)
    ax = style.axes(picture, table, top, word * top_k, high)
    ax.set_label("probabilities")
    image = parts.heat(ax, np.stack([frame.probabilities for frame in frames]))
    parts.lines_between_rows(ax, len(frames))
    parts.words(image, [words_of(vocabulary, frame.tokens) for frame in frames])
    for index, frame in enumerate(frames):
        for place in np.flatnonzero(np.asarray(frame.tokens) == frame.chosen):
            parts.outline(ax, index, place, style.VERMILION).set_gid(f"chosen {index}")
        if not frame.listed:
            text = style.shortened(chosen[index], word - 0.45, 7.5)
            x, y = end - word + 0.04, top + row * (index + 0.5)
            parts.unit_text(content, x, y, text, ha="left", fontsize=7.5, color=style.VERMILION)
            said = f"{frame.probability:.2g}"
            parts.unit_text(content, end, y, said, ha="right", fontsize=6.5, color=style.VERMILION)
    if end > table + word * top_k:
        parts.unit_text(
            content, end - word + 0.04, top - 0.12, "taken", ha="left", color=style.SOFT
        )
    if not reads:
        parts.row_labels(ax, labels)
    parts.unit_text(
        content, table, top - 0.12, "most probable next tokens", ha="left", color=style.SOFT
    )
    bar_height = max(min(high, 2.0), 0.9)
    bar_left = end + 0.12
    parts.colour_bar(picture, image, "weight, probability", bar_left, top, bar_height)
    picture.description = _told(title, frames, source, chosen, log, result)
    return picture


def _told(title, frames, source, chosen, log, result) -> str:
    steps = []
    for index, frame in enumerate(frames):
        said = f"{chosen[index]!r} ({frame.probability:.2g})"
        if frame.reads is not None:
            said += f" reading most from {source[frame.reads.argmax()]!r}"
        steps.append(said)
    return (
        f"{title}: {len(frames)} steps for a source of {len(source)} tokens, with log-probability "
        f"{log.results[result].log_prob:.2f}. {parts.list_of(steps, 12)}."
    )
