# SPDX-License-Identifier: Apache-2.0
"""Multi-head self-attention in one picture, from the input of a sublayer to its output."""

from collections.abc import Mapping, Sequence
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from transformer.arrays import Bool, Float
from transformer.errors import InputError
from transformer.inspection.argument_checks import Sizes, check_equal
from transformer.inspection.figures import architecture, parts, step_plots, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed

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


@style.styled
def plot_multi_head(
    x: ArrayLike,
    kernels: Mapping[str, ArrayLike],
    tokens: Sequence[str],
    *,
    mask: ArrayLike | None = None,
    output: ArrayLike | None = None,
    title: str = "Multi-head self-attention in one picture",
) -> DescribedFigure:
    """X, W^Q, W^K and W^V of every head, Q, K, V, the softmax, z, and concat(z) W^O.

    Like the recap of The Illustrated Transformer. For projections without biases, as in the paper.

    Args:
      x: [S,D], input of the sublayer.
      kernels: ``query``, ``key`` and ``value`` [D,N,H] and ``output`` [N,H,D], as in the parameters
        of the sublayer.
      tokens: S labels.
      mask: [S,S], true where a query may attend; all true by default.
      output: [S,D], the model's output, which the drawn one must equal.
    """
    missing = {"query", "key", "value", "output"} - kernels.keys()
    if missing:
        raise InputError(
            f"kernels lacks {sorted(missing)}; give the parameters of one attention sublayer"
        )
    sizes = Sizes()
    x = sizes.array("x", x, "S D")
    query, key = sizes.arrays("D N H", query=kernels["query"], key=kernels["key"])
    value = sizes.array("value", kernels["value"], "D N Hv")
    wo = sizes.array("output", kernels["output"], "N Hv D")
    tokens = sizes.tokens("tokens", tokens, "S")
    allowed = step_plots.checked_mask(sizes, mask)
    q, k, v = (np.einsum("SD,DNH->NSH", x, kernel) for kernel in (query, key, value))
    scores = np.einsum("NTH,NSH->NTS", q, k) / np.sqrt(query.shape[-1])
    weights = step_plots.softmax(scores, allowed)
    z = np.einsum("NTS,NSH->NTH", weights, v)
    total = np.einsum("NTH,NHD->TD", z, wo)
    if output is not None:
        check_equal("output", total, sizes.array("the output", output, "S D"))

    projections = zip(("W^Q", "W^K", "W^V"), (query, key, value), strict=True)
    of_heads = {name: kernel.swapaxes(0, 1) for name, kernel in projections}
    of_heads |= {"Q": q, "K": k, "V": v, "softmax": weights, "z": z}
    figure = _draw(x, of_heads, wo, total, tokens, allowed, title)
    concentration = [f"head {n + 1} {each:.2f}" for n, each in enumerate(weights.max(-1).mean(-1))]
    figure.description = (
        f"{title}: X, {x.shape[0]} tokens by {x.shape[1]} numbers, is multiplied by W^Q, W^K and "
        f"W^V of each of {len(z)} heads to Q, K and V; the softmax of Q K^T divided by the square "
        f"root of {query.shape[-1]}, times V, is z of the head. The concatenated z times W^O, "
        f"{wo.shape[0] * wo.shape[1]} by {wo.shape[2]}, is the output. Mean highest weight of a "
        f"query: {listed(concentration, 16)}."
    )
    return figure


