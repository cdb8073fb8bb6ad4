# SPDX-License-Identifier: Apache-2.0
"""Plans a training on machines that are not there: memory, operations, collectives and time.

python -m experiments.plan --config=experiments/configs/wmt14_ende_big.py \\
    --mesh=data:64,model:4 --config.parallel.preset=fsdp_tensor \\
    --config.data.row_multiple=64 --config.data.tokens_per_batch=400000

It compiles the training step for as many simulated CPU devices as the mesh has, runs nothing and
reads no data: the shapes of the batches follow from the config. Several --mesh are compared. What
it reports of a device is XLA's account and what the text of the compiled program holds; the times
for named chips are estimates, under the assumptions that it prints. The last line on standard
output is one JSON object with all figures.
"""

import dataclasses
import json
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from experiments import compose, costs
from experiments.chips import CHIPS, Chip, Estimate, estimate
from experiments.flags import run
from experiments.formatting import byte_size, duration, print_table
from experiments.hlo import Collective
from transformer.config import MESH_AXES, Config, ParallelConfig
from transformer.errors import InputError
from transformer.fields import nearest

MESH = flags.DEFINE_multi_string(
    "mesh",
    [],
    "The devices along each mesh axis, for example data:64,model:4; an axis left out has one. In "
    "place of --config.parallel.data and .model; several are compared",
)
ALL_SHAPES = flags.DEFINE_bool(
    "all_shapes",
    False,
    "Compile the step for every shape of batches, not only for the one with the most operations.",
)
UTILISATION = flags.DEFINE_float(
    "utilisation",
    0.4,
    "The share of a chip's rate that matrix products reach, with all else that a step computes in "
    "it. Large models reach about 0.4, small ones less.",
)

MOST_DEVICES = 2048
"""As many CPU devices as XLA has in one process."""


def main(config: Config) -> None:
    """Prints the plans and, on the last line, their figures."""
    if not 0 < UTILISATION.value <= 1:
        raise InputError(
            f"--utilisation={UTILISATION.value}, but it must be a share above 0 and at most 1"
        )
    meshes = [mesh_of(text) for text in MESH.value] or [config.parallel]
    simulate(max(mesh.data * mesh.model for mesh in meshes))
    # What cannot be is told before anything is compiled, which takes minutes.
    experiments = [
        experiment_on(config.parallel.replace(data=mesh.data, model=mesh.model), config)
        for mesh in dict.fromkeys(meshes)
    ]
    plans = []
    for experiment in experiments:
        plans.append(planned(experiment, all_shapes=ALL_SHAPES.value))
        _print_plan(plans[-1], UTILISATION.value)
    if len(plans) > 1:
        _print_comparison(plans, UTILISATION.value)
    _print_assumptions(config, UTILISATION.value)
    print(json.dumps(figures(plans, UTILISATION.value)))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The training steps of one experiment on one mesh, compiled."""

    config: Config
    parameters: int
    shapes: tuple[costs.Shape, ...]
    """Those compiled, that of the most operations first."""

    @property
    def devices(self) -> int:
        """Along both axes."""
        return self.config.parallel.data * self.config.parallel.model

    @property
    def mesh(self) -> str:
        """As on the command line."""
        return ",".join(f"{axis}:{getattr(self.config.parallel, axis)}" for axis in MESH_AXES)

    def estimate(self, chip: Chip, shape: costs.Shape, utilisation: float) -> Estimate:
        """A step's time on a named chip."""
        cost, dtype = shape.cost, self.config.model.compute_dtype
        return estimate(chip, cost.product_flops, cost.collectives, dtype, utilisation)


