# SPDX-License-Identifier: Apache-2.0
"""Measure table 1 of "Attention Is All You Need": the cost of a layer, and how far it can read.

python -m experiments.studies.layer_costs --output=runs/layer_costs

For the project's own attention, LSTM and convolution over n positions of width d:

- floating-point operations of the compiled layer, from XLA. XLA counts the body of a loop once, so
  those of the body are added for every further step;
- sequential operations: the longest chain of matmuls of which each needs the result of the last;
- maximum path length: how often the layer is applied to all positions until the Jacobian of the
  last output by the first input is not zero;
- seconds of a forward pass.

Exponents are fitted to each in n and in d, beside the theory. Every measurement is kept in
``measurements.jsonl`` and not repeated. The table is written to ``layer_costs.md`` and
``layer_costs.json``, the figure to ``layer_costs.png``.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, Literal

from etils import epath

from experiments.cli.command_line import run
from experiments.studies.layer_measurements import LAYERS, Measurements, Point, Quantity, exponent
from transformer import paths
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures import parts, style


@dataclasses.dataclass(frozen=True)
class Options:
    """The sizes of the layers, and where the results go."""

    output: str | None = None
    """Directory of the table, the figure and the data."""
    n: tuple[int, ...] = (64, 128, 256, 512, 1024)
    """Numbers of positions."""
    d: tuple[int, ...] = (64, 128, 256, 512)
    """Widths."""
    path_n: tuple[int, ...] = (3, 9, 27, 81, 243)
    """Numbers of positions for path lengths."""


@dataclasses.dataclass(frozen=True)
class Sweeps:
    """The numbers of positions and widths that are measured."""

    lengths: Sequence[int]
    widths: Sequence[int]
    path_lengths: Sequence[int]

    def points(self, layer: str, quantity: Quantity, along: Literal["n", "d"]) -> list[Point]:
        """The points of a sweep along n or d; the other is the smallest or one of the middle."""
        if along == "d":
            n = self.lengths[len(self.lengths) // 2]
            return [Point(layer, quantity, n, d) for d in self.widths]
        if quantity == "path":
            return [Point(layer, quantity, n, PATH_WIDTH) for n in self.path_lengths]
        return [Point(layer, quantity, n, self.widths[0]) for n in self.lengths]


PATH_WIDTH = 4
"""Width of the layers whose Jacobians are computed."""


def summarize(measurements: Measurements, sweeps: Sweeps) -> list[dict[str, Any]]:
    """Measure every sweep of every layer; one row of the table for each layer."""
    rows = []
    for layer in LAYERS:

        def fitted(quantity: Quantity, along: Literal["n", "d"], name: str = layer.name) -> float:
            points = sweeps.points(name, quantity, along)
            xs = [getattr(point, along) for point in points]
            return exponent(xs, map(measurements.measure, points))

        paths_of = sweeps.points(layer.name, "path", "n")
        rows.append(
            {
                "layer": layer.name,
                "complexity": layer.complexity,
                "theory": {"n": layer.exponents[0], "d": layer.exponents[1]},
                "flops": {along: fitted("flops", along) for along in ("n", "d")},
                "sequential": {"n": fitted("sequential", "n"), "theory": layer.sequential},
                "path": {point.n: int(measurements.measure(point)) for point in paths_of},
                "path_exponent": fitted("path", "n"),
                "path_theory": {point.n: layer.path(point.n) for point in paths_of},
                "seconds": {along: fitted("seconds", along) for along in ("n", "d")},
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown."""
    longest = max(rows[0]["path"])
    header = (
        "| layer | complexity | FLOPs: exponent of n | of d | sequential: exponent of n "
        f"| longest path at n = {longest} | its formula | time: exponent of n | of d |"
    )
    lines = [header, "|---" * header.count(" |") + "|"]
    formulas = {layer.name: layer.path_formula for layer in LAYERS}
    for row in rows:
        cells = [row["layer"], row["complexity"]]
        for along in ("n", "d"):
            theory = row["theory"][along]
            suffix = "" if theory is None else f" ({theory})"
            cells.append(f"{row['flops'][along]:.2f}{suffix}")
        cells.append(f"{row['sequential']['n']:.2f} ({row['sequential']['theory']})")
        cells.append(f"{row['path'][longest]} ({row['path_theory'][longest]})")
        cells.append(formulas[row["layer"]])
        cells += [f"{row['seconds'][along]:.2f}" for along in ("n", "d")]
        lines.append("| " + " | ".join(cells) + " |")
    note = "Fitted to measurements; in parentheses the theory."
    return "\n".join([*lines, "", note, ""])


