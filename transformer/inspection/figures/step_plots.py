# SPDX-License-Identifier: Apache-2.0
"""Self-attention with its numbers: six steps, the matrix form, and the sum over heads.

A result of the model, if given, is compared with what is drawn.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from transformer.arrays import Bool, Float
from transformer.errors import InputError
from transformer.inspection.argument_checks import Sizes, check_equal
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.parts import signed_panel
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, shortened

ABREAST = 4
"""Heads beside each other."""
COLORS = "One cell a number: white at 0, blue above, vermilion below."


def softmax(
    scores: Float[np.ndarray, "*T S"], allowed: Bool[np.ndarray, "*#T S"]
) -> Float[np.ndarray, "*T S"]:
    """Softmax over the last axis of the scores that are allowed."""
    masked = np.where(allowed, scores, -np.inf)
    exponentials = np.exp(masked - masked.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def checked_mask(sizes: Sizes, mask: ArrayLike | None) -> Bool[np.ndarray, "S S"]:
    """The mask, which lets every query attend to something; all true by default."""
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
    """
    sizes = Sizes()
    x = sizes.array("x", x, "S D")
    q, k = sizes.arrays("S H", q=q, k=k)
    v = sizes.array("v", v, "S Hv")
    tokens = sizes.tokens("tokens", tokens, "S")
    query = sizes.index("query", query, "S")
    allowed = checked_mask(sizes, mask)[query]
    dot_products = q[query] @ k.T
    scores = dot_products / np.sqrt(q.shape[1])
    weights = softmax(scores, allowed)
    weighted = weights[:, None] * v
    result = weighted.sum(0)
    if z is not None:
        check_equal(f"z[{query}]", result, sizes.array("z", z, "S Hv")[query])

    title = title or f"Self-attention in six steps, for the query {tokens[query]!r}"
    height = min(max(4.5 / len(tokens), 0.18), 0.3)
    strip, number = (1.25, height * len(tokens)), (0.6, height * len(tokens))
    key_limit, result_limit = parts.largest(k, q[query]), parts.largest(weighted, result)
    name = f"'{shortened(tokens[query], 1.0, style.TEXT)}'"
    numbers = {
        "dot products": ("2\nq · k", dot_products),
        "scores": (f"3\n÷ √{q.shape[1]}", scores),
    }
    columns = [
        signed_panel("x", f"x, {x.shape[1]} numbers", x, strip, rows=tokens, legend=""),
        signed_panel("k", f"1\nkeys, {k.shape[1]}", k, strip, limit=key_limit, legend=""),
        *(
            signed_panel(each, text, values[:, None], number)
            for each, (text, values) in numbers.items()
        ),
        parts.Panel(
            values=weights[:, None],
            cell=(0.6, height),
            name="weights",
            heading="4\nsoftmax",
            hidden=~allowed[:, None],
        ),
        signed_panel("v", f"1\nvalues, {v.shape[1]}", v, strip, legend=""),
        signed_panel("weighted", "5\nweight × v", weighted, strip, limit=result_limit, legend=""),
    ]
    one = (1.25, 0.26)
    rows = [
        [signed_panel("q", f"1   query of {name}", q[query][None], one, limit=key_limit)],
        columns,
        [signed_panel("result", f"6   sum = z of {name}", result[None], one, limit=result_limit)],
    ]
    note = COLORS + ("" if allowed.all() else " × : masked, so weight 0.")
    figure, images = parts.draw_panels(rows, title=title, note=note, apart=0.16)
    for image in images:
        if image.axes.get_label() in ("dot products", "scores"):
            parts.write_numbers(image)
        if image.axes.get_label() == "weights":
            parts.write_numbers(image, "{:.3f}")
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
    """Q = X W^Q, K = X W^K, V = X W^V, and Z = softmax(Q K^T / √d_k) V.

    An axis has the same length in every matrix. For projections without biases, as in the paper.

    Args:
      x: [S,D], input of the sublayer.
      wq: [D,H], query matrix of the head.
      wk: [D,H], its key matrix.
      wv: [D,Hv], its value matrix.
      tokens: S labels.
      mask: [S,S], true where a query may attend; all true by default.
      z: [S,Hv], the model's result, which the drawn one must equal.
    """
    sizes = Sizes()
    x = sizes.array("x", x, "S D")
    wq, wk = sizes.arrays("D H", wq=wq, wk=wk)
    wv = sizes.array("wv", wv, "D Hv")
    tokens = sizes.tokens("tokens", tokens, "S")
    allowed = checked_mask(sizes, mask)
    q, k, v = x @ wq, x @ wk, x @ wv
    weights = softmax(q @ k.T / np.sqrt(wq.shape[1]), allowed)
    result = weights @ v
    if z is not None:
        check_equal("z", result, sizes.array("z", z, "S Hv"))

    s = min(max(parts.SMALLEST_CELL * len(tokens), 0.9), 2.7)
    d = min(max(0.05 * x.shape[1], 1.2), 1.9)
    h, hv = (min(max(0.07 * each.shape[1], 0.6), 0.8) for each in (wq, wv))
    of_kernels, of_results = (parts.common(*each)[0] for each in ((wq, wk, wv), (q, k, v)))
    first = [_matrix("X", "X", x, (d, s), rows=tokens)]
    for name, kernel, output, across in (("Q", wq, q, h), ("K", wk, k, h), ("V", wv, v, hv)):
        # One scale for the kernels, and one for their results: a legend below one of each.
        scale = {"limit": of_kernels, "legend": "" if name == "Q" else None}
        first.append(_matrix(f"W^{name}", f"W^{name}", kernel, (across, d), **scale))
        scale = {"limit": of_results, "legend": "" if name == "K" else None}
        first.append(_matrix(name, name, output, (across, s), **scale))
    second = [
        _matrix("Kᵀ", "Kᵀ", k.T, (s, h), limit=of_results),
        parts.Panel(
            values=weights,
            cell=(s / len(tokens), s / len(tokens)),
            name="weights",
            heading=f"softmax(Q Kᵀ ÷ √{wq.shape[1]})",
            rows=tokens,
            columns=tokens,
            hidden=~allowed,
        ),
        _matrix("Z", "Z = softmax V", result, (hv, s)),
    ]
    note = (
        f"Q = X W^Q, K = X W^K, V = X W^V. {COLORS} Weights: white at 0. An axis has the same "
        "length in every matrix."
    )
    figure, _ = parts.draw_panels([first, second], title=title, note=note, apart=0.16)
    figure.description = (
        f"{title}, {len(tokens)} tokens. X, {len(tokens)} by {x.shape[1]}, times W^Q, W^K and W^V "
        f"gives Q, K ({wq.shape[1]} columns) and V ({wv.shape[1]}); the softmax of Q K^T divided "
        f"by the square root of {wq.shape[1]}, {len(tokens)} by {len(tokens)}, times V gives Z."
    )
    return figure


