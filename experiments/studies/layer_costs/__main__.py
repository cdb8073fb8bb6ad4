# SPDX-License-Identifier: Apache-2.0
"""Measure table 1 of "Attention Is All You Need": the cost of a layer, and how far it can read.

python -m experiments.studies.layer_costs --output=runs/layer_costs

For the project's attention, LSTM and convolution over n positions of width d:

- floating-point operations of the compiled layer, from XLA. XLA counts the body of a loop once, so
  those of the body are added for every further step;
- sequential operations: the longest chain of matmuls of which each needs the result of the last;
- maximum path length: how often the layer is applied to all positions until the Jacobian of the
  last output by the first input is not zero;
- seconds of a forward pass.

Exponents are fitted to each in n and in d, beside the theory. The table is written to
``layer_costs.md``, the table and all measurements to ``layer_costs.json``, a figure of the
floating-point operations to ``layer_costs.png``. It takes a minute.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from experiments.cli import command_line
from experiments.studies import study_tables
from experiments.studies.layer_costs.layers import LAYERS, Layer
from experiments.studies.layer_costs.measurements import MEASURES, Quantity, exponent
from experiments.studies.study_tables import Column
from transformer import paths
from transformer.errors import InputError
from transformer.inspection import figures

Along = Literal["n", "d"]
SWEEPS: tuple[tuple[Quantity, Along], ...] = (
    *(("flops", "n"), ("flops", "d"), ("sequential", "n")),
    *(("path", "n"), ("seconds", "n"), ("seconds", "d")),
)
PATH_WIDTH = 4
"""Width of the layers whose Jacobians are computed."""
COLUMNS = (
    Column("layer", "layer"),
    Column("complexity", "complexity"),
    Column("FLOPs: exponent of n", "flops_n"),
    Column("of d", "flops_d"),
    Column("sequential: exponent of n", "sequential_n"),
    Column("longest path at the largest n", "longest_path"),
    Column("its formula", "path_formula"),
    Column("time: exponent of n", "seconds_n"),
    Column("of d", "seconds_d"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """The sizes of the layers, and where the results go."""

    output: str | None = None
    """Directory of the table, the figure and the data."""
    n: tuple[int, ...] = (64, 128, 256, 512, 1024)
    """Numbers of positions, ascending."""
    d: tuple[int, ...] = (64, 128, 256, 512)
    """Widths, ascending."""
    path_n: tuple[int, ...] = (3, 9, 27, 81, 243)
    """Numbers of positions for path lengths, ascending."""

    def sizes(self, quantity: Quantity, along: Along) -> list[tuple[int, int]]:
        """The (n, d) of a sweep; the size that is fixed is the smallest d or a middle n."""
        if along == "d":
            return [(self.n[len(self.n) // 2], d) for d in self.d]
        if quantity == "path":
            return [(n, PATH_WIDTH) for n in self.path_n]
        return [(n, self.d[0]) for n in self.n]


def run(options: Options) -> list[dict[str, Any]]:
    """Measure every layer, and write the table and the figure; returns the rows."""
    if not options.output:
        raise InputError("missing --output=DIRECTORY")
    output = paths.absolute(options.output)
    rows = [measure(layer, options) for layer in LAYERS]
    study_tables.write_table(output, "layer_costs", COLUMNS, rows)
    figures.save(draw(rows, options), output / "layer_costs.png")
    return rows


def main(options: Options) -> None:
    """Print the table."""
    print(study_tables.markdown(COLUMNS, run(options)), end="")
    print("\nFitted to measurements; in parentheses the theory.")


def measure(layer: Layer, options: Options) -> dict[str, Any]:
    """Measure all sweeps of a layer; returns the row of the table and the measurements."""
    measured, exponents = {}, {}
    for quantity, along in SWEEPS:
        sizes = options.sizes(quantity, along)
        values = [MEASURES[quantity](layer, n, d) for n, d in sizes]
        name = f"{quantity}_{along}"
        measured[name] = values
        exponents[name] = exponent([size["nd".index(along)] for size in sizes], values)
    theory = {"flops_n": layer.exponents[0], "flops_d": layer.exponents[1]}
    theory["sequential_n"] = layer.sequential
    written = {
        name: f"{value:.2f}" + ("" if theory.get(name) is None else f" ({theory[name]})")
        for name, value in exponents.items()
    }
    path_theory = [layer.path(n) for n in options.path_n]
    return {
        "layer": layer.name,
        "complexity": layer.complexity,
        **written,
        "longest_path": f"{measured['path_n'][-1]} ({path_theory[-1]})",
        "path_formula": layer.path_formula,
        "measured": measured,
        "exponents": exponents,
        "path_theory": path_theory,
    }


def draw(rows: Sequence[dict[str, Any]], options: Options) -> figures.DescribedFigure:
    """Floating-point operations by n; on logarithmic scales their slopes are the exponents."""
    curves = {
        row["layer"]: (np.log2(options.n), np.log2(row["measured"]["flops_n"])) for row in rows
    }
    return figures.plot_curves(
        curves,
        x_label=f"log2 of the number of positions n, for d = {options.d[0]}",
        y_label="log2 of the floating-point operations",
        title="What a layer costs",
    )


if __name__ == "__main__":
    command_line.run(main, None, Options)
