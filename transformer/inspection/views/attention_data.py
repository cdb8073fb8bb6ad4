# SPDX-License-Identifier: Apache-2.0
"""Attention weights as the views take them: checked, with the tokens of their rows and columns.

`families` makes them from arrays of any library, `families_of` from a trace of this one.
"""

import dataclasses
import unicodedata
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float

from transformer.errors import InputError
from transformer.inspection import measures
from transformer.inspection.attention_checks import check_weights
from transformer.inspection.views import number_packing
from transformer.nn.capture import KINDS, Trace

TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Encoder-decoder attention",
}

Label = tuple[str, ...]
"""The token of a row or a column; of a decoder's row the token it reads and the one it predicts."""


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """One kind of attention: the weights of every layer and head, for one sentence pair."""

    kind: str
    """``encoder``, ``decoder`` or ``cross``."""
    weights: Float[np.ndarray, "L N T S"]
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]
    since: int = 0
    """How many layers of the model lie before the first of these."""

    @property
    def title(self) -> str:
        """Its name in words."""
        return TITLES[self.kind]

    def entropy(self) -> Float[np.ndarray, "L N"]:
        """The entropy of each head's rows in bits, on average over its rows."""
        return np.asarray(_mean_entropy(self.weights))

    def last(self, layers: int) -> "Family":
        """The last so many layers alone."""
        left_out = max(len(self.weights) - layers, 0)
        return dataclasses.replace(self, weights=self.weights[left_out:], since=left_out)

    def layer(self, layer: int) -> int:
        """The layer's place, from 0, where it may be counted from the end.

        Raises:
          InputError: when there is none.
        """
        return _place(layer, self.weights.shape[0], "layer", self.title)

    def row(self, row: int) -> int:
        """The row's place; see `layer`."""
        return _place(row, self.weights.shape[2], "row", self.title)

    def heads(self, heads: Sequence[int] | None) -> list[int]:
        """The heads' places, all if None; see `layer`."""
        count = self.weights.shape[1]
        if heads is not None and not len(heads):
            raise InputError("no head is chosen; choose at least one, or None for all")
        chosen = range(count) if heads is None else heads
        return [_place(head, count, "head", self.title) for head in chosen]

    def packed(self) -> dict[str, object]:
        """What a page's script reads."""
        weights = self.weights
        triangular = self.kind == "decoder"
        if triangular:
            weights = weights[..., *np.tril_indices(weights.shape[-1])]
        # A view's table shows the sums as they are, not those of what was rounded to be drawn.
        sums = np.rint((self.weights.sum(-1) - 1) * 1e6).astype(int).ravel()
        return {
            "title": self.title,
            "layers": self.weights.shape[0],
            "since": self.since,
            "heads": self.weights.shape[1],
            "rows": self.rows,
            "columns": self.columns,
            "triangular": triangular,
            "weights": number_packing.shares(weights),
            "sums": {int(place): int(sums[place]) for place in np.flatnonzero(sums)},
        }


_mean_entropy = jax.jit(lambda weights: measures.row_mean(measures.entropy(weights)))


def families(
    *,
    encoder=None,
    decoder=None,
    cross=None,
    source_tokens: Sequence[str] = (),
    target_in: Sequence[str] = (),
    target_out: Sequence[str] = (),
) -> tuple[Family, ...]:
    """The kinds of attention that are given, each with any number of layers and heads.

    Args:
      encoder: weights ``[L,N,S,S]`` after the softmax, convertible to NumPy.
      decoder: weights ``[L,N,T,T]``.
      cross: weights ``[L,N,T,S]``.
      source_tokens: what the encoder reads.
      target_in: what the decoder reads.
      target_out: what is predicted at each of these positions.

    Raises:
      InputError: when an array has another shape, more or fewer rows or columns than there are
        tokens, or rows that do not sum to one (as weights that were divided by their sum over heads
        do not); or when the decoder attends to what comes later.
    """
    source = labels(source_tokens)
    if len(target_in) != len(target_out):
        raise InputError(
            f"target_in has {len(target_in)} tokens and target_out {len(target_out)}; every token "
            "that is read has one that is predicted"
        )
    target = labels(target_in)
    read_and_predicted = tuple(zip(map(shown, target_in), map(shown, target_out), strict=True))
    given = {
        "encoder": (encoder, source, source),
        "decoder": (decoder, read_and_predicted, target),
        "cross": (cross, read_and_predicted, source),
    }
    found = tuple(
        Family(kind, _checked(weights, kind, len(rows), len(columns)), rows, columns)
        for kind, (weights, rows, columns) in given.items()
        if weights is not None
    )
    if not found:
        raise InputError("no weights are given; give those of encoder, decoder or cross")
    return found


def families_of(
    trace: Trace,
    *,
    source_tokens: Sequence[str],
    target_in: Sequence[str],
    target_out: Sequence[str],
) -> tuple[Family, ...]:
    """The kinds of attention in a trace of one sentence pair (`trace.run`); see `families`."""
    return families(
        **{kind: own.weights for kind in KINDS if (own := trace.attention(kind)) is not None},
        source_tokens=source_tokens,
        target_in=target_in,
        target_out=target_out,
    )


def labels(tokens: Sequence[str]) -> tuple[Label, ...]:
    """The tokens as labels of rows or columns."""
    if isinstance(tokens, str):
        raise InputError(f"{tokens!r} is a string; give its tokens as a list")
    return tuple((shown(token),) for token in tokens)


def shown(token: str) -> str:
    """The token with what nobody would see (controls, line separators) as code points."""
    if not isinstance(token, str):
        raise InputError(f"{token!r} is not a token; tokens are strings")
    if not token.strip():
        return {"": "(empty)"}.get(token, "(space)")
    return "".join(
        f"U+{ord(c):04X}" if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") else c
        for c in token
    )


def _checked(weights, kind: str, rows: int, columns: int) -> Float[np.ndarray, "L N T S"]:
    """The weights in float64, if they are attention over `columns` keys."""
    try:
        array = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{kind}: the weights are not an array of numbers ({error})") from None
    if array.ndim != 4 or 0 in array.shape:
        raise InputError(
            f"{kind}: weights of shape {array.shape}; [layers, heads, rows, columns] is needed, "
            "each at least 1, without a batch axis"
        )
    if array.shape[2:] != (rows, columns):
        raise InputError(
            f"{kind}: weights of shape {array.shape} have {array.shape[2]} rows and "
            f"{array.shape[3]} columns, but there are tokens for {rows} rows and {columns} columns"
        )
    causal = np.tril(np.ones(array.shape[2:], bool)) if kind == "decoder" else None
    check_weights(array, causal, f"the weights of {kind} attention")
    return array


def _place(index: int, count: int, what: str, where: str) -> int:
    if not -count <= index < count:
        raise InputError(f"{what} {index} does not exist: {where} has {count}, counted from 0")
    return index % count
