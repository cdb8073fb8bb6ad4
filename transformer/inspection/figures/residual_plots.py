# SPDX-License-Identifier: Apache-2.0
"""The residual stream: the output of every sublayer, and the vectors around one."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from matplotlib.axes import Axes

from transformer.arrays import Float
from transformer.inspection.argument_checks import checked, checked_index
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed
from transformer.inspection.residual import ResidualFlow

CHART, MAP = 2.3, 2.7
"""Width of the chart of norms, and of each map."""
MARKERS = {
    "x": ("o", style.BLUE),
    "f(x)": ("^", style.VERMILION),
    "x + f(x)": ("s", style.GREEN),
    "output": ("D", style.INK),
}


@style.styled
def plot_residual_flow(
    flow: ResidualFlow,
    tokens: Sequence[str],
    *,
    title: str = "Contribution of every sublayer to the residual stream",
) -> DescribedFigure:
    """Norms of x, f(x), x + f(x) and of the output, and the angle that f(x) turns x by.

    With post-norm the output is LayerNorm(x + f(x)). With pre-norm it is x + f(x), and f reads
    LayerNorm(x).
    """
    flow, names, tokens = _checked(flow.before, flow.added, flow.after, flow.names, tokens)
    norms, angle = flow.norms(), np.degrees(np.arccos(flow.cosine().clip(-1, 1)))
    share = norms["f(x)"] / np.maximum(norms["x"], 1e-30)

    cell = (min(MAP / len(tokens), 0.42), min(max(2.4 / len(names), 0.18), 0.32))
    panels = [
        parts.Panel(
            values=values,
            cell=cell,
            name=name,
            heading=name,
            columns=tokens,
            limits=(0.0, float(np.ceil(values.max() * 100) / 100) or 1.0),
            legend=unit,
        )
        for name, unit, values in (
            ("‖f(x)‖ / ‖x‖", "ratio", share),
            ("angle between x and x + f(x)", "degrees", angle),
        )
    ]
    left = parts.label_width(names) + 0.15
    note = (
        "x is the input of a sublayer, f(x) what it adds. The output is LayerNorm(x + f(x)) with "
        "post-norm, and x + f(x) with pre-norm, where f reads LayerNorm(x)."
    )
    figure, _ = parts.draw_panels([panels], title=title, note=note, left=left + CHART + 0.45)
    ax = parts.axes(figure, left, panels[0].above, CHART, cell[1] * len(names), "norms")
    _draw_norms(ax, norms, names)
    items = [
        f"{name}: " + ", ".join(f"{values[u].mean():.2f}" for values in norms.values())
        for u, name in enumerate(names)
    ]
    figure.description = (
        f"{title}, over {len(tokens)} tokens. Mean norms of x, of f(x), of their sum, and of the "
        f"output: {listed(items, 18)}."
    )
    return figure


@style.styled
def plot_residual_norm(
    flow: ResidualFlow, sublayer: int, tokens: Sequence[str], *, title: str | None = None
) -> DescribedFigure:
    """The vectors around one sublayer: x, f(x), their sum and, with post-norm, LayerNorm of it.

    Args:
      sublayer: index into `flow.names`.
    """
    flow, names, tokens = _checked(flow.before, flow.added, flow.after, flow.names, tokens)
    sublayer = checked_index("sublayer", sublayer, len(names))
    x, added, after = flow.before[sublayer], flow.added[sublayer], flow.after[sublayer]
    total = x + added
    pre_norm = bool(np.allclose(total, after, atol=1e-5 * parts.largest(after)))
    steps = {"x": x, "+ f(x)": added, "= x + f(x)": total}
    if not pre_norm:
        steps["LayerNorm(x + f(x))"] = after

    width, height = 1.75, max(min(3.6 / len(tokens), 0.24), 0.16)
    limit, beyond = parts.common(*steps.values())
    shown = ("= x + f(x)", "LayerNorm(x + f(x))")
    panels = [
        parts.Panel(
            values=vectors,
            cell=(width / vectors.shape[1], height),
            name=name,
            heading=name,
            rows=tokens if i == 0 else None,
            legend=f"value{beyond}" if i == 0 else None,
            beside=_mean_and_deviation(vectors) if name in shown else {},
            **parts.signed(limit),
        )
        for i, (name, vectors) in enumerate(steps.items())
    ]
    title = title or f"Residual connection and layer norm around {names[sublayer]}"
    note = "Rows: tokens; columns: dimensions. σ: standard deviation over the dimensions. " + (
        "With pre-norm the sum is the output, and f reads LayerNorm(x)."
        if pre_norm
        else "The layer norm ends with a learned scale and shift of each dimension."
    )
    figure, _ = parts.draw_panels([panels], title=title, note=note, apart=0.16)
    items = [
        f"{name} has a mean of {vectors.mean():.2f} and standard deviations over the dimensions "
        f"from {vectors.std(-1).min():.2f} to {vectors.std(-1).max():.2f}"
        for name, vectors in steps.items()
    ]
    figure.description = f"{title}, for {len(tokens)} tokens. {'; '.join(items)}."
    return figure


@checked
def _checked(
    before: Float[np.ndarray, "U T D"],
    added: Float[np.ndarray, "U T D"],
    after: Float[np.ndarray, "U T D"],
    names: Annotated[list[str], "U"],
    tokens: Annotated[list[str], "T"],
) -> tuple[ResidualFlow, list[str], list[str]]:
    """The flow in NumPy, the names of its sublayers, and the labels of its tokens."""
    return ResidualFlow(tuple(names), before, added, after), names, tokens


def _mean_and_deviation(vectors: Float[np.ndarray, "T D"]) -> dict[str, list[str]]:
    """Columns of text: mean and standard deviation of each vector."""
    return {
        "mean": [parts.formatted(value, "{:.2f}") for value in vectors.mean(-1)],
        "σ": [f"{value:.2f}" for value in vectors.std(-1)],
    }


def _draw_norms(ax: Axes, norms: dict[str, Float[np.ndarray, "U T"]], names: list[str]) -> None:
    """Mean norms over the tokens, one line a kind of vector."""
    for name, (marker, color) in MARKERS.items():
        ax.plot(
            norms[name].mean(-1),
            np.arange(len(names)),
            marker=marker,
            color=color,
            label=name,
            markersize=4,
            linewidth=0.9,
            fillstyle="none" if name == "output" else "full",
        )
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(left=0)
    parts.row_labels(ax, names)
    ax.grid(axis="y", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.set_xlabel("norm ‖·‖, mean over the tokens", fontsize=style.TEXT)
    look = {"frameon": False, "fontsize": style.TEXT, "borderaxespad": 0.1, "columnspacing": 1.2}
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, **look)
