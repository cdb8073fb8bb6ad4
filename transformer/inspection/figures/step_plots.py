# SPDX-License-Identifier: Apache-2.0
"""Self-attention with its numbers: the six steps, the matrix form, and heads times W^O as a sum."""

from collections.abc import Sequence

import numpy as np
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from transformer.arrays import Bool, Float
from transformer.errors import InputError
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.figure_checks import Sizes
from transformer.inspection.figures.style import Picture

TOLERANCE = 1e-4
"""By how much, relative to the largest value, what is drawn may differ from the model's own."""


def _softmax(
    scores: Float[np.ndarray, "T S"], allowed: Bool[np.ndarray, "T S"]
) -> Float[np.ndarray, "T S"]:
    shifted = np.where(allowed, scores, -np.inf)
    shares = np.exp(shifted - shifted.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def _allowed(sizes: Sizes, mask: ArrayLike | None, length: int) -> Bool[np.ndarray, "S S"]:
    if mask is None:
        return np.ones((length, length), bool)
    allowed = sizes.mask("mask", mask, "S S")
    if not allowed.any(-1).all():
        row = int(np.argmin(allowed.any(-1)))
        raise InputError(
            f"mask[{row}] lets query {row} attend to nothing, so that it has no softmax; cut "
            "padding off before drawing"
        )
    return allowed


def _check_equal(name: str, drawn: Float[np.ndarray, "..."], model: Float[np.ndarray, "..."]):
    gap = float(np.abs(drawn - model).max())
    if gap > TOLERANCE * parts.largest(model):
        raise InputError(
            f"{name} differs by {gap:.3g} from what these arrays give; check that they are of the "
            "same layer and head, that the mask is the model's, and that it has no biases"
        )


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
) -> Picture:
    """The six steps of self-attention for one query of one head, with the numbers.

    Args:
      x: [S,D], what the sub-layer reads.
      q: [S,H], the queries.
      k: [S,H], the keys.
      v: [S,Hv], the values.
      query: which position asks, from 0.
      tokens: S labels.
      mask: [S,S], true where a query may attend; everything unless given.
      z: [S,Hv], the model's own result, which the drawn one must equal.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, a query that is not there or may attend to
        nothing, or a result that is not the model's.
    """
    sizes = Sizes()
    x = sizes.array("x", x, "S D")
    q, k = sizes.array("q", q, "S H"), sizes.array("k", k, "S H")
    v = sizes.array("v", v, "S Hv")
    tokens = sizes.tokens("tokens", tokens, "S")
    query = sizes.index("query", query, "S")
    allowed = _allowed(sizes, mask, len(tokens))
    products = q[query] @ k.T
    scores = products / np.sqrt(q.shape[1])
    weights = _softmax(scores[None], allowed[query][None])[0]
    weighted = weights[:, None] * v
    result = weighted.sum(0)
    if z is not None:
        _check_equal(f"z[{query}]", result, sizes.array("z", z, "S Hv")[query])

    title = title or f"Self-attention in six steps, for the query {tokens[query]!r}"
    note = (
        "Strips: one cell a dimension, blue below 0, vermilion above. × : the mask, so weight 0."
        if not allowed[query].all()
        else "Strips: one cell a dimension, blue below 0, vermilion above."
    )
    picture = _steps_picture(
        (x, q[query], k, v, weighted, result),
        (products, scores, weights),
        (allowed[query], query, tokens),
        (title, note, q.shape[1]),
    )
    order = np.argsort(-weights, kind="stable")[:8]
    told = [
        f"{tokens[s]!r}: product {products[s]:.2f}, divided by the square root of {q.shape[1]} "
        f"{scores[s]:.2f}, weight {weights[s]:.3f}"
        for s in order
    ]
    picture.description = (
        f"{title}. 1: query, keys and values from x. 2: products of the query with every key. "
        f"3: divided by the square root of the key size. 4: softmax. 5: values times weights. "
        f"6: their sum. The highest weights are {'; '.join(told)}."
    )
    return picture


