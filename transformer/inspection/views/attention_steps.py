# SPDX-License-Identifier: Apache-2.0
"""One head's attention in six steps, with every number of one row."""

from collections.abc import Sequence

import numpy as np

from transformer.errors import InputError
from transformer.inspection.activations import AttentionTrace, Trace
from transformer.inspection.html import number_table
from transformer.inspection.views.attention_kinds import Focus, LabeledAttention, label_text
from transformer.inspection.views.view import View


def attention_steps(
    trace: Trace,
    attention: tuple[LabeledAttention, ...],
    heads: Sequence[tuple[str, int, int]],
    *,
    row: int = 0,
    focus: Focus | None = None,
    title: str = "Attention in six steps",
) -> View:
    """A walk through the computation of one row of a head, with every number.

    Args:
      trace: From `inspection.run` with ``capture="full"``.
      attention: From `trace_attention_kinds` of this trace.
      heads: (kind, layer, head): ``encoder``, ``decoder`` or ``cross``, and two indices, which may
        be negative. The first head is shown first.
      row: Row shown first; may be negative.
      focus: The head, one of `heads`, and the rows shown first, in place of `row`.

    Raises:
      InputError: The trace has only weights, there is no such head or row, or the scores of the
        head are not the scaled dot products that the steps show.
    """
    if not heads:
        raise InputError("no head is given; give at least one (kind, layer, head)")
    kinds = {each.kind: each for each in attention}
    data = [_head_data(trace, kinds, *head) for head in heads]
    index, kind_rows = 0, {kind: row if kind == heads[0][0] else 0 for kind in kinds}
    if focus is not None:
        shown = (focus.kind, focus.layer, focus.head)
        index = list(heads).index(shown) if shown in heads else 0
        kind_rows = {kind: focus.row(kind) for kind in kinds}
    kind, layer, head = heads[index]
    first = kinds[kind]
    row = first.resolve("row", kind_rows[kind])
    kind_rows[kind] = row
    query, key = (np.array(data[index][name]) for name in ("query", "key"))
    scores = query[row] @ key.T
    scaled = scores / np.sqrt(query.shape[1])
    columns = np.stack([scores, scaled, first.weights[layer, head, row]], axis=1)
    return View(
        script="attentionSteps",
        title=title,
        description=(
            f"{data[index]['title']}, row {row + 1} ({label_text(first.rows[row])}): the score of "
            "every key, divided by the square root of d_k, and the softmax."
        ),
        static=number_table(
            "One row",
            ["key", "q · k", "÷ √d_k", "softmax"],
            zip(map(label_text, first.columns), columns, strict=True),
        ),
        options={"heads": data, "first": index, "rows": kind_rows},
        height=900,
    )


def has_scaled_dot_products(attention: AttentionTrace) -> bool:
    """Whether all scores are q . k / sqrt(d_k), without anything that positions add."""
    query, key = (np.asarray(each, np.float64) for each in (attention.query, attention.key))
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return np.allclose(scores, attention.scores, rtol=1e-3, atol=1e-3)


def _head_data(
    trace: Trace, kinds: dict[str, LabeledAttention], kind: str, layer: int, head: int
) -> dict[str, object]:
    """The data of one head that a page's script reads."""
    if kind not in kinds:
        raise InputError(f"{kind!r} is not one of {', '.join(kinds)}")
    attention, vectors = kinds[kind], trace.attention(kind)
    if vectors.z is None:
        raise InputError("the trace has only weights; capture it with capture='full'")
    if not has_scaled_dot_products(vectors):
        raise InputError(
            f"the scores of {attention.title} are not q . k / sqrt(d_k) alone, which the six steps "
            "show: model.positions or model.attention_score change them; choose another kind of "
            "attention"
        )
    layer, head = attention.resolve("layer", layer), attention.resolve("head", head)
    return {
        "kind": kind,
        "title": f"{attention.title}, layer {layer + 1}, head {head + 1}",
        "rows": attention.rows,
        "columns": attention.columns,
        "masked": (attention.weights[layer, head] == 0).tolist(),
        **{
            name: np.asarray(getattr(vectors, name)[layer, head], np.float64).round(7).tolist()
            for name in ("query", "key", "value", "z")
        },
    }
