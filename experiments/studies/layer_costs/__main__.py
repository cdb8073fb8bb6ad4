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

ALONG_N = [(n, 64) for n in (64, 128, 256, 512, 1024)]
ALONG_D = [(256, d) for d in (64, 128, 256, 512)]
PATH_N = (3, 9, 27, 81, 243)
SWEEPS: dict[tuple[Quantity, Literal["n", "d"]], list[tuple[int, int]]] = {
    ("flops", "n"): ALONG_N,
    ("flops", "d"): ALONG_D,
    ("sequential", "n"): ALONG_N,
    ("path", "n"): [(n, 4) for n in PATH_N],
    ("seconds", "n"): ALONG_N,
    ("seconds", "d"): ALONG_D,
}
"""The (n, d) of each quantity along n or d."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Where the results go."""

    output: str | None = None
    """Directory of the rows."""


def run(options: Options) -> list[dict[str, Any]]:
    """Measure every layer, and write the rows; returns them."""
    if not options.output:
        raise InputError("missing --output=DIRECTORY")
    rows = [measure(layer) for layer in LAYERS]
    study_runs.write_rows(paths.absolute(options.output), "layer_costs", rows)
    return rows


def main(options: Options) -> None:
    """Print the rows."""
    study_runs.print_rows(run(options))


def measure(layer: Layer) -> dict[str, Any]:
    """Measure all sweeps of a layer; returns its row."""
    measured, exponents = {}, {}
    for (quantity, along), sizes in SWEEPS.items():
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
    path_theory = [layer.path(n) for n in PATH_N]
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