def _steps_picture(strips, numbers, place, words) -> Picture:
    x, asked, k, v, weighted, result = strips
    products, scores, weights = numbers
    allowed, query, tokens = place
    title, note, key_size = words
    rows = len(tokens)
    row = min(max(5.5 / rows, 0.23), 0.36)
    left = parts.label_width(tokens, 8) + 0.1
    strip, number, gap = 1.25, 0.62, 0.18
    columns, at = {}, left
    for name, width in (
        ("x", strip),
        ("k", strip),
        ("products", number),
        ("scores", number),
        ("weights", 1.15),
        ("v", strip),
        ("weighted", strip),
    ):
        columns[name] = (at, width)
        at += width + gap
    top = 1.22
    bottom = top + row * rows
    height = bottom + 0.62
    picture = style.sheet(at, height, title, note)
    content = style.canvas(picture, at, height)

    def head(name: str, step: str, text: str) -> None:
        middle = columns[name][0] + columns[name][1] / 2
        parts.unit_text(content, middle, top - 0.36, step, fontsize=9, fontweight="bold")
        parts.unit_text(content, middle, top - 0.15, text, fontsize=7.5, color=style.SOFT)

    head("x", "", f"x, {x.shape[1]} numbers")
    head("k", "1", f"keys k, {k.shape[1]}")
    head("products", "2", "q · k")
    head("scores", "3", f"÷ √{key_size}")
    head("weights", "4", "softmax")
    head("v", "1", f"values v, {v.shape[1]}")
    head("weighted", "5", "weight × v")

    def band(name, values, top, height, most):
        ax = style.axes(picture, columns[name][0], top, columns[name][1], height)
        ax.set_label(name)
        image = parts.signed(ax, values, most)
        parts.lines_between_rows(ax, len(values))
        return image

    band("x", x, top, row * rows, parts.largest(x))
    most = parts.largest(k, asked)
    band("k", k, top, row * rows, most)
    columns["q"] = columns["k"]
    band("q", asked[None], 0.3, 0.26, most)
    columns["result"] = columns["weighted"]
    band("v", v, top, row * rows, parts.largest(v))
    most = parts.largest(weighted, result)
    band("weighted", weighted, top, row * rows, most)
    band("result", result[None], bottom + 0.16, 0.26, most)

    small = {"fontsize": min(8.0, 72 * row * 0.6)}
    query_left = columns["q"][0]
    asking = f"'{style.shortened(tokens[query], 1.0, 8)}'"
    parts.unit_text(content, query_left - 0.08, 0.43, f"1   query q of {asking}", ha="right")
    parts.unit_text(
        content,
        columns["result"][0] - 0.08,
        bottom + 0.29,
        f"6   sum = z of {asking}",
        ha="right",
    )
    bar_left, bar_width = columns["weights"]
    for s, token in enumerate(tokens):
        y = top + row * (s + 0.5)
        look = {"fontweight": style.weight(token, s == query)}
        label = style.shortened(token, parts.LONGEST_LABEL, small["fontsize"])
        parts.unit_text(content, left - 0.06, y, label, ha="right", **small, **look)
        for name, values in (("products", products), ("scores", scores)):
            end = columns[name][0] + number - 0.08
            parts.unit_text(content, end, y, f"{values[s]:.2f}", ha="right", **small)
        if allowed[s]:
            parts.unit_text(content, bar_left + 0.34, y, f"{weights[s]:.3f}", ha="right", **small)
            content.add_patch(
                Rectangle(
                    (bar_left + 0.4, y - row * 0.32),
                    (bar_width - 0.4) * weights[s],
                    row * 0.64,
                    color=style.BLUE,
                    linewidth=0,
                    gid=f"weight {s}",
                )
            )
        else:
            parts.unit_text(content, bar_left + 0.34, y, "×", ha="right", **small)
    return picture


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
    title: str = "Self-attention of one head as products of matrices",
) -> Picture:
    """X W^Q = Q, X W^K = K, X W^V = V, and softmax(Q K^T / √d_k) V = Z.

    The same axis has the same length wherever it occurs. For projections without biases, which are
    the paper's.

    Args:
      x: [S,D], what the sub-layer reads.
      wq: [D,H], the head's query matrix.
      wk: [D,H], its key matrix.
      wv: [D,Hv], its value matrix.
      tokens: S labels.
      mask: [S,S], true where a query may attend; everything unless given.
      z: [S,Hv], the model's own result, which the drawn one must equal.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, a query that may attend to nothing, or a
        result that is not the model's.
    """
    sizes = Sizes()
    x = sizes.array("x", x, "S D")
    wq, wk = sizes.array("wq", wq, "D H"), sizes.array("wk", wk, "D H")
    wv = sizes.array("wv", wv, "D Hv")
    tokens = sizes.tokens("tokens", tokens, "S")
    allowed = _allowed(sizes, mask, len(tokens))
    q, k, v = x @ wq, x @ wk, x @ wv
    weights = _softmax(q @ k.T / np.sqrt(wq.shape[1]), allowed)
    result = weights @ v
    if z is not None:
        _check_equal("z", result, sizes.array("z", z, "S Hv"))

    span = {
        "S": min(max(0.15 * len(tokens), 0.9), 3.3),
        "D": min(max(0.05 * x.shape[1], 1.2), 2.2),
        "H": min(max(0.07 * wq.shape[1], 0.6), 1.1),
        "Hv": min(max(0.07 * wv.shape[1], 0.6), 1.1),
    }
    size = min(8.0, 72 * span["S"] / len(tokens) * 0.8)
    left = parts.label_width(tokens, size) + 0.12
    top = 0.45
    row_height = max(span["S"], span["D"])
    keys_height = parts.label_height(tokens, span["S"] / len(tokens), size)
    second = top + row_height + 0.6 + keys_height
    sign, again = 0.34, 0.62
    width = left + span["D"] + 2 * (2 * span["H"] + span["Hv"]) + 4 * sign + 2 * again
    below = left + span["H"] + 2 * span["S"] + 2 * span["Hv"] + 4 * sign + 0.9
    width = max(width, below)
    height = second + max(span["S"], span["H"]) + 0.1
    note = (
        "One cell a number, blue below 0, vermilion above; weights from dark (0) to yellow (1). "
        "An axis has the same length wherever it occurs."
    )
    picture = style.sheet(width, height, title, note)
    content = style.canvas(picture, width, height)

    def matrix(name, values, at, middle, axes_of, weights=False, hidden=None):
        wide, high = span[axes_of[1]], span[axes_of[0]]
        ax = style.axes(picture, at, middle - high / 2, wide, high)
        ax.set_label(name)
        if weights:
            parts.heat(ax, values, hidden=hidden)
        else:
            parts.signed(ax, values, parts.largest(values))
        said = f"{name}\n{values.shape[0]}×{values.shape[1]}"
        above = middle - high / 2 - 0.06 - (keys_height if weights else 0.0)
        look = {"fontsize": 8, "va": "bottom", "parse_math": "$" in name}
        parts.unit_text(content, at + wide / 2, above, said, **look)
        return ax, at + wide

    def operator(text, at, middle, space=sign):
        parts.unit_text(content, at + space / 2, middle, text, fontsize=10)
        return at + space

    middle = top + row_height / 2
    ax, at = matrix("X", x, left, middle, ("S", "D"))
    parts.row_labels(ax, tokens, size)
    for name, kernel, product, h in (("Q", wq, q, "H"), ("K", wk, k, "H"), ("V", wv, v, "Hv")):
        at = operator("×" if name == "Q" else ",   X ×", at, middle, sign if name == "Q" else again)
        _, at = matrix(f"$W^{name}$", kernel, at, middle, ("D", h))
        at = operator("=", at, middle)
        _, at = matrix(name, product, at, middle, ("S", h))

    middle = second + max(span["S"], span["H"]) / 2
    ax, at = matrix("Q", q, left, middle, ("S", "H"))
    parts.row_labels(ax, tokens, size)
    at = operator("×", at, middle)
    _, at = matrix("Kᵀ", k.T, at, middle, ("H", "S"))
    at = operator(f"→ ÷ √{wq.shape[1]},\nsoftmax →", at, middle, sign + 0.7)
    ax, at = matrix("weights", weights, at, middle, ("S", "S"), weights=True, hidden=~allowed)
    parts.column_labels(ax, tokens, size)
    at = operator("×", at, middle)
    _, at = matrix("V", v, at, middle, ("S", "Hv"))
    at = operator("=", at, middle)
    matrix("Z", result, at, middle, ("S", "Hv"))
    picture.description = (
        f"{title}, {len(tokens)} tokens. X, {len(tokens)} by {x.shape[1]}, times W^Q, W^K and W^V "
        f"gives Q, K ({wq.shape[1]} columns) and V ({wv.shape[1]}); the softmax of Q K^T divided "
        f"by the square root of {wq.shape[1]}, {len(tokens)} by {len(tokens)}, times V gives Z."
    )
    return picture


