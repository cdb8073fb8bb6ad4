# SPDX-License-Identifier: Apache-2.0
"""Two sentences side by side: the same head's attention in both, and the difference."""

from transformer.errors import InputError
from transformer.inspection.html import number_table
from transformer.inspection.views.attention_kinds import (
    Focus,
    Label,
    LabeledAttention,
    label_text,
    opening,
)
from transformer.inspection.views.view import View


def compare_sentences(
    first: tuple[LabeledAttention, ...],
    second: tuple[LabeledAttention, ...],
    *,
    names: tuple[str, str] = ("the first sentence", "the second sentence"),
    layer: int = -1,
    focus: Focus | None = None,
    title: str = "Two sentences",
) -> View:
    """The attention of two sentence pairs of equal lengths, and its difference.

    Args:
      first: From `attention_kinds` or `trace_attention_kinds`.
      second: The same of the other sentence pair.
      names: Names of the two.
      layer: Layer shown first; may be negative.
      focus: The kind of attention, the head and the rows shown first instead of `layer`.

    Raises:
      InputError: The two differ in their kinds of attention or their shapes, or the layer does not
        exist.
    """
    shapes = [{each.kind: each.weights.shape for each in pair} for pair in (first, second)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"the sentences have attention of shapes {shapes[0]} and {shapes[1]}; compare pairs of "
            "one model with equal numbers of tokens"
        )
    start = opening(first, focus, layer=layer)
    before, after = (pair[start["kind"]] for pair in (first, second))
    layer, head = start["layer"], start["head"]
    rows = _combined_labels(before.rows, after.rows)
    columns = _combined_labels(before.columns, after.columns)
    difference = after.weights[layer, head] - before.weights[layer, head]
    return View(
        script="sentenceComparison",
        title=title,
        description=(
            f"{before.title}, layer {before.first_layer + layer + 1}, head {head + 1}: {names[1]} "
            f"minus {names[0]}."
        ),
        static=number_table(
            "Difference of the weights", ["", *columns], zip(rows, difference, strict=True)
        ),
        options=start | {"names": names},
        attention=(first, second),
        height=1850,
    )


def _combined_labels(first: tuple[Label, ...], second: tuple[Label, ...]) -> list[str]:
    """The labels of both sentences; both texts where they differ."""
    pairs = zip(map(label_text, first), map(label_text, second), strict=True)
    return [one if one == other else f"{one} / {other}" for one, other in pairs]