def _matrix(name: str, heading: str, values: np.ndarray, extent: tuple, **options) -> parts.Panel:
    """A panel with the shape of the matrix below its name."""
    rows, columns = values.shape
    options = {"legend": "", "limit": parts.common(values)[0]} | options
    return signed_panel(name, f"{heading}\n{rows}×{columns}", values, extent, **options)


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
    """
    sizes = Sizes()
    z = sizes.array("z", z, "N T Hv")
    wo = sizes.array("wo", wo, "N Hv D")
    tokens = sizes.tokens("tokens", tokens, "T")
    heads = np.einsum("NTH,NHD->NTD", z, wo)
    total = heads.sum(0)
    if output is not None:
        check_equal("output", total, sizes.array("output", output, "T D"))

    norms = np.linalg.norm(heads, axis=-1).mean(-1)
    shares = norms / (norms.sum() or 1)
    count, length, head_size = z.shape
    concatenated = z.swapaxes(0, 1).reshape(length, -1)
    height = min(max(0.16 * length, 0.9), 2.6)
    inner, outer = min(max(0.03 * count * head_size, 1.6), 2.6), 1.9
    (of_head, beyond), (of_total, beyond_total) = parts.common(heads), parts.common(total)
    first = [
        _matrix("z", "concatenated z", concatenated, (inner, height), rows=tokens),
        _matrix("W^O", "W^O", wo.reshape(-1, wo.shape[-1]), (outer, inner)),
        _matrix("output", "output = z W^O", total, (outer, height), limit=of_total),
    ]
    summands = [(f"head {i + 1}", f"{share:.0%}", heads[i]) for i, share in enumerate(shares)]
    summands.append(("sum", "sum = output", total))
    panels = [
        signed_panel(
            name,
            f"{name}, {text}" if name != "sum" else text,
            values,
            (outer, height),
            limit=of_total if name == "sum" else of_head,
            rows=tokens if i % ABREAST == 0 else None,
            legend={0: f"of every head{beyond}", count: f"of the sum{beyond_total}"}.get(i),
        )
        for i, (name, text, values) in enumerate(summands)
    ]
    starts = range(0, len(panels), ABREAST)
    rows = [first, *(panels[start : start + ABREAST] for start in starts)]
    note = f"{COLORS} Of each head: z W^O of its rows, and its share of the mean norms."
    figure, images = parts.draw_panels(rows, title=title, note=note, apart=0.12)
    borders = np.arange(1, count) * head_size - 0.5
    for ax, lines in ((images[0].axes, "axvline"), (images[1].axes, "axhline")):
        for border in borders:
            getattr(ax, lines)(border, color=style.INK, linewidth=0.8)
    items = [f"head {head + 1} {share:.0%}" for head, share in enumerate(shares)]
    figure.description = (
        f"{title}: {count} heads of {head_size} columns over {length} tokens times a matrix of "
        f"{count * head_size} by {wo.shape[-1]} give the sublayer's output, which is the sum of "
        f"every head times its rows of that matrix. Shares by mean norm: {listed(items, 16)}."
    )
    return figure
