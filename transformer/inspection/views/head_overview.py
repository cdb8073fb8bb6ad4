# SPDX-License-Identifier: Apache-2.0
"""The overview: a small map of every layer and head, which can be ordered by a measure."""

from collections.abc import Mapping

import numpy as np

from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.views.attention_kinds import LabeledAttention
from transformer.inspection.views.view import View, figure_labels


def head_overview(
    attention: tuple[LabeledAttention, ...],
    *,
    measures: Mapping[str, Mapping[str, object]] | None = None,
    title: str = "Every layer and head",
) -> View:
    """Small maps of all heads of one sentence pair, and a large one of the selected head.

    Args:
      attention: From `attention_kinds` or `trace_attention_kinds`; the first kind is shown first.
      measures: Further measures by which the heads can be ordered: name -> kind of attention ->
        values ``[L,N]``. The entropy of the rows is always included.

    Raises:
      InputError: A measure lacks a kind of attention, or a finite number for a head.
    """
    entropy = {each.kind: each.entropy() for each in attention}
    all_measures = {"mean entropy in bits": entropy, **(measures or {})}
    first = attention[0]
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
        options={
            "measures": [
                {"name": name, "values": [_head_values(name, values, each) for each in attention]}
                for name, values in all_measures.items()
            ]
        },
        attention=(attention,),
        height=900,
    )


def _head_values(
    name: str, values: Mapping[str, object], attention: LabeledAttention
) -> list[list[float]]:
    """A measure of one kind of attention, ``[L,N]``, rounded for display."""
    kind, shape = attention.kind, attention.weights.shape[:2]
    if kind not in values:
        raise InputError(f"measure {name!r} has no values for {kind!r}; give all kinds")
    array = np.asarray(values[kind], np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise InputError(
            f"measure {name!r} of {kind!r} has shape {array.shape}; give one finite number for "
            f"each of {shape} layers and heads"
        )
    return array.round(4).tolist()
