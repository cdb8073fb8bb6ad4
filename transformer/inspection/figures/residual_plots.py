# SPDX-License-Identifier: Apache-2.0
"""The residual stream: the output of every sublayer, and the layer norm."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from transformer.arrays import Float
from transformer.inspection.argument_checks import Sizes
from transformer.inspection.figures import parts, style
from transformer.inspection.figures.style import DescribedFigure
from transformer.inspection.figures.typesetting import listed
from transformer.inspection.residual import ResidualFlow

CHART = 3.0
"""Width of the chart of norms."""
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
    """Norms of x, f(x), x + f(x) and of the output, sublayer by sublayer.

    With post-norm the output is LayerNorm(x + f(x)). With pre-norm it is x + f(x), and f reads
    LayerNorm(x).

    Args:
      flow: of `residual.residual_flow`.
      tokens: T labels.
    """
    sizes = Sizes()
    before, added, after = sizes.arrays(
        "U T D", before=flow.before, added=flow.added, after=flow.after
    )
    names = sizes.tokens("names", flow.names, "U")
    tokens = sizes.tokens("tokens", tokens, "T")
    flow = ResidualFlow(flow.names, before, added, after)
    norms, cosine = flow.norms(), flow.cosine()
    share = norms["f(x)"] / np.maximum(norms["x"], 1e-30)

    abreast = len(tokens) <= 12
    cell = (min(max(3.0 / len(tokens), 0.2), 0.42), min(max(3.0 / len(names), 0.2), 0.32))
    lowest = float(np.floor(cosine.min() * 10) / 10)
    panels = [
        parts.Panel(
            values=values,
            cell=cell,
            name=name,
            heading=name,
            rows=None if abreast else names,
            columns=tokens,
            limits=limits,
            color_bar="",
        )
        for name, values, limits in (
            ("‖f(x)‖ / ‖x‖", share, (0.0, float(share.max()))),
            ("cosine of x and x + f(x)", cosine, (lowest, 1.0)),
        )
    ]
    left, height = parts.label_width(names) + 0.15, cell[1] * len(names)
    note = (
        "x is the input of a sublayer, f(x) what it adds. The output is LayerNorm(x + f(x)) with "
        "post-norm, and x + f(x) with pre-norm, where f reads LayerNorm(x)."
    )
    figure, _ = parts.draw_panels(
        [panels] if abreast else [[panel] for panel in panels],
        title=title,
        note=note,
        left=left + CHART + 0.4 if abreast else 0.0,
        top=0.0 if abreast else height + 0.8,
        below=0.35 if abreast else 0.0,
        least_width=left + CHART + 1.2,
    )
    top = panels[0].above if abreast else 0.1
    ax = parts.axes(figure, left, top, CHART, height, "norms")
    _draw_norms(ax, norms, names, legend_above=abreast)
    items = [
        f"{name}: " + ", ".join(f"{values[u].mean():.2f}" for values in norms.values())
        for u, name in enumerate(names)
    ]
    figure.description = (
        f"{title}, over {len(tokens)} tokens. Mean norms of x, of f(x), of their sum, and of the "
        f"output: {listed(items, 18)}."
    )
    return figure


def _draw_norms(
    ax: Axes, norms: dict[str, Float[np.ndarray, "U T"]], names: list[str], legend_above: bool
) -> None:
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
    ax.tick_params(axis="x", labelsize=style.TINY)
    ax.set_xlabel("norm ‖·‖, mean over the tokens", fontsize=style.SMALL)
    look = {"frameon": False, "fontsize": style.SMALL, "borderaxespad": 0.1, "columnspacing": 1.2}
    if legend_above:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, **look)
    else:
        ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), **look)
