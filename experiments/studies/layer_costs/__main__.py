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

Exponents are fitted to each in n and in d, beside the theory in parentheses. A row a layer, with
all measurements, is printed and written to OUTPUT/layer_costs.json. It takes a minute.
"""

import dataclasses
from typing import Any, Literal

from experiments.cli import command_line
from experiments.studies import study_runs
from experiments.studies.layer_costs.layers import LAYERS, Layer
from experiments.studies.layer_costs.measurements import MEASURES, Quantity, exponent
from transformer import paths
from transformer.errors import InputError

Along = Literal["n", "d"]
SWEEPS: tuple[tuple[Quantity, Along], ...] = (
    *(("flops", "n"), ("flops", "d"), ("sequential", "n")),
    *(("path", "n"), ("seconds", "n"), ("seconds", "d")),
)
PATH_WIDTH = 4
"""Width of the layers whose Jacobians are computed."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The sizes of the layers, and where the results go."""

    output: str | None = None
    """Directory of the rows."""
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
    """Measure every layer, and write the rows; returns them."""
    if not options.output:
        raise InputError("missing --output=DIRECTORY")
    rows = [measure(layer, options) for layer in LAYERS]
    study_runs.write_rows(paths.absolute(options.output), "layer_costs", rows)
    return rows


def main(options: Options) -> None:
    """Print the rows."""
    study_runs.print_rows(run(options))


def measure(layer: Layer, options: Options) -> dict[str, Any]:
    """Measure all sweeps of a layer; returns its row."""
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


if __name__ == "__main__":
    command_line.run(main, None, Options)
