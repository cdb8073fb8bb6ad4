# SPDX-License-Identifier: Apache-2.0
"""Decoding step by step, as a film strip."""

from collections.abc import Sequence

import numpy as np

from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, shortened
from transformer.inspection.search_log import SearchLog
from transformer.inspection.words import display_tokens

ROW_HEIGHT = 0.22


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

    Args:
      log: of `search_log.record`.
      vocabulary: every token, in the order of their ids.
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
        parts.separate_rows(image.axes, len(steps))
    figure.description = (
        f"{title}: {len(steps)} steps for a source of {len(source)} tokens, with log-probability "
        f"{best.log_prob:.2f}. {listed(summaries, 12)}."
    )
    return figure