@style.styled
def plot_head_assembly(
    z: ArrayLike,
    wo: ArrayLike,
    tokens: Sequence[str],
    *,
    output: ArrayLike | None = None,
    title: str = "Heads side by side, times the output matrix, are a sum of heads",
) -> Picture:
    """Concat(z_1, ..., z_N) W^O, and the same as z_1 W^O_1 + ... + z_N W^O_N.

    Args:
      z: [N,T,Hv], every head's mixed values.
      wo: [N,Hv,D], every head's rows of W^O.
      tokens: T labels.
      output: [T,D], the model's own output without bias, which the drawn one must equal.
      title: above the figure.

    Raises:
      InputError: for shapes that do not belong together, or an output that is not the model's.
    """
    sizes = Sizes()
    z = sizes.array("z", z, "N T Hv")
    wo = sizes.array("wo", wo, "N Hv D")
    tokens = sizes.tokens("tokens", tokens, "T")
    each = np.einsum("NTH,NHD->NTD", z, wo)
    total = each.sum(0)
    if output is not None:
        _check_equal("output", total, sizes.array("output", output, "T D"))
    heads, length, head_size = z.shape
    together = z.swapaxes(0, 1).reshape(length, -1)
    kernel = wo.reshape(-1, wo.shape[-1])

    high = min(max(0.15 * length, 0.9), 3.3)
    size = min(8.0, 72 * high / length * 0.8)
    left = parts.label_width(tokens, size) + 0.12
    inner = min(max(0.03 * heads * head_size, 1.6), 3.2)
    outer = 1.35
    sign, top = 0.34, 0.55
    middle = top + max(high, inner) / 2
    second = top + max(high, inner) + 0.55
    in_row = min(heads, 6)
    rows = -(-heads // in_row)
    row_step = high + 0.62
    width = max(left + 2 * outer + inner + 2 * sign, left + in_row * (outer + sign) + outer)
    height = second + rows * row_step - 0.1
    note = (
        "One cell a number, blue below 0, vermilion above. Under each head: its share of the "
        "vectors' mean lengths."
    )
    picture = style.sheet(width, height, title, note)
    content = style.canvas(picture, width, height)

    def matrix(name, values, at, top, wide, high, most, said=None):
        ax = style.axes(picture, at, top, wide, high)
        ax.set_label(name)
        parts.signed(ax, values, most)
        said = said or f"{name}\n{values.shape[0]}×{values.shape[1]}"
        look = {"fontsize": 8, "va": "bottom", "parse_math": "$" in said}
        parts.unit_text(content, at + wide / 2, top - 0.05, said, **look)
        return ax

    at = left
    beside = "z₁ … z" + "".join("₀₁₂₃₄₅₆₇₈₉"[int(digit)] for digit in str(heads))
    ax = matrix(
        "z",
        together,
        at,
        middle - high / 2,
        inner,
        high,
        parts.largest(z),
        f"{beside} side by side\n{length}×{together.shape[1]}",
    )
    parts.row_labels(ax, tokens, size)
    ax.vlines(np.arange(1, heads) * head_size - 0.5, -0.5, length - 0.5, color=style.INK, lw=0.8)
    at += inner
    parts.unit_text(content, at + sign / 2, middle, "×", fontsize=10)
    at += sign
    ax = matrix("$W^O$", kernel, at, middle - inner / 2, outer, inner, parts.largest(wo))
    ax.hlines(np.arange(1, heads) * head_size - 0.5, *ax.get_xlim(), color=style.INK, lw=0.8)
    at += outer
    parts.unit_text(content, at + sign / 2, middle, "=", fontsize=10)
    most = parts.largest(each, total)
    matrix("output", total, at + sign, middle - high / 2, outer, high, most)

    norms = np.linalg.norm(each, axis=-1).mean(-1)
    shares = norms / (norms.sum() or 1)
    for head in range(heads):
        row, column = divmod(head, in_row)
        at = left + column * (outer + sign)
        here = second + row * row_step
        ax = matrix(f"head {head + 1}", each[head], at, here, outer, high, most, f"head {head + 1}")
        if column == 0:
            parts.row_labels(ax, tokens, size)
        parts.unit_text(
            content,
            at + outer / 2,
            here + high + 0.11,
            f"{shares[head]:.0%}",
            fontsize=7.5,
            color=style.SOFT,
        )
        last = head == heads - 1
        parts.unit_text(
            content, at + outer + sign / 2, here + high / 2, "=" if last else "+", fontsize=10
        )
    matrix(
        "sum",
        total,
        left + ((heads - 1) % in_row + 1) * (outer + sign),
        second + (rows - 1) * row_step,
        outer,
        high,
        most,
        "output",
    )
    told = [f"head {n + 1} {share:.0%}" for n, share in enumerate(shares)]
    picture.description = (
        f"{title}: {heads} heads of {head_size} columns over {length} tokens times a matrix of "
        f"{kernel.shape[0]} by {kernel.shape[1]} give the sub-layer's output, which is the sum of "
        f"every head times its own rows of that matrix. Shares by mean length: "
        f"{parts.list_of(told, 16)}."
    )
    return picture
