# SPDX-License-Identifier: Apache-2.0
"""Self-attention in six steps, with every number of one row of a head."""

import dataclasses
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from transformer.errors import InputError
from transformer.inspection.views import number_packing, picture
from transformer.inspection.views.attention_data import TITLES, Label, families_of
from transformer.inspection.views.view import View
from transformer.nn.capture import AttentionTrace, Trace

TOLERANCE = 1e-3
"""How far numbers computed again may be from the model's, as a share of the largest or of 1; with
numbers of 16 bits, twice their rounding.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """One head's vectors, and what the model made of them."""

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
    """``[T,S]``, after the softmax; a key whose weight is exactly 0 was masked."""
    z: np.ndarray
    """``[T,Hv]``: the model's own result, for comparison."""

    def __post_init__(self):
        """Holds the numbers to each other.

        Raises:
          InputError: when shapes do not fit, or query, key and weights are not of one pass.
        """
        tolerance = TOLERANCE
        for name in ("query", "key", "value", "weights", "z"):
            array = np.asarray(getattr(self, name))
            if jnp.issubdtype(array.dtype, jnp.floating):
                tolerance = max(tolerance, 2 * float(jnp.finfo(array.dtype).eps))
            array = array.astype(np.float64)
            if array.ndim != 2 or not np.isfinite(array).all():
                raise InputError(f"{self.title}: {name} is not a matrix of finite numbers")
            object.__setattr__(self, name, array)
        given = {n: getattr(self, n).shape for n in ("query", "key", "value", "weights", "z")}
        (t, h), (s, hv) = self.query.shape, self.value.shape
        needed = {"query": (t, h), "key": (s, h), "value": (s, hv), "weights": (t, s), "z": (t, hv)}
        if given != needed or (t, s) != (len(self.rows), len(self.columns)):
            raise InputError(
                f"{self.title}: the shapes {given} do not fit together and to {len(self.rows)} "
                f"rows and {len(self.columns)} columns; see the fields of this class"
            )
        scaled, weights, z = recomputed(self.query, self.key, self.value, self.weights > 0)
        for name, ours, theirs in (("weights", weights, self.weights), ("z", z, self.z)):
            largest = np.abs(ours - theirs).max()
            if not largest <= tolerance * max(1, np.abs(theirs).max()):
                raise InputError(
                    f"{self.title}: {name} recomputed from query, key and value differ by "
                    f"{largest:.3g} from those given; give the values of one forward pass"
                )

    @property
    def numbers(self) -> int:
        """How many numbers a page holds of it."""
        return self.query.size + self.key.size + self.value.size + self.z.size

    def packed(self) -> dict[str, object]:
        """What a page's script reads: the vectors in single precision, which is all they have."""
        arrays = {name: getattr(self, name) for name in ("query", "key", "value", "z")}
        masked = (self.weights == 0).astype(int)
        return {
            "title": self.title,
            "rows": self.rows,
            "columns": self.columns,
            "widths": [self.query.shape[1], self.value.shape[1]],
            "masked": ["".join(map(str, row)) for row in masked.tolist()],
            **{name: number_packing.floats(array) for name, array in arrays.items()},
        }


def recomputed(
    query: Float[np.ndarray, "T H"],
    key: Float[np.ndarray, "S H"],
    value: Float[np.ndarray, "S Hv"],
    allowed: Bool[np.ndarray, "T S"],
) -> tuple[Float[np.ndarray, "T S"], Float[np.ndarray, "T S"], Float[np.ndarray, "T Hv"]]:
    """Steps 2 to 6 for all rows: scores over the root of d_k, their softmax, and z."""
    scaled = np.einsum("TH,SH->TS", query, key) / np.sqrt(query.shape[1])
    masked = np.where(allowed, scaled, -np.inf)
    exponentials = np.exp(masked - masked.max(1, keepdims=True))
    weights = exponentials / exponentials.sum(1, keepdims=True)
    return scaled, weights, np.einsum("TS,SH->TH", weights, value)


