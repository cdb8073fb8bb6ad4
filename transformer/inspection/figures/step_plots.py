# SPDX-License-Identifier: Apache-2.0
"""Self-attention with its numbers: six steps, matrices, the sum over heads, all in one picture.

A result of the model, if given, is compared with what is drawn.
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from transformer.arrays import Bool, Float
from transformer.errors import InputError
from transformer.inspection.argument_checks import Sizes, check_equal, checked
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.parts import signed_panel
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed, shortened

ABREAST = 4
"""Heads beside each other."""
COLORS = "One cell a number: white at 0, blue above, vermilion below."

WIDE, NARROW, CONCATENATED = 0.72, 0.34, 1.0
"""Widths of matrices of D columns, of one head's columns, and of those of all heads."""
GROUPS = {
    "W": ("W^Q", "W^K", "W^V"),
    "QKV": ("Q", "K", "V"),
    "softmax": ("softmax",),
    "z": ("z",),
}
"""Matrices of one head from the left; each group has one color scale."""
WIDTHS = {"softmax": 0.75}
BETWEEN = 0.22
"""Distance between groups."""
TOTAL = 6.0
"""Height of the rows of all heads, unless they would be too low or too high."""
HEADINGS = 0.5
"""Height of the headings of the columns."""


def checked_mask(
    mask: Bool[np.ndarray, "S S"] | None, tokens: list[str]
) -> Bool[np.ndarray, "S S"]:
    """The mask, which lets every query attend to something; all true by default."""
    if mask is None:
        return np.ones((len(tokens), len(tokens)), bool)
    if not mask.any(-1).all():
        row = int(np.argmin(mask.any(-1)))
        raise InputError(
            f"mask[{row}] lets query {row} attend to nothing, so it has no softmax; remove "
            "padding before drawing"
        )
    return mask


@style.styled
@checked
def plot_attention_steps(
    x: Float[np.ndarray, "S D"],
    q: Float[np.ndarray, "S H"],
    k: Float[np.ndarray, "S H"],
    v: Float[np.ndarray, "S Hv"],
    query: Annotated[int, "S"],
    tokens: Annotated[list[str], "S"],
    *,
    mask: Bool[np.ndarray, "S S"] | None = None,
    z: Float[np.ndarray, "S Hv"] | None = None,
    title: str | None = None,
) -> DescribedFigure:
    """The six steps of self-attention for one query of one head, with the numbers.

    Args:
      x: input of the sublayer.
      query: position of the query, from 0.
      mask: true where a query may attend; all true by default.
      z: the model's result, which the drawn one must equal.
    """
    allowed = checked_mask(mask, tokens)[query]
    dot_products = q[query] @ k.T
    scores = dot_products / np.sqrt(q.shape[1])
    weights = softmax(np.where(allowed, scores, -np.inf), axis=-1)
    weighted = weights[:, None] * v
    result = weighted.sum(0)
    check_equal(f"z[{query}]", result, None if z is None else z[query])

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
@checked
def plot_attention_matrices(
    x: Float[np.ndarray, "S D"],
    wq: Float[np.ndarray, "D H"],
    wk: Float[np.ndarray, "D H"],
    wv: Float[np.ndarray, "D Hv"],
    tokens: Annotated[list[str], "S"],
    *,
    mask: Bool[np.ndarray, "S S"] | None = None,
    z: Float[np.ndarray, "S Hv"] | None = None,
    title: str = "Self-attention of one head as matrix products",
) -> DescribedFigure:
    """Q = X W^Q, K = X W^K, V = X W^V, and Z = softmax(Q K^T / √d_k) V.

    An axis has the same length in every matrix. For projections without biases, as in the paper.

    Args:
      x: input of the sublayer.
      wq, wk, wv: query, key and value matrix of the head.
      mask: true where a query may attend; all true by default.
      z: the model's result, which the drawn one must equal.
    """
    allowed = checked_mask(mask, tokens)
    q, k, v = x @ wq, x @ wk, x @ wv
    scores = q @ k.T / np.sqrt(wq.shape[1])
    weights = softmax(np.where(allowed, scores, -np.inf), axis=-1)
    result = weights @ v
    check_equal("z", result, z)

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
@checked
def plot_head_assembly(
    z: Float[np.ndarray, "N T Hv"],
    wo: Float[np.ndarray, "N Hv D"],
    tokens: Annotated[list[str], "T"],
    *,
    output: Float[np.ndarray, "T D"] | None = None,
    title: str = "Concatenated heads times the output matrix are a sum over heads",
) -> DescribedFigure:
    """Concat(z_1, ..., z_N) W^O, and the same as z_1 W^O_1 + ... + z_N W^O_N.

    Args:
      z: weighted values of every head.
      wo: rows of W^O of every head.
      output: the model's output without bias, which the drawn one must equal.
    """
    heads = np.einsum("NTH,NHD->NTD", z, wo)
    total = heads.sum(0)
    check_equal("output", total, output)

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
    parts.separate_heads(images[0].axes.axvline, count, head_size)
    parts.separate_heads(images[1].axes.axhline, count, head_size)
    items = [f"head {head + 1} {share:.0%}" for head, share in enumerate(shares)]
    figure.description = (
        f"{title}: {count} heads of {head_size} columns over {length} tokens times a matrix of "
        f"{count * head_size} by {wo.shape[-1]} give the sublayer's output, which is the sum of "
        f"every head times its rows of that matrix. Shares by mean norm: {listed(items, 16)}."
    )
    return figure