@style.styled
def draw(measurements: Measurements, sweeps: Sweeps) -> figures.DescribedFigure:
    """Floating-point operations by n and by d, path lengths, and time, on logarithmic axes."""
    panels: list[tuple[Quantity, Literal["n", "d"], str]] = [
        ("flops", "n", "Floating-point operations"),
        ("flops", "d", "Floating-point operations"),
        ("path", "n", "Maximum path length"),
        ("seconds", "n", "Seconds of a forward pass"),
    ]
    width, height, left, gap = 2.9, 2.1, 0.5, 0.7
    title = "What a layer costs, and how far it reads"
    legend = 0.2 * math.ceil(len(LAYERS) / 2)
    figure = parts.sheet(2 * (left + width) + gap, 2 * (height + gap) + legend, title)
    for index, (quantity, along, heading) in enumerate(panels):
        row, column = divmod(index, 2)
        x = left + column * (width + left + gap)
        ax = parts.axes(figure, x, 0.1 + row * (height + gap), width, height, quantity + along)
        for number, layer in enumerate(LAYERS):
            points = sweeps.points(layer.name, quantity, along)
            values = [measurements.values[point] for point in points]
            xs = [getattr(point, along) for point in points]
            ax.plot(xs, values, **_line(number))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.minorticks_off()
        ax.set_xticks(xs, map(str, xs))
        ticks = _ticks(*ax.get_ylim())
        ax.set_yticks(ticks, map(_number, ticks))
        ax.grid(color=style.FAINT, linewidth=0.5)
        ax.spines[["top", "right"]].set_visible(False)
        axis = {"n": "positions n", "d": "width d"}[along]
        fixed = "n" if along == "d" else "d"
        ax.set_xlabel(f"{axis}, for {fixed} = {getattr(points[0], fixed)}")
        ax.set_title(heading, loc="left", fontsize=style.HEADING)
    for number, layer in enumerate(LAYERS):
        row, column = divmod(number, 2)
        x, y = left + column * (width + left + gap), 2 * (height + gap) + 0.2 * row
        figure.content.plot([x, x + 0.4], [y, y], **_line(number))
        parts.put_text(figure.content, x + 0.5, y, layer.name, ha="left")
    figure.description = (
        f"{title}. Four plots on logarithmic axes: {'; '.join(p[2] for p in panels)}. Attention "
        "grows with the square of n, recurrence and convolution with the square of d. The path is "
        "1 for attention, n for recurrence, a multiple of n for convolution and its logarithm if "
        "dilated."
    )
    return figure


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten between the limits; multiples of 3 too if they are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if len(powers) > 4 else (1, 3)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


def _number(value: float) -> str:
    """A number of one digit: 300, 3 · 10⁶ or 10⁻⁴."""
    if 1e-2 <= value < 1e4:
        return f"{value:g}"
    digit, _, power = f"{value:.0e}".partition("e")
    power = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{power}" if digit == "1" else f"{digit} · 10{power}"


def _line(number: int) -> dict[str, Any]:
    color = style.LINE_COLORS[number % len(style.LINE_COLORS)]
    look = {"linewidth": 1.4, "marker": "o", "markersize": 3}
    return look | {"color": color, "linestyle": style.DASHES[number % 4]}


def main(options: Options) -> None:
    """Measure what is missing, and write the table and the figure."""
    if not options.output:
        raise InputError("missing --output=DIR")
    output = paths.absolute(options.output)
    output.mkdir(parents=True, exist_ok=True)
    write(output, Sweeps(*map(sorted, (options.n, options.d, options.path_n))))
    print(output / "layer_costs.md")


def write(output: epath.Path, sweeps: Sweeps) -> list[dict[str, Any]]:
    """Measure what is missing in a directory, write its table and figure, and return the rows."""
    measurements = Measurements(output / "measurements.jsonl")
    rows = summarize(measurements, sweeps)
    (output / "layer_costs.json").write_text(json.dumps(rows, indent=2) + "\n")
    (output / "layer_costs.md").write_text(table(rows))
    figures.save(draw(measurements, sweeps), output / "layer_costs.png")
    return rows


if __name__ == "__main__":
    run(main, None, Options)