def _draw(
    x: Float[np.ndarray, "S D"],
    of_heads: Mapping[str, Float[np.ndarray, "N _ _"]],
    wo: Float[np.ndarray, "N Hv D"],
    total: Float[np.ndarray, "S D"],
    tokens: list[str],
    allowed: Bool[np.ndarray, "S S"],
    title: str,
) -> DescribedFigure:
    """X at the left, one row of matrices a head, and what is made of all heads at the right."""
    heads, rows, size = of_heads["z"].shape
    pitch = min(max(TOTAL / heads, 0.72), 1.15)
    tall = min(max(0.16 * rows, 1.0), 2.4)
    full = max(pitch * heads, tall, heads * size * 0.02)
    middle, first = HEADINGS + full / 2, HEADINGS + (full - pitch * heads) / 2
    label = parts.label_width(tokens) + 0.12
    lefts = _lefts(label + WIDE + 0.66)
    concat = lefts["z"] + NARROW + 0.55
    output = concat + CONCATENATED + BETWEEN + WIDE + BETWEEN + 0.14
    note = (
        "White is 0, blue above, vermilion below. Each group of matrices has one scale, which is "
        "below it; 1% of the values of large matrices are beyond. Rows of X, Q, K, V, z and the "
        "output: tokens."
    )
    height = HEADINGS + full + parts.LEGEND + 0.1
    figure = parts.sheet(output + WIDE + 0.22, height, title, note)
    for n in range(heads):
        _draw_head(figure, of_heads, n, lefts, (first + pitch * n, pitch - 0.14), allowed)
    concatenated = of_heads["z"].swapaxes(0, 1).reshape(rows, -1)
    kernel = wo.reshape(-1, wo.shape[-1])
    for name, values, left, extent in (
        ("X", x, label, (WIDE, tall)),
        ("concatenated z", concatenated, concat, (CONCATENATED, tall)),
        ("W^O", kernel, concat + CONCATENATED + BETWEEN, (WIDE, CONCATENATED)),
        ("output", total, output, (WIDE, tall)),
    ):
        limit, _ = parts.common(values)
        options = {"limit": limit, "legend": "", "rows": tokens if name == "X" else None}
        panel = parts.signed_panel(name, "", values, extent, **options)
        top = middle - extent[1] / 2
        image = panel.draw(figure, left, top)
        heading = f"{name}\n{values.shape[0]}×{values.shape[1]}"
        put = {"ha": "left", "va": "bottom", "fontsize": style.HEADING}
        parts.put_text(figure.content, left, top - 0.05, heading, **put)
        if name in ("concatenated z", "W^O"):
            line = image.axes.axvline if name == "concatenated z" else image.axes.axhline
            for border in np.arange(1, heads) * size - 0.5:
                line(border, color=style.INK, linewidth=0.8)
    for end in (label + WIDE + 0.2, concat - 0.06, output - 0.06):
        architecture.draw_arrow(figure.content, (end - 0.14, middle), (end, middle))
    return figure


def _lefts(left: Real) -> dict[str, float]:
    """Left edge of each matrix of a head."""
    lefts = {}
    for group, names in GROUPS.items():
        for name in names:
            lefts[name] = left
            left += WIDTHS.get(group, NARROW) + 0.05
        left += BETWEEN
    return lefts


def _draw_head(
    figure: DescribedFigure,
    of_heads: Mapping[str, Float[np.ndarray, "N _ _"]],
    head: int,
    lefts: Mapping[str, Real],
    span: tuple[Real, Real],
    allowed: Bool[np.ndarray, "S S"],
) -> None:
    """The matrices of one head in a row; those of the last head with the legends."""
    top, height = span
    last = head == len(of_heads["z"]) - 1
    number = {"ha": "right", "fontsize": style.HEADING}
    parts.put_text(
        figure.content, lefts["W^Q"] - 0.08, top + height / 2, f"head {head + 1}", **number
    )
    for group, names in GROUPS.items():
        look = {"limits": (0.0, 1.0), "hidden": ~allowed}
        if group != "softmax":
            look = parts.signed(parts.common(*(of_heads[name] for name in names))[0])
        for i, name in enumerate(names):
            rows, columns = of_heads[name].shape[1:]
            panel = parts.Panel(
                values=of_heads[name][head],
                cell=(WIDTHS.get(group, NARROW) / columns, height / rows),
                name=f"{name} {head + 1}",
                legend="" if last and i == 0 else None,
                **look,
            )
            panel.draw(figure, lefts[name], top)
            if head == 0:
                heading = {"ha": "left", "va": "bottom", "fontsize": style.HEADING}
                parts.put_text(figure.content, lefts[name], top - 0.05, name, **heading)
