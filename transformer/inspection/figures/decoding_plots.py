# SPDX-License-Identifier: Apache-2.0
"""Decoding step by step, as a film strip."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.image import AxesImage

from transformer.arrays import Float
from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, shortened
from transformer.inspection.search_log import SearchLog


@dataclasses.dataclass(frozen=True)
class DecodingStep:
    """One step of the search that led to a result."""

    top_tokens: list[int]
    """Most probable next tokens, best first."""
    top_probabilities: Float[np.ndarray, " k"]
    weights: Float[np.ndarray, " S"] | None
    """Cross-attention of the row; None for a model without attention."""
    chosen: int
    probability: float
    """Of the chosen token, which need not be among the most probable."""


def decoding_steps(log: SearchLog, result: int, layer: int, head: int | None) -> list[DecodingStep]:
    """The steps that led to a result.

    Raises:
      InputError: for a result, layer or head out of range.
    """
    if not -len(log.results) <= result < len(log.results):
        raise InputError(
            f"result is {result}, but the search has {len(log.results)}; give 0 for the best"
        )
    best, path, steps = log.results[result], log.path(result), []
    totals = [log.steps[i].log_probs[beam] for i, beam in enumerate(path)] + [best.log_prob]
    for i, beam in enumerate(path):
        step, weights = log.steps[i], None
        if step.cross_attention is not None:
            weights = _head_weights(step.cross_attention[beam], layer, head)
        steps.append(
            DecodingStep(
                top_tokens=step.top_tokens[beam].tolist(),
                top_probabilities=np.exp(step.top_log_probs[beam]),
                weights=weights,
                chosen=best.tokens[i],
                probability=float(np.exp(totals[i + 1] - totals[i])),
            )
        )
    return steps


def _head_weights(
    weights: Float[np.ndarray, "L N S"], layer: int, head: int | None
) -> Float[np.ndarray, " S"]:
    """Weights of one head, or the mean of all heads of the layer."""
    for name, index, size in (("layer", layer, len(weights)), ("head", head, weights.shape[1])):
        if index is not None and not -size <= index < size:
            raise InputError(f"{name} is {index}, but the decoder has {size}, counted from 0")
    return weights[layer].mean(0) if head is None else weights[layer, head]


def tokens_of(vocabulary: Sequence[str], ids: Sequence[int]) -> list[str]:
    """Tokens of these ids.

    Raises:
      InputError: when the vocabulary is too short for one.
    """
    missing = [token for token in ids if token >= len(vocabulary)]
    if missing:
        raise InputError(
            f"vocabulary has {len(vocabulary)} tokens, but the log has the id {missing[0]}; give "
            "every token of the model's vocabulary, in the order of their ids"
        )
    return [vocabulary[token] for token in ids]


@style.styled
def plot_decoding(
    log: SearchLog,
    vocabulary: Sequence[str],
    *,
    result: int = 0,
    layer: int = -1,
    head: int | None = None,
    title: str = "Decoding, one token after the other",
) -> DescribedFigure:
    """A film strip: the token read, the cross-attention and the predictions of every step.

    Args:
      log: of `search_log.record`.
      vocabulary: every token, in the order of their ids.
      result: index of the result, 0 for the best.
      layer: of the cross-attention.
      head: of that layer; the mean of all by default.
      title: above the figure.
    """
    steps = decoding_steps(log, result, layer, head)
    source = tokens_of(vocabulary, log.source)
    chosen = tokens_of(vocabulary, [step.chosen for step in steps])
    note = "The source is encoded once, before step 1. Framed: the chosen token."
    if steps[0].weights is not None:
        layers, heads = log.steps[0].cross_attention.shape[1:3]
        heads_text = "mean of the heads" if head is None else f"head {head % heads + 1}"
        note += f" Cross-attention: {heads_text} of decoder layer {layer % layers + 1}."
    panels = _strip_panels(steps, source, chosen)
    figure, images = parts.draw_panels([panels], title=title, note=note)
    _write_predictions(images[-1], steps, vocabulary)
    for image in images:
        parts.separate_rows(image.axes, len(steps))
    summary = listed(_step_summaries(steps, source, chosen), 12)
    figure.description = (
        f"{title}: {len(steps)} steps for a source of {len(source)} tokens, with log-probability "
        f"{log.results[result].log_prob:.2f}. {summary}."
    )
    return figure


def _strip_panels(
    steps: list[DecodingStep], source: list[str], chosen: list[str]
) -> list[parts.Panel]:
    """Cross-attention, if there is any, and the most probable tokens of each step."""
    pairs = parts.read_predict(["start", *chosen[:-1]], chosen)
    rows, panels, height = [f"{i + 1}   {text}" for i, text in enumerate(pairs)], [], 0.27
    if steps[0].weights is not None:
        attention = parts.Panel(
            values=np.stack([step.weights for step in steps]),
            cell=(min(max(3.0 / len(source), 0.2), 0.4), height),
            name="attention",
            heading="cross-attention to the source",
            rows=rows,
            columns=source,
        )
        panels, rows = [attention], None
    unlisted = [
        ""
        if step.chosen in step.top_tokens
        else f"{shortened(token, 0.7, 7.5)} {step.probability:.2g}"
        for step, token in zip(steps, chosen, strict=True)
    ]
    predictions = parts.Panel(
        values=np.stack([step.top_probabilities for step in steps]),
        cell=(0.92, height),
        name="probabilities",
        heading="most probable next tokens",
        rows=rows,
        beside={"chosen": unlisted} if any(unlisted) else {},
        color_bar="weight, probability",
    )
    return [*panels, predictions]


def _write_predictions(
    image: AxesImage, steps: list[DecodingStep], vocabulary: Sequence[str]
) -> None:
    parts.write_tokens(image, [tokens_of(vocabulary, step.top_tokens) for step in steps])
    for row, step in enumerate(steps):
        if step.chosen in step.top_tokens:
            column = step.top_tokens.index(step.chosen)
            parts.outline(image.axes, row, column, style.VERMILION, f"chosen {row}")


def _step_summaries(steps: list[DecodingStep], source: list[str], chosen: list[str]) -> list[str]:
    summaries = []
    for step, token in zip(steps, chosen, strict=True):
        text = f"{token!r} ({step.probability:.2g})"
        if step.weights is not None:
            text += f" reading most from {source[step.weights.argmax()]!r}"
        summaries.append(text)
    return summaries
