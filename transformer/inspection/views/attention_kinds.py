# SPDX-License-Identifier: Apache-2.0
"""Attention weights of one sentence pair, validated and labeled with tokens for the views.

`attention_kinds` takes arrays of any library, `trace_attention_kinds` a trace of this one.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import entr

from transformer.errors import InputError
from transformer.inspection.activations import Trace
from transformer.inspection.argument_checks import Sizes, check_weights, checked_index
from transformer.inspection.html import is_invisible
from transformer.inspection.words import display_tokens
from transformer.models.protocol import KINDS, Kind

TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}

Label = tuple[str, ...]
"""The token of a row or column; of a decoder row, the token read and the token predicted."""

FIRST_STRONG_ISOLATE, POP_DIRECTIONAL_ISOLATE = "\u2068", "\u2069"


@dataclasses.dataclass(frozen=True)
class Focus:
    """The head and the positions that every view of a page shows first."""

    kind: Kind
    layer: int
    """Index in the model, as `head`."""
    head: int
    source: int
    """Source position: the row of encoder self-attention."""
    target: int
    """Target position: the row of decoder self-attention and of cross-attention."""

    def row(self, kind: Kind) -> int:
        """The row of this kind of attention."""
        return self.source if kind == "encoder" else self.target


@dataclasses.dataclass(frozen=True, eq=False)
class LabeledAttention:
    """One kind of attention: the weights of every layer and head, with their tokens."""

    kind: str
    """``encoder``, ``decoder`` or ``cross``."""
    weights: Float[np.ndarray, "L N T S"]
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]
    first_layer: int = 0
    """Index in the model of the first of these layers."""

    @property
    def title(self) -> str:
        """Name of the kind of attention."""
        return TITLES[self.kind]

    def entropy(self) -> Float[np.ndarray, "L N"]:
        """Entropy in bits of each head's rows, averaged over the rows."""
        return entr(self.weights).sum(-1).mean(-1) / math.log(2)

    def consecutive_layers(self, count: int, focus: Focus | None = None) -> "LabeledAttention":
        """Only `count` layers: the last ones, or from that of the focus on if it is before them."""
        first = max(len(self.weights) - count, 0)
        if focus is not None and focus.kind == self.kind:
            first = min(first, focus.layer - self.first_layer)
        return dataclasses.replace(
            self,
            weights=self.weights[first : first + count],
            first_layer=self.first_layer + first,
        )

    def resolve(self, axis: str, index: int) -> int:
        """Resolve an index along the axis ``layer``, ``head`` or ``row``, which may be negative."""
        size = self.weights.shape[("layer", "head", "row").index(axis)]
        return checked_index(f"{axis} of {self.title.lower()}", index, size)

    def to_json(self) -> dict[str, object]:
        """The data that a page's script reads."""
        return {
            "title": self.title,
            "firstLayer": self.first_layer,
            "rows": self.rows,
            "columns": self.columns,
            "weights": self.weights.round(4).tolist(),
            # Sums of the exact weights: those of the rounded ones would differ from 1.
            "rowSums": self.weights.sum(-1).round(6).tolist(),
        }


def opening(
    attention: Sequence[LabeledAttention], focus: Focus | None, *, layer: int = 0, row: int = 0
) -> dict[str, object]:
    """The options of a view: the index of the kind, layer and head in it, and each kind's row.

    Args:
      focus: What the view opens on; by default the first head of a layer of the first kind.
      layer: That layer, and `row` of it; both may be negative.

    Raises:
      InputError: The head or a row does not exist, or the view lacks the layer.
    """
    index, head, rows = 0, 0, [row, *(0 for _ in attention[1:])]
    if focus is not None:
        [index] = [i for i, each in enumerate(attention) if each.kind == focus.kind]
        layer, head = focus.layer - attention[index].first_layer, focus.head
        rows = [focus.row(each.kind) for each in attention]
        if layer < 0:
            raise InputError(
                f"layer {focus.layer} is not among the layers of the view, which begin at layer "
                f"{attention[index].first_layer}; keep it with `consecutive_layers`"
            )
    first = attention[index]
    return {
        "kind": index,
        "layer": first.resolve("layer", layer),
        "head": first.resolve("head", head),
        "rows": [each.resolve("row", row) for each, row in zip(attention, rows, strict=True)],
    }


