# SPDX-License-Identifier: Apache-2.0
"""Self-attention with its numbers: six steps, the matrix form, and the sum over heads.

A result of the model, if given, is compared with what is drawn.
"""

from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from transformer.arrays import Bool, Float
from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import font_weight, listed, shortened

TOLERANCE = 1e-4
"""Largest difference between the drawn and the model's result, relative to the largest value."""
COLORS = "One cell a number, blue below 0, vermilion above."
SIGN = 0.34
"""Space for an operator between two matrices."""


def _softmax(
    scores: Float[np.ndarray, "*T S"], allowed: Bool[np.ndarray, "*T S"]
) -> Float[np.ndarray, "*T S"]:
    masked = np.where(allowed, scores, -np.inf)
    exponentials = np.exp(masked - masked.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _checked_mask(sizes: Sizes, mask: ArrayLike | None) -> Bool[np.ndarray, "S S"]:
    length, _ = sizes.known["S"]
    if mask is None:
        return np.ones((length, length), bool)
    allowed = sizes.mask("mask", mask, "S S")
    if not allowed.any(-1).all():
        row = int(np.argmin(allowed.any(-1)))
        raise InputError(
            f"mask[{row}] lets query {row} attend to nothing, so it has no softmax; remove "
            "padding before drawing"
        )
    return allowed


def _check_equal(name: str, drawn: Float[np.ndarray, "..."], model: Float[np.ndarray, "..."]):
    difference = float(np.abs(drawn - model).max())
    if difference > TOLERANCE * parts.largest(model):
        raise InputError(
            f"{name} differs by {difference:.3g} from the result for these arrays; check that they "
            "are of the same layer and head, that the mask is the model's, and that it has no "
            "biases"
        )


class _Steps(NamedTuple):
    """The computation for one query of one head."""

    x: Float[np.ndarray, "S D"]
    q: Float[np.ndarray, " H"]
    k: Float[np.ndarray, "S H"]
    v: Float[np.ndarray, "S Hv"]
    allowed: Bool[np.ndarray, " S"]
    dot_products: Float[np.ndarray, " S"]
    scores: Float[np.ndarray, " S"]
    weights: Float[np.ndarray, " S"]
    weighted: Float[np.ndarray, "S Hv"]
    z: Float[np.ndarray, " Hv"]


@style.styled
def plot_attention_steps(
    x: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    query: int,
    tokens: Sequence[str],
    *,
    mask: ArrayLike | None = None,
    z: ArrayLike | None = None,
    title: str | None = None,
) -> DescribedFigure:
    """The six steps of self-attention for one query of one head, with the numbers.

    Args:
      x: [S,D], input of the sublayer.
      q: [S,H], queries.
      k: [S,H], keys.
      v: [S,Hv], values.
      query: position of the query, from 0.
      tokens: S labels.
      mask: [S,S], true where a query may attend; all true by default.
      z: [S,Hv], the model's result, which the drawn one must equal.
      title: above the figure.

    Raises:
      InputError: for shapes that do not match, a query that is out of range or may attend to
        nothing, or a result that is not the model's.
    """
    sizes = Sizes()
    x = sizes.array("x", x, "S D")
    q, k = sizes.arrays("S H", q=q, k=k)
    v = sizes.array("v", v, "S Hv")
    tokens = sizes.tokens("tokens", tokens, "S")
    query = sizes.index("query", query, "S")
    allowed = _checked_mask(sizes, mask)[query]
    dot_products = q[query] @ k.T
    scores = dot_products / np.sqrt(q.shape[1])
    weights = _softmax(scores, allowed)
    weighted = weights[:, None] * v
    steps = _Steps(
        x, q[query], k, v, allowed, dot_products, scores, weights, weighted, weighted.sum(0)
    )
    if z is not None:
        _check_equal(f"z[{query}]", steps.z, sizes.array("z", z, "S Hv")[query])

    title = title or f"Self-attention in six steps, for the query {tokens[query]!r}"
    figure = _draw_steps(steps, query, tokens, title)
    items = [
        f"{tokens[s]!r}: dot product {dot_products[s]:.2f}, divided by the square root of "
        f"{q.shape[1]} {scores[s]:.2f}, weight {weights[s]:.3f}"
        for s in np.argsort(-weights, kind="stable")[:8]
    ]
    figure.description = (
        f"{title}. 1: query, keys and values from x. 2: dot products of the query with every key. "
        "3: divided by the square root of the key size. 4: softmax. 5: values times weights. "
        f"6: their sum. The highest weights are {'; '.join(items)}."
    )
    return figure


STRIP, NUMBER, BARS = 1.25, 0.62, 1.15
"""Widths of a column of vectors, of numbers, and of weights with their bars."""


def _draw_steps(steps: _Steps, query: int, tokens: list[str], title: str) -> DescribedFigure:
    rows = len(tokens)
    row = min(max(5.5 / rows, 0.23), 0.36)
    columns = {
        "x": (STRIP, "", f"x, {steps.x.shape[1]} numbers"),
        "k": (STRIP, "1", f"keys k, {len(steps.q)}"),
        "dot products": (NUMBER, "2", "q · k"),
        "scores": (NUMBER, "3", f"÷ √{len(steps.q)}"),
        "weights": (BARS, "4", "softmax"),
        "v": (STRIP, "1", f"values v, {steps.v.shape[1]}"),
        "weighted": (STRIP, "5", "weight × v"),
    }
    top, first = 1.22, parts.label_width(tokens) + 0.1
    lefts, x = {}, first
    for name, (width, _, _) in columns.items():
        lefts[name] = x
        x += width + 0.18
    bottom = top + row * rows
    note = COLORS + ("" if steps.allowed.all() else " × : masked, so weight 0.")
    figure = parts.sheet(x, bottom + 0.62, title, note)
    for name, (width, step, text) in columns.items():
        middle = lefts[name] + width / 2
        look = {"fontsize": style.HEADING, "fontweight": "bold"}
        parts.put_text(figure.content, middle, top - 0.36, step, **look)
        look = {"fontsize": style.SMALL, "color": style.SOFT}
        parts.put_text(figure.content, middle, top - 0.15, text, **look)

    key_limit = parts.largest(steps.k, steps.q)
    result_limit = parts.largest(steps.weighted, steps.z)
    for name, column, values, y, limit in (
        ("x", "x", steps.x, top, parts.largest(steps.x)),
        ("k", "k", steps.k, top, key_limit),
        ("q", "k", steps.q[None], 0.3, key_limit),
        ("v", "v", steps.v, top, parts.largest(steps.v)),
        ("weighted", "weighted", steps.weighted, top, result_limit),
        ("result", "weighted", steps.z[None], bottom + 0.16, result_limit),
    ):
        height = row * rows if len(values) == rows and y == top else 0.26
        ax = parts.axes(figure, lefts[column], y, STRIP, height, name)
        parts.signed(ax, values, limit)
        parts.separate_rows(ax, len(values))
    name = f"'{shortened(tokens[query], 1.0, style.TEXT)}'"
    for column, y, text in (
        ("k", 0.43, f"1   query q of {name}"),
        ("weighted", bottom + 0.29, f"6   sum = z of {name}"),
    ):
        parts.put_text(figure.content, lefts[column] - 0.08, y, text, ha="right")

    size = min(style.TEXT, 72 * row * 0.6)
    for s, token in enumerate(tokens):
        y, look = top + row * (s + 0.5), {"fontweight": font_weight(token, s == query)}
        label = shortened(token, parts.LONGEST_LABEL, size)
        parts.put_text(figure.content, first - 0.06, y, label, ha="right", fontsize=size, **look)
        _write_step_numbers(figure.content, steps, s, lefts, y, size, row)
    return figure


def _write_step_numbers(
    content: Axes, steps: _Steps, s: int, lefts: dict[str, float], y: Real, size: Real, row: Real
) -> None:
    """Dot product, score and weight of one key."""
    end, bar = NUMBER - 0.08, lefts["weights"]
    texts = {
        lefts["dot products"] + end: f"{steps.dot_products[s]:.2f}",
        lefts["scores"] + end: f"{steps.scores[s]:.2f}",
        bar + 0.34: f"{steps.weights[s]:.3f}" if steps.allowed[s] else "×",
    }
    for x, text in texts.items():
        parts.put_text(content, x, y, text, ha="right", fontsize=size)
    corner, width = (bar + 0.4, y - row * 0.32), (BARS - 0.4) * steps.weights[s]
    look = {"color": style.BLUE, "linewidth": 0, "gid": f"weight {s}"}
    content.add_patch(Rectangle(corner, width, row * 0.64, **look))


class _MatrixRow:
    """A row of matrices and operators, drawn from the left."""

    def __init__(self, figure: DescribedFigure, left: Real, middle: Real):
        self.figure, self.x, self.middle = figure, left, middle

    def matrix(
        self,
        name: str,
        values: Float[np.ndarray, "rows columns"],
        size: tuple[Real, Real],
        *,
        limit: Real | None = None,
        title: str = "",
        raised: Real = 0.0,
        hidden: Bool[np.ndarray, "rows columns"] | None = None,
    ) -> Axes:
        """Draw a matrix of the given width and height; weights are those with `hidden`."""
        width, height = size
        top = self.middle - height / 2
        ax = parts.axes(self.figure, self.x, top, width, height, name)
        if hidden is None:
            parts.signed(ax, values, limit or parts.largest(values))
        else:
            parts.heat(ax, values, hidden=hidden)
        text = title or f"{name}\n{values.shape[0]}×{values.shape[1]}"
        look = {"va": "bottom", "parse_math": "$" in name}
        parts.put_text(self.figure.content, self.x + width / 2, top - 0.06 - raised, text, **look)
        self.x += width
        return ax

    def operator(self, text: str, width: Real = SIGN) -> None:
        """Write an operator."""
        x = self.x + width / 2
        parts.put_text(self.figure.content, x, self.middle, text, fontsize=10)
        self.x += width


@style.styled
def plot_attention_matrices(
    x: ArrayLike,
    wq: ArrayLike,
    wk: ArrayLike,
    wv: ArrayLike,
    tokens: Sequence[str],
    *,
    mask: ArrayLike | None = None,
    z: ArrayLike | None = None,
    title: str = "Self-attention of one head as matrix products",
) -> DescribedFigure:
    """X W^Q = Q, X W^K = K, X W^V = V, and softmax(Q K^T / √d_k) V = Z.

    An axis has the same length in every matrix. For projections without biases, as in the paper.

    Args:
      x: [S,D], input of the sublayer.
      wq: [D,H], query matrix of the head.
      wk: [D,H], its key matrix.
      wv: [D,Hv], its value matrix.
      tokens: S labels.
      mask: [S,S], true where a query may attend; all true by default.
      z: [S,Hv], the model's result, which the drawn one must equal.
      title: above the figure.

    Raises:
      InputError: for shapes that do not match, a query that may attend to nothing, or a result that
        is not the model's.
    """
    sizes = Sizes()
    x = sizes.array("x", x, "S D")
    wq, wk = sizes.arrays("D H", wq=wq, wk=wk)
    wv = sizes.array("wv", wv, "D Hv")
    tokens = sizes.tokens("tokens", tokens, "S")
    allowed = _checked_mask(sizes, mask)
    q, k, v = x @ wq, x @ wk, x @ wv
    weights = _softmax(q @ k.T / np.sqrt(wq.shape[1]), allowed)
    result = weights @ v
    if z is not None:
        _check_equal("z", result, sizes.array("z", z, "S Hv"))

    s = min(max(0.15 * len(tokens), 0.9), 3.3)
    d = min(max(0.05 * x.shape[1], 1.2), 2.2)
    h, hv = (min(max(0.07 * each.shape[1], 0.6), 1.1) for each in (wq, wv))
    size = min(style.TEXT, 72 * s / len(tokens) * 0.8)
    left = parts.label_width(tokens, size) + 0.12
    raised = parts.label_height(tokens, s / len(tokens), size)
    separator, softmax_width = 0.62, SIGN + 0.7
    first, second = 0.45 + max(s, d) / 2, 0.45 + max(s, d) + 0.6 + raised + max(s, h) / 2
    width = max(
        left + d + 2 * (2 * h + hv) + 4 * SIGN + 2 * separator,
        left + h + 2 * s + 2 * hv + 3 * SIGN + softmax_width,
    )
    note = (
        f"{COLORS} Weights from dark (0) to yellow (1). An axis has the same length in every "
        "matrix."
    )
    figure = parts.sheet(width, second + max(s, h) / 2 + 0.1, title, note)

    row = _MatrixRow(figure, left, first)
    parts.row_labels(row.matrix("X", x, (d, s)), tokens, size)
    for name, kernel, output, across in (("Q", wq, q, h), ("K", wk, k, h), ("V", wv, v, hv)):
        row.operator("×" if name == "Q" else ",   X ×", SIGN if name == "Q" else separator)
        row.matrix(f"$W^{name}$", kernel, (across, d))
        row.operator("=")
        row.matrix(name, output, (across, s))
    row = _MatrixRow(figure, left, second)
    parts.row_labels(row.matrix("Q", q, (h, s)), tokens, size)
    row.operator("×")
    row.matrix("Kᵀ", k.T, (s, h))
    row.operator(f"→ ÷ √{wq.shape[1]},\nsoftmax →", softmax_width)
    ax = row.matrix("weights", weights, (s, s), raised=raised, hidden=~allowed)
    parts.column_labels(ax, tokens, size)
    row.operator("×")
    row.matrix("V", v, (hv, s))
    row.operator("=")
    row.matrix("Z", result, (hv, s))
    figure.description = (
        f"{title}, {len(tokens)} tokens. X, {len(tokens)} by {x.shape[1]}, times W^Q, W^K and W^V "
        f"gives Q, K ({wq.shape[1]} columns) and V ({wv.shape[1]}); the softmax of Q K^T divided "
        f"by the square root of {wq.shape[1]}, {len(tokens)} by {len(tokens)}, times V gives Z."
    )
    return figure


@style.styled
def plot_head_assembly(
    z: ArrayLike,
    wo: ArrayLike,
    tokens: Sequence[str],
    *,
    output: ArrayLike | None = None,
    title: str = "Concatenated heads times the output matrix are a sum over heads",
) -> DescribedFigure:
    """Concat(z_1, ..., z_N) W^O, and the same as z_1 W^O_1 + ... + z_N W^O_N.

    Args:
      z: [N,T,Hv], weighted values of every head.
      wo: [N,Hv,D], rows of W^O of every head.
      tokens: T labels.
      output: [T,D], the model's output without bias, which the drawn one must equal.
      title: above the figure.

    Raises:
      InputError: for shapes that do not match, or an output that is not the model's.
    """
    sizes = Sizes()
    z = sizes.array("z", z, "N T Hv")
    wo = sizes.array("wo", wo, "N Hv D")
    tokens = sizes.tokens("tokens", tokens, "T")
    heads = np.einsum("NTH,NHD->NTD", z, wo)
    total = heads.sum(0)
    if output is not None:
        _check_equal("output", total, sizes.array("output", output, "T D"))

    norms = np.linalg.norm(heads, axis=-1).mean(-1)
    shares = norms / (norms.sum() or 1)
    figure = _draw_assembly(z, wo, heads, shares, tokens, title)
    items = [f"head {head + 1} {share:.0%}" for head, share in enumerate(shares)]
    count, length, size = z.shape
    figure.description = (
        f"{title}: {count} heads of {size} columns over {length} tokens times a matrix of "
        f"{count * size} by {wo.shape[-1]} give the sublayer's output, which is the sum of every "
        f"head times its rows of that matrix. Shares by mean norm: {listed(items, 16)}."
    )
    return figure


def _draw_assembly(
    z: Float[np.ndarray, "N T Hv"],
    wo: Float[np.ndarray, "N Hv D"],
    heads: Float[np.ndarray, "N T D"],
    shares: Float[np.ndarray, " N"],
    tokens: list[str],
    title: str,
) -> DescribedFigure:
    count, length, head_size = z.shape
    total = heads.sum(0)
    concatenated = z.swapaxes(0, 1).reshape(length, -1)
    height = min(max(0.15 * length, 0.9), 3.3)
    size = min(style.TEXT, 72 * height / length * 0.8)
    left = parts.label_width(tokens, size) + 0.12
    inner, outer = min(max(0.03 * count * head_size, 1.6), 3.2), 1.35
    first = 0.55 + max(height, inner) / 2
    second = 0.55 + max(height, inner) + 0.55
    abreast, step = min(count, 6), height + 0.62
    lines = -(-count // abreast)
    width = max(left + 2 * outer + inner + 2 * SIGN, left + abreast * (outer + SIGN) + outer)
    note = f"{COLORS} Under each head: its share of the mean norms."
    figure = parts.sheet(width, second + lines * step - 0.1, title, note)

    row = _MatrixRow(figure, left, first)
    borders = np.arange(1, count) * head_size - 0.5
    text = f"z₁ … z{''.join('₀₁₂₃₄₅₆₇₈₉'[int(digit)] for digit in str(count))} concatenated"
    text += f"\n{length}×{count * head_size}"
    ax = row.matrix("z", concatenated, (inner, height), title=text)
    ax.vlines(borders, *ax.get_ylim(), color=style.INK, linewidth=0.8)
    parts.row_labels(ax, tokens, size)
    row.operator("×")
    ax = row.matrix("$W^O$", wo.reshape(-1, wo.shape[-1]), (outer, inner))
    ax.hlines(borders, *ax.get_xlim(), color=style.INK, linewidth=0.8)
    row.operator("=")
    limit = parts.largest(heads, total)
    row.matrix("output", total, (outer, height), limit=limit)
    for head in range(count):
        line, column = divmod(head, abreast)
        if column == 0:
            row = _MatrixRow(figure, left, second + line * step + height / 2)
        name, x = f"head {head + 1}", row.x + outer / 2
        ax = row.matrix(name, heads[head], (outer, height), limit=limit, title=name)
        if column == 0:
            parts.row_labels(ax, tokens, size)
        y, look = row.middle + height / 2 + 0.11, {"fontsize": style.SMALL, "color": style.SOFT}
        parts.put_text(figure.content, x, y, f"{shares[head]:.0%}", **look)
        row.operator("=" if head == count - 1 else "+")
    row.matrix("sum", total, (outer, height), limit=limit, title="output")
    return figure
