# SPDX-License-Identifier: Apache-2.0
"""One head's attention in six steps, with every number of one row."""

import dataclasses
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from transformer.errors import InputError
from transformer.inspection.html import Html, table
from transformer.inspection.views.attention_kinds import Label, label_text, trace_attention_kinds
from transformer.inspection.views.view import View
from transformer.nn.capture import AttentionTrace, Trace

TOLERANCE = 1e-3
"""Largest accepted difference from the model's numbers, relative to the largest of them or 1; for
16-bit numbers, twice their rounding error.
"""

VECTORS = ("query", "key", "value", "z")


@dataclasses.dataclass(frozen=True, eq=False)
class HeadVectors:
    """The vectors of one head, with the weights and outputs that the model computed from them."""

    title: str
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]
    query: np.ndarray
    """``[T,H]``."""
    key: np.ndarray
    """``[S,H]``."""
    value: np.ndarray
    """``[S,Hv]``."""
    weights: np.ndarray
    """``[T,S]``, after the softmax. A weight of exactly 0 means that the key is masked."""
    z: np.ndarray
    """``[T,Hv]``, the head's output, as computed by the model."""

    def __post_init__(self):
        """Check that the arrays belong to one forward pass.

        Raises:
          InputError: The shapes do not match, or the weights and outputs recomputed from query, key
            and value differ from those given.
        """
        tolerance = TOLERANCE
        for name in (*VECTORS, "weights"):
            array = np.asarray(getattr(self, name))
            if jnp.issubdtype(array.dtype, jnp.floating):
                tolerance = max(tolerance, 2 * float(jnp.finfo(array.dtype).eps))
            array = array.astype(np.float64)
            if array.ndim != 2 or not np.isfinite(array).all():
                raise InputError(f"{self.title}: {name} is not a matrix of finite numbers")
            object.__setattr__(self, name, array)
        self._check_shapes()
        _, weights, z = recompute(self.query, self.key, self.value, self.weights > 0)
        for name, computed, given in (("weights", weights, self.weights), ("z", z, self.z)):
            largest = np.abs(computed - given).max()
            if not largest <= tolerance * max(1, np.abs(given).max()):
                raise InputError(
                    f"{self.title}: {name} recomputed from query, key and value differ by "
                    f"{largest:.3g} from those given; give the values of one forward pass"
                )

    def _check_shapes(self) -> None:
        given = {name: getattr(self, name).shape for name in (*VECTORS, "weights")}
        (t, h), (s, hv) = self.query.shape, self.value.shape
        needed = {"query": (t, h), "key": (s, h), "value": (s, hv), "z": (t, hv), "weights": (t, s)}
        if given != needed or (t, s) != (len(self.rows), len(self.columns)):
            raise InputError(
                f"{self.title}: the shapes {given} do not match each other and {len(self.rows)} "
                f"rows and {len(self.columns)} columns; see the fields of this class"
            )

    def to_json(self) -> dict[str, object]:
        """The data that a page's script reads."""
        return {
            "title": self.title,
            "rows": self.rows,
            "columns": self.columns,
            "masked": (self.weights == 0).tolist(),
            **{name: getattr(self, name).round(7).tolist() for name in VECTORS},
        }


def recompute(
    query: Float[np.ndarray, "T H"],
    key: Float[np.ndarray, "S H"],
    value: Float[np.ndarray, "S Hv"],
    mask: Bool[np.ndarray, "T S"],
) -> tuple[Float[np.ndarray, "T S"], Float[np.ndarray, "T S"], Float[np.ndarray, "T Hv"]]:
    """Steps 2 to 6 for all rows: scaled scores, weights and outputs; the mask is true for keys
    that a row may attend to.
    """
    scores = np.einsum("TH,SH->TS", query, key) / np.sqrt(query.shape[1])
    masked = np.where(mask, scores, -np.inf)
    exponentials = np.exp(masked - masked.max(1, keepdims=True))
    weights = exponentials / exponentials.sum(1, keepdims=True)
    return scores, weights, np.einsum("TS,SH->TH", weights, value)


def head_vectors(
    trace: Trace,
    heads: Iterable[tuple[str, int, int]],
    *,
    source_tokens: Sequence[str],
    target_in: Sequence[str],
    target_out: Sequence[str],
) -> list[HeadVectors]:
    """The vectors of some heads in the trace of one sentence pair.

    Args:
      trace: From `inspection.run` with ``capture="full"``.
      heads: (kind, layer, head): ``encoder``, ``decoder`` or ``cross``, and two indices.
      source_tokens: Tokens that the encoder reads.
      target_in: Tokens that the decoder reads.
      target_out: The token predicted at each of these positions.

    Raises:
      InputError: The trace has only weights, or lacks one of the heads.
    """
    tokens = {"source_tokens": source_tokens, "target_in": target_in, "target_out": target_out}
    kinds = {attention.kind: attention for attention in trace_attention_kinds(trace, **tokens)}
    vectors = []
    for kind, layer, head in heads:
        if kind not in kinds:
            raise InputError(f"{kind!r} is not one of {', '.join(kinds)}")
        attention = kinds[kind]
        layer, [head] = attention.layer_index(layer), attention.head_indices([head])
        vectors.append(
            HeadVectors(
                f"{attention.title}, layer {layer + 1}, head {head + 1}",
                attention.rows,
                attention.columns,
                **_vectors(trace.attention(kind), layer, head),
                weights=attention.weights[layer, head],
            )
        )
    return vectors


def _vectors(attention: AttentionTrace, layer: int, head: int) -> dict[str, np.ndarray]:
    if attention.z is None:
        raise InputError("the trace has only weights; capture it with capture='full'")
    return {name: np.asarray(getattr(attention, name)[layer, head]) for name in VECTORS}


def attention_steps(
    heads: Sequence[HeadVectors], *, row: int = 0, title: str = "Attention in six steps"
) -> View:
    """A walk through the computation of one row of a head, with every number.

    Args:
      heads: Heads to choose from; the first is shown first.
      row: Row shown first; may be negative.
      title: Title of the page.

    Raises:
      InputError: There is no head, or no such row.
    """
    if not heads:
        raise InputError("no head is given; give at least one, for example from head_vectors")
    first = heads[0]
    if not -len(first.rows) <= row < len(first.rows):
        raise InputError(f"row {row} does not exist: {first.title} has {len(first.rows)} rows")
    row %= len(first.rows)
    return View(
        script="attentionSteps",
        title=title,
        description=(
            f"{first.title}, row {row + 1} ({label_text(first.rows[row])}): the score of every "
            "key, divided by the square root of d_k, and the softmax."
        ),
        static=_score_table(first, row),
        options={"heads": [head.to_json() for head in heads], "row": row},
        height=800,
    )


def _score_table(head: HeadVectors, row: int) -> Html:
    """Scores, scaled scores and weights of one row."""
    scaled, weights, _ = recompute(head.query, head.key, head.value, head.weights > 0)
    scores = scaled * np.sqrt(head.query.shape[1])
    rows = []
    for column, label in enumerate(head.columns):
        values = [array[row, column] for array in (scores, scaled, weights)]
        masked = head.weights[row, column] == 0
        cells = ["masked" if masked else f"{value:.3f}" for value in values]
        rows.append([label_text(label), *cells])
    return table("One row", ["key", "q · k", "÷ √d_k", "softmax"], rows, numeric=(1, 2, 3))