def mesh_of(text: str) -> ParallelConfig:
    """The mesh that ``data:64,model:4`` describes.

    Raises:
      InputError: when it describes none.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, colon, size = part.strip().partition(":")
        if not colon:
            raise InputError(f"--mesh={text}: {part!r} has no size; write --mesh=data:64,model:4")
        if axis not in MESH_AXES:
            raise InputError(
                f"--mesh={text}: unknown mesh axis {axis!r}; did you mean "
                f"{nearest(axis, MESH_AXES)!r}?"
            )
        if axis in sizes:
            raise InputError(f"--mesh={text}: the axis {axis!r} is there twice; give it one size")
        if not size.isascii() or not size.isdigit() or int(size) < 1:
            raise InputError(
                f"--mesh={text}: {size!r} devices along {axis!r}, but it must be a whole number of "
                "at least 1"
            )
        sizes[axis] = int(size)
    return ParallelConfig(**sizes)


def simulate(devices: int) -> None:
    """Makes JAX see so many CPU devices and nothing else; where it has been used already, those
    that it sees stay.

    Raises:
      InputError: for more than XLA can simulate.
    """
    if devices > MOST_DEVICES:
        raise InputError(
            f"{devices:,} devices are more than the {MOST_DEVICES:,} that XLA simulates; plan for "
            "fewer, for example with as many rows for each of them"
        )
    try:
        jax.config.update("jax_num_cpu_devices", devices)
    except RuntimeError:
        return
    jax.config.update("jax_platforms", "cpu")


def experiment_on(parallel: ParallelConfig, config: Config) -> compose.Experiment:
    """The experiment, without data, on a mesh.

    Raises:
      InputError: for what `train` would refuse, data aside.
    """
    training = config.training
    automatic = training.batch_fitting == "auto" and training.micro_batches is None
    if automatic and training.memory_limit_gib is None:
        raise InputError(
            "training.batch_fitting='auto' goes by the memory of the devices that are there; give "
            "--config.training.memory_limit_gib=GIB, of the devices to plan for"
        )
    experiment = costs.experiment_of_shapes(config.replace(parallel=parallel))
    _ = experiment.abstract_state  # how every parameter is divided is checked by making it
    return experiment


def planned(experiment: compose.Experiment, *, all_shapes: bool) -> Plan:
    """Compiles the step for every shape of batches, or for the one with the most operations."""
    model = experiment.config.model
    shapes = sorted(
        experiment.data.train.shapes(), key=lambda shape: -costs.step_flops(model, *shape)
    )
    parameters = sum(leaf.size for leaf in jax.tree.leaves(experiment.abstract_state.params))
    compiled = [_compiled(experiment, *shape) for shape in (shapes if all_shapes else shapes[:1])]
    return Plan(experiment.config, parameters, tuple(compiled))


def _compiled(experiment: compose.Experiment, rows: int, length: int) -> costs.Shape:
    began = time.monotonic()
    devices = _devices(experiment.mesh.size)
    _say(f"compiling the step for batches of {rows} x {length} tokens on {devices}")
    _, shape = costs.compiled_shape(experiment, rows, length, 1)
    _say(f"compiled in {duration(time.monotonic() - began)}")
    return shape


def figures(plans: Sequence[Plan], utilisation: float) -> dict[str, Any]:
    """Everything that is printed, in bytes, operations and seconds."""
    first = plans[0]
    return {
        "parameters": first.parameters,
        "compute_dtype": first.config.model.compute_dtype,
        "steps": first.config.training.steps,
        "utilisation": utilisation,
        "plans": [
            {
                "mesh": {axis: getattr(plan.config.parallel, axis) for axis in MESH_AXES},
                "preset": plan.config.parallel.preset,
                "rules": plan.config.parallel.rules,
                "micro_batches": plan.config.training.micro_batches or 1,
                "shapes": [_figures_of(plan, shape, utilisation) for shape in plan.shapes],
            }
            for plan in plans
        ],
    }


def _figures_of(plan: Plan, shape: costs.Shape, utilisation: float) -> dict[str, Any]:
    cost = shape.cost
    chips = {}
    for chip in CHIPS:
        seconds = plan.estimate(chip, shape, utilisation)
        between = (seconds.overlapped, seconds.in_turn)
        chips[chip.name] = {
            "memory_bytes": chip.memory_bytes,
            "fits": cost.peak_bytes <= chip.memory_bytes,
            "product_seconds": seconds.products,
            "collective_seconds": seconds.collectives,
            "step_seconds": between,
            "target_positions_per_second": [shape.rows * shape.length / one for one in between],
            "training_seconds": [plan.config.training.steps * one for one in between],
        }
    return {
        "rows": shape.rows,
        "length": shape.length,
        "argument_bytes": cost.argument_bytes,
        "output_bytes": cost.output_bytes,
        "temporary_bytes": cost.temporary_bytes,
        "peak_bytes": cost.peak_bytes,
        "flops": cost.flops,
        "product_flops": cost.product_flops,
        "model_flops": shape.flops,
        "collectives": [
            {
                "kind": one.kind,
                "axes": one.axes,
                "devices": len(one.group),
                "count": one.count,
                "bytes": one.bytes,
                "sent_bytes": one.sent_bytes,
            }
            for one in cost.collectives
        ],
        "chips": chips,
    }


# Text.


def _print_plan(plan: Plan, utilisation: float) -> None:
    """Of one mesh."""
    config, shape = plan.config, plan.shapes[0]
    parallel = config.parallel
    rules = f" with the rules {', '.join(parallel.rules)}" if parallel.rules else ""
    print(f"\nMesh {plan.mesh} ({_devices(plan.devices)}), preset {parallel.preset}{rules}")
    parts = config.training.micro_batches or 1
    print(
        f"  {plan.parameters:,} parameters, {config.model.compute_dtype}, optimizer "
        f"{config.optimizer.name}, {parts} micro-batch{'es' if parts > 1 else ''}"
    )
    print("\nA step on one device")
    _print_shapes(plan)
    print(f"\nIts collectives, for batches of {shape.rows} x {shape.length} tokens")
    _print_collectives(shape.cost.collectives)
    print("\nIts time, estimated")
    _print_chips(plan, shape, utilisation)


def _print_shapes(plan: Plan) -> None:
    head = ["rows x length", "arguments", "temporaries", "peak", "products", "of even shares"]
    rows = [[*head, "XLA's count"]]
    for shape in plan.shapes:
        cost = shape.cost
        rows.append(
            [
                f"{shape.rows} x {shape.length}",
                byte_size(cost.argument_bytes),
                byte_size(cost.temporary_bytes + cost.output_bytes),
                byte_size(cost.peak_bytes),
                f"{cost.product_flops:.3e} FLOPs",
                f"{cost.product_flops * plan.devices / shape.flops:.1%}",
                f"{cost.flops:.3e} FLOPs",
            ]
        )
    print_table(rows)
    more = max(shape.cost.product_flops / shape.flops for shape in plan.shapes) * plan.devices - 1
    if more > 0.05:
        print(
            f"  note      the devices compute up to {more:.0%} more than their even shares: "
            "something is computed more than once"
        )


def _print_collectives(collectives: Sequence[Collective]) -> None:
    if not collectives:
        print("  none")
        return
    rows = [["kind", "along", "devices", "a step", "arrays", "a device sends"]]
    for one in collectives:
        rows.append(
            [
                one.kind,
                " and ".join(one.axes),
                f"{len(one.group)}",
                f"{one.count:,}",
                byte_size(one.bytes),
                byte_size(one.sent_bytes),
            ]
        )
    print_table(rows)


def _print_chips(plan: Plan, shape: costs.Shape, utilisation: float) -> None:
    steps, positions = plan.config.training.steps, shape.rows * shape.length
    rows = [["chip", "memory", "products", "collectives", "a step", "positions a second"]]
    rows[0] += [f"{steps:,} steps", "the longer is"]
    for chip in CHIPS:
        seconds = plan.estimate(chip, shape, utilisation)
        low, high = seconds.overlapped, seconds.in_turn
        share = shape.cost.peak_bytes / chip.memory_bytes
        rows.append(
            [
                chip.name,
                f"{share:.0%}" if share <= 1 else f"{share:.0%}: too small",
                _step_time(seconds.products),
                _step_time(seconds.collectives),
                _between(_step_time(low), _step_time(high)),
                _between(f"{positions / high / 1e3:,.0f} k", f"{positions / low / 1e3:,.0f} k"),
                _between(duration(steps * low), duration(steps * high)),
                _longer(chip, seconds, shape.cost.collectives),
            ]
        )
    print_table(rows)


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count:,} devices"


def _step_time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _between(low: str, high: str) -> str:
    """Two figures with their units, a common one once."""
    number, _, unit = low.partition(" ")
    if low == high:
        return low
    return f"{number if high.endswith(' ' + unit) else low} to {high}"


def _longer(chip: Chip, seconds: Estimate, collectives: Sequence[Collective]) -> str:
    """The products, or the kind of collectives that takes most of their time."""
    slowest = max(collectives, key=chip.seconds, default=None)
    if slowest is None or seconds.products >= seconds.collectives:
        return "products"
    return f"{slowest.kind} along {' and '.join(slowest.axes)}"


def _print_comparison(plans: Sequence[Plan], utilisation: float) -> None:
    """One line a mesh."""
    print("\nThe meshes compared: positions a second when collectives and products overlap")
    rows = [["mesh", "batch", "peak", "of even shares", "sent", *(chip.name for chip in CHIPS)]]
    for plan in plans:
        shape = plan.shapes[0]
        cost = shape.cost
        row = [
            plan.mesh,
            f"{shape.rows} x {shape.length}",
            byte_size(cost.peak_bytes),
            f"{cost.product_flops * plan.devices / shape.flops:.1%}",
            byte_size(sum(one.sent_bytes for one in cost.collectives)),
        ]
        for chip in CHIPS:
            seconds = plan.estimate(chip, shape, utilisation)
            rate = f"{shape.rows * shape.length / seconds.overlapped:,.0f}"
            row.append(rate if cost.peak_bytes <= chip.memory_bytes else "too small")
        rows.append(row)
    print_table(rows)


def _print_assumptions(config: Config, utilisation: float) -> None:
    dtype = config.model.compute_dtype
    rates = ", ".join(
        f"{chip.name} {chip.product_flops[dtype] / 1e12:.0f} TFLOP/s" for chip in CHIPS
    )
    notes = [
        "The step is compiled by XLA for simulated CPU devices. Compilers for GPUs and TPUs fuse "
        "more (less memory), pad small arrays (more memory on TPUs), add sums up before they "
        "reduce them (fewer all-reduces), and reduce what is divided with reduce-scatter, which "
        "sends half as much.",
        f"Products reach {utilisation:.0%} of the chip's dense rate in {dtype} ({rates}; float32 "
        "in TF32 or, on TPUs, bfloat16, as JAX does by default). That share stands for all else "
        "that a step computes and for waiting on memory, too; --utilisation changes it.",
        "Collectives are rings at the full rate of the links, without start-up: H100 and H200 "
        "eight to a machine by NVLink (450 GB/s), between machines with 400 Gb/s a device; TPU v5e "
        "and v5p along one dimension of the torus (100 and 200 GB/s) of one slice.",
        "The shorter time is that of products and collectives at once, the longer one of one after "
        "the other; positions are those of the target, padding included.",
    ]
    if dtype == "bfloat16":
        notes.insert(
            1,
            "XLA's CPU backend computes products of bfloat16 in float32, so that temporaries are "
            "too large here, up to twice; collectives are counted as the bfloat16 that they are.",
        )
    print("\nAssumptions")
    for note in notes:
        print(textwrap.fill(note, 100, initial_indent="  - ", subsequent_indent="    "))
    print()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, config_from="config")