@style.styled
@checked
def plot_multi_head(
    x: Float[np.ndarray, "S D"],
    kernels: Mapping[str, ArrayLike],
    tokens: Annotated[list[str], "S"],
    *,
    mask: Bool[np.ndarray, "S S"] | None = None,
    output: Float[np.ndarray, "S D"] | None = None,
    title: str = "Multi-head self-attention in one picture",
) -> DescribedFigure:
    """X, W^Q, W^K and W^V of every head, Q, K, V, the softmax, z, and concat(z) W^O.

    Like the recap of The Illustrated Transformer. For projections without biases, as in the paper.

    Args:
      x: input of the sublayer.
      kernels: ``query``, ``key`` and ``value`` [D,N,H] and ``output`` [N,H,D], as in the parameters
        of the sublayer.
      mask: true where a query may attend; all true by default.
      output: the model's output, which the drawn one must equal.
    """
    missing = {"query", "key", "value", "output"} - kernels.keys()
    if missing:
        raise InputError(
            f"kernels lacks {sorted(missing)}; give the parameters of one attention sublayer"
        )
    sizes = Sizes()
    sizes.array("x", x, "S D")
    axes = {"query": "D N H", "key": "D N H", "value": "D N Hv", "output": "N Hv D"}
    query, key, value, wo = (sizes.array(name, kernels[name], each) for name, each in axes.items())
    allowed = checked_mask(mask, tokens)
    q, k, v = (np.einsum("SD,DNH->NSH", x, kernel) for kernel in (query, key, value))
    scores = np.einsum("NTH,NSH->NTS", q, k) / np.sqrt(query.shape[-1])
    weights = softmax(np.where(allowed, scores, -np.inf), axis=-1)
    z = np.einsum("NTS,NSH->NTH", weights, v)
    total = np.einsum("NTH,NHD->TD", z, wo)
    check_equal("output", total, output)

    projections = zip(("W^Q", "W^K", "W^V"), (query, key, value), strict=True)
    of_heads = {name: kernel.swapaxes(0, 1) for name, kernel in projections}
    of_heads |= {"Q": q, "K": k, "V": v, "softmax": weights, "z": z}
    heads, rows, size = z.shape
    pitch = min(max(TOTAL / heads, 0.72), 1.15)
    tall = min(max(0.16 * rows, 1.0), 2.4)
    full = max(pitch * heads, tall, heads * size * 0.02)
    middle, first = HEADINGS + full / 2, HEADINGS + (full - pitch * heads) / 2
    label = parts.label_width(tokens) + 0.12
    lefts = _lefts(label + WIDE + 0.66)
    concat = lefts["z"] + NARROW + 0.55
    right = concat + CONCATENATED + BETWEEN + WIDE + BETWEEN + 0.14
    note = (
        "White is 0, blue above, vermilion below. Each group of matrices has one scale, which is "
        "below it; 1% of the values of large matrices are beyond. Rows of X, Q, K, V, z and the "
        "output: tokens."
    )
    height = HEADINGS + full + parts.LEGEND + 0.1
    figure = parts.sheet(right + WIDE + 0.22, height, title, note)
    # The matrices of each head in a row, with the legends below those of the last head.
    look = {"ha": "left", "va": "bottom", "fontsize": style.HEADING}
    for group, names in GROUPS.items():
        colors = {"hidden": ~allowed}
        if group != "softmax":
            colors = parts.signed(parts.common(*(of_heads[name] for name in names))[0])
        for name in names:
            parts.put_text(figure.content, lefts[name], first - 0.05, name, **look)
            extent = WIDTHS.get(group, NARROW), pitch - 0.14
            for head, values in enumerate(of_heads[name]):
                panel = parts.Panel(
                    values=values,
                    cell=(extent[0] / values.shape[1], extent[1] / values.shape[0]),
                    name=f"{name} {head + 1}",
                    legend="" if head == heads - 1 and name == names[0] else None,
                    **colors,
                )
                panel.draw(figure, lefts[name], first + pitch * head)
    for head in range(heads):
        y, number = first + pitch * (head + 0.5) - 0.07, f"head {head + 1}"
        beside = {"ha": "right", "fontsize": style.HEADING}
        parts.put_text(figure.content, lefts["W^Q"] - 0.08, y, number, **beside)
    # What all heads read, and what is made of their results.
    for name, values, left, extent in (
        ("X", x, label, (WIDE, tall)),
        ("concatenated z", z.swapaxes(0, 1).reshape(rows, -1), concat, (CONCATENATED, tall)),
        ("W^O", wo.reshape(heads * size, -1), right - WIDE - BETWEEN - 0.14, (WIDE, CONCATENATED)),
        ("output", total, right, (WIDE, tall)),
    ):
        limit, _ = parts.common(values)
        options = {"limit": limit, "legend": "", "rows": tokens if name == "X" else None}
        panel = parts.signed_panel(name, "", values, extent, **options)
        top = middle - extent[1] / 2
        ax = panel.draw(figure, left, top).axes
        heading = f"{name}\n{values.shape[0]}×{values.shape[1]}"
        parts.put_text(figure.content, left, top - 0.05, heading, **look)
        lines = {"concatenated z": ax.axvline, "W^O": ax.axhline}
        if name in lines:
            parts.separate_heads(lines[name], heads, size)
    for end in (label + WIDE + 0.2, concat - 0.06, right - 0.06):
        parts.draw_arrow(figure.content, (end - 0.14, middle), (end, middle))
    concentration = [f"head {n + 1} {each:.2f}" for n, each in enumerate(weights.max(-1).mean(-1))]
    figure.description = (
        f"{title}: X, {x.shape[0]} tokens by {x.shape[1]} numbers, is multiplied by W^Q, W^K and "
        f"W^V of each of {len(z)} heads to Q, K and V; the softmax of Q K^T divided by the square "
        f"root of {query.shape[-1]}, times V, is z of the head. The concatenated z times W^O, "
        f"{wo.shape[0] * wo.shape[1]} by {wo.shape[2]}, is the output. Mean highest weight of a "
        f"query: {listed(concentration, 16)}."
    )
    return figure


def _lefts(left: float) -> dict[str, float]:
    """Left edge of each matrix of a head."""
    lefts = {}
    for group, names in GROUPS.items():
        for name in names:
            lefts[name] = left
            left += WIDTHS.get(group, NARROW) + 0.05
        left += BETWEEN
    return lefts
