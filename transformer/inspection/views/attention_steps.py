# SPDX-License-Identifier: Apache-2.0
"""One head's attention in six steps, with every number of one row."""

from collections.abc import Sequence

import numpy as np

from transformer.errors import InputError
from transformer.inspection.html import number_table
from transformer.inspection.views.attention_kinds import LabeledAttention, label_text
from transformer.inspection.views.view import View
from transformer.nn.capture import Trace


def attention_steps(
    trace: Trace,
    attention: tuple[LabeledAttention, ...],
    heads: Sequence[tuple[str, int, int]],
    *,
    row: int = 0,
    title: str = "Attention in six steps",
) -> View:
    """A walk through the computation of one row of a head, with every number.

    Args:
      trace: From `inspection.run` with ``capture="full"``.
      attention: From `trace_attention_kinds` of this trace.
      heads: (kind, layer, head): ``encoder``, ``decoder`` or ``cross``, and two indices, which may
        be negative. The first head is shown first.
      row: Row shown first; may be negative.

    Raises:
      InputError: The trace has only weights, or there is no such head or row.
    """
    if not heads:
        raise InputError("no head is given; give at least one (kind, layer, head)")
    kinds = {each.kind: each for each in attention}
    data = [_head_data(trace, kinds, *head) for head in heads]
    first = kinds[heads[0][0]]
    row = first.resolve("row", row)
    scores = np.array(data[0]["query"][row]) @ np.array(data[0]["key"]).T
    scaled = scores / np.sqrt(len(data[0]["query"][row]))
    _, layer, head = heads[0]
    columns = np.stack([scores, scaled, first.weights[layer, head, row]], axis=1)
    return View(
        script="attentionSteps",
        title=title,
        description=(
            f"{data[0]['title']}, row {row + 1} ({label_text(first.rows[row])}): the score of "
            "every key, divided by the square root of d_k, and the softmax."
        ),
        static=number_table(
            "One row",
            ["key", "q · k", "÷ √d_k", "softmax"],
            zip(map(label_text, first.columns), columns, strict=True),
        ),
        options={"heads": data, "row": row},
        height=800,
    )


def _head_data(
    trace: Trace, kinds: dict[str, LabeledAttention], kind: str, layer: int, head: int
) -> dict[str, object]:
    """The data of one head that a page's script reads."""
    if kind not in kinds:
        raise InputError(f"{kind!r} is not one of {', '.join(kinds)}")
    attention, vectors = kinds[kind], trace.attention(kind)
    if vectors.z is None:
        raise InputError("the trace has only weights; capture it with capture='full'")
    layer, head = attention.resolve("layer", layer), attention.resolve("head", head)
    return {
        "title": f"{attention.title}, layer {layer + 1}, head {head + 1}",
        "rows": attention.rows,
        "columns": attention.columns,
        "masked": (attention.weights[layer, head] == 0).tolist(),
        **{
            name: np.asarray(getattr(vectors, name)[layer, head], np.float64).round(7).tolist()
            for name in ("query", "key", "value", "z")
        },
    }