def heads_of(
    trace: Trace,
    which: Iterable[tuple[str, int, int]],
    *,
    source_tokens: Sequence[str],
    target_in: Sequence[str],
    target_out: Sequence[str],
) -> list[Head]:
    """Heads of the full trace of one sentence pair.

    Args:
      trace: captured in full.
      which: (kind, layer, head): ``encoder``, ``decoder`` or ``cross``, and two places from 0.
      source_tokens: what the encoder reads.
      target_in: what the decoder reads.
      target_out: what is predicted at each of these positions.

    Raises:
      InputError: when the trace has weights alone, or lacks one of these heads.
    """
    tokens = {"source_tokens": source_tokens, "target_in": target_in, "target_out": target_out}
    families = {family.kind: family for family in families_of(trace, **tokens)}
    heads = []
    for kind, layer, head in which:
        if kind not in families:
            raise InputError(f"{kind!r} is not one of {', '.join(families)}")
        family = families[kind]
        layer, [head] = family.layer(layer), family.heads([head])
        heads.append(
            Head(
                f"{TITLES[kind]}, layer {layer + 1}, head {head + 1}",
                family.rows,
                family.columns,
                **_vectors(trace.attention(kind), layer, head),
                weights=family.weights[layer, head],
            )
        )
    return heads


def _vectors(attention: AttentionTrace, layer: int, head: int) -> dict[str, np.ndarray]:
    if attention.z is None:
        raise InputError("the trace has weights alone; capture it with capture='full'")
    return {
        name: np.asarray(getattr(attention, name)[layer, head])
        for name in ("query", "key", "value", "z")
    }


def steps(heads: Sequence[Head], *, row: int = 0, title: str = "Attention in six steps") -> View:
    """A walk through the computation of one row of a head, every number shown.

    Args:
      heads: to choose among; the first is shown first.
      row: chosen first.
      title: of the page.

    Raises:
      InputError: when there is no head or no such row.
    """
    if not heads:
        raise InputError("no head is given; give at least one, for example from heads_of")
    first = heads[0]
    if not -len(first.rows) <= row < len(first.rows):
        raise InputError(f"row {row} does not exist: {first.title} has {len(first.rows)} rows")
    row %= len(first.rows)
    told = (
        f"{first.title}, row {row + 1} ({picture.joined(first.rows[row])}): the score of every "
        "key, over the root of d_k, and its softmax."
    )
    return View(
        kind="steps",
        title=title,
        told=told,
        picture=_table(first, row, told),
        options={"heads": [head.packed() for head in heads], "row": row},
        height=800,
    )


def _table(head: Head, row: int, told: str):
    """Scores, scaled scores and weights of one row, as a drawing."""
    scaled, weights, _ = recomputed(head.query, head.key, head.value, head.weights > 0)
    scores = scaled[row] * np.sqrt(head.query.shape[1])
    places = (150, 230, 310, 390)
    names = ("key", "q · k", "÷ √d_k", "softmax")
    drawing = [
        picture.text(name, x, 12, 75, text_anchor="end", font_weight="700")
        for name, x in zip(names, places, strict=True)
    ]
    for column, label in enumerate(head.columns):
        y, masked = 34 + 20 * column, head.weights[row, column] == 0
        values = (scores[column], scaled[row, column], weights[row, column])
        cells = ["masked" if masked else f"{value:.3f}" for value in values]
        drawing.append(picture.text(picture.joined(label), 140, y, 135, text_anchor="end"))
        drawing += [
            picture.text(cell, x, y, 75, text_anchor="end")
            for cell, x in zip(cells, places[1:], strict=True)
        ]
        drawing.append(picture.rect(400, y - 8, 150 * weights[row, column], 16, picture.MORE, 0.6))
    return picture.svg(560, 34 + 20 * len(head.columns), told, *drawing)
