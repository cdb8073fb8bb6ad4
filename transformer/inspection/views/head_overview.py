# SPDX-License-Identifier: Apache-2.0
"""The overview: a small map of every layer and head, which can be ordered by a measure."""

from collections.abc import Mapping

import numpy as np

from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.views.attention_kinds import Focus, LabeledAttention, opening
from transformer.inspection.views.view import View, figure_labels


def head_overview(
    attention: tuple[LabeledAttention, ...],
    *,
    measures: Mapping[str, Mapping[str, object]] | None = None,
    focus: Focus | None = None,
    title: str = "Every layer and head",
) -> View:
    """Small maps of all heads of one sentence pair, and a large one of the selected head.

    Args:
      attention: From `attention_kinds` or `trace_attention_kinds`; the first kind is shown first.
      measures: Further measures by which the heads can be ordered: name -> kind of attention ->
        values ``[L,N]``, for the kinds for which it means something. The entropy of the rows is
        always included.
      focus: The head and the rows shown first.

    Raises:
      InputError: A measure has no kind of attention of this pair, or lacks a finite number for a
        head.
    """
    entropy = {each.kind: each.entropy() for each in attention}
    all_measures = {**(measures or {}), "mean entropy in bits": entropy}
    start = opening(attention, focus)
    first = attention[start["kind"]]
    layers, heads = first.weights.shape[:2]
    return View(
        script="headOverview",
        title=title,
        description=f"{first.title}: every head of {layers} layers x {heads} heads.",
        static=figures.plot_attention_grid(
            first.weights,
            figure_labels(first.rows),
            figure_labels(first.columns),
            title=first.title,
        ),
        options=start
        | {
            "measures": [
                {"name": name, "values": _of_kinds(name, values, attention)}
                for name, values in all_measures.items()
            ]
        },
        attention=(attention,),
        height=1400,
    )


def _of_kinds(
    name: str, values: Mapping[str, object], attention: tuple[LabeledAttention, ...]
) -> list[list[list[float]] | None]:
    """A measure of each kind of attention, None for a kind for which it means nothing."""
    if not any(each.kind in values for each in attention):
        kinds = ", ".join(repr(each.kind) for each in attention)
        raise InputError(f"measure {name!r} has no values; give those of at least one of {kinds}")
    rounded: list[list[list[float]] | None] = []
    for each in attention:
        shape = each.weights.shape[:2]
        array = np.asarray(values.get(each.kind, np.zeros(shape)), np.float64)
        if array.shape != shape or not np.isfinite(array).all():
            raise InputError(
                f"measure {name!r} of {each.kind!r} has shape {array.shape}; give one finite "
                f"number for each of {shape} layers and heads"
            )
        rounded.append(array.round(4).tolist() if each.kind in values else None)
    return rounded