def attention_kinds(
    *,
    encoder=None,
    decoder=None,
    cross=None,
    source_tokens: Sequence[str] = (),
    target_in: Sequence[str] = (),
    target_out: Sequence[str] = (),
) -> tuple[LabeledAttention, ...]:
    """Validate and label the weights of one sentence pair; kinds that are None are left out.

    Args:
      encoder: Weights ``[L,N,S,S]`` after the softmax, convertible to NumPy.
      decoder: Weights ``[L,N,T,T]``.
      cross: Weights ``[L,N,T,S]``.
      source_tokens: Tokens that the encoder reads.
      target_in: Tokens that the decoder reads.
      target_out: The token predicted at each of these positions.

    Raises:
      InputError: An array has another shape, does not match the tokens, or has rows that do not
        sum to one (such as weights normalized over heads); or the decoder attends to later
        positions.
    """
    source = token_labels(source_tokens)
    if len(target_in) != len(target_out):
        raise InputError(
            f"target_in has {len(target_in)} tokens and target_out has {len(target_out)}; give one "
            "predicted token for each token that the decoder reads"
        )
    target = token_labels(target_in)
    labels = zip(target, token_labels(target_out), strict=True)
    read_and_predicted = tuple(read + predicted for read, predicted in labels)
    labeled = {
        "encoder": (encoder, source, source),
        "decoder": (decoder, read_and_predicted, target),
        "cross": (cross, read_and_predicted, source),
    }
    kinds = tuple(
        LabeledAttention(kind, _validated(weights, kind, len(rows), len(columns)), rows, columns)
        for kind, (weights, rows, columns) in labeled.items()
        if weights is not None
    )
    if not kinds:
        raise InputError("no weights are given; give those of encoder, decoder or cross")
    return kinds


def trace_attention_kinds(
    trace: Trace,
    *,
    source_tokens: Sequence[str],
    target_in: Sequence[str],
    target_out: Sequence[str],
) -> tuple[LabeledAttention, ...]:
    """The kinds of attention in the trace of one sentence pair; see `attention_kinds`."""
    return attention_kinds(
        **{kind: getattr(trace.attention(kind), "weights", None) for kind in KINDS},
        source_tokens=source_tokens,
        target_in=target_in,
        target_out=target_out,
    )


def token_labels(tokens: Sequence[str]) -> tuple[Label, ...]:
    """Labels of rows or columns that have one token each; see `words.display_tokens`."""
    if isinstance(tokens, str):
        raise InputError(f"{tokens!r} is a string; give its tokens as a list")
    return tuple((visible_token(token),) for token in display_tokens(tokens))


def visible_token(token: str) -> str:
    """The token with invisible characters (controls, line separators) as code points."""
    if not token.strip():
        return {"": "(empty)"}.get(token, "(space)")
    return "".join(f"U+{ord(c):04X}" if is_invisible(c) else c for c in token)


def label_text(label: Label) -> str:
    """A label on one line, each token isolated from the writing direction of the others."""
    return " → ".join(f"{FIRST_STRONG_ISOLATE}{t}{POP_DIRECTIONAL_ISOLATE}" for t in label)


def _validated(weights, kind: str, rows: int, columns: int) -> Float[np.ndarray, "L N T S"]:
    """The weights in float64, after a check that they are attention over `columns` keys."""
    name = f"the weights of {kind} attention"
    array = Sizes().array(name, weights, "L N T S")
    if array.shape[2:] != (rows, columns):
        raise InputError(
            f"{name} have {array.shape[2]} rows and {array.shape[3]} columns, but there are tokens "
            f"for {rows} rows and {columns} columns; give the tokens of the same sentences"
        )
    causal = np.tril(np.ones(array.shape[2:], bool)) if kind == "decoder" else None
    check_weights(array, causal, name)
    return array
