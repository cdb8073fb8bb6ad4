# SPDX-License-Identifier: Apache-2.0
"""Plan a training run on hardware that is not there: memory, FLOPs, and time of the matmuls.

transformer plan --config=wmt14_ende_big \\
    --mesh=data:64,model:4 --config.parallel.preset=fsdp_tensor \\
    --config.data.row_multiple=64 --config.data.tokens_per_batch=400000

The training step is compiled for simulated CPU devices; nothing runs and no data are read. Memory
is XLA's account, FLOPs follow from the formula of the model. Times for named chips are arithmetic,
not measurements. Repeat --mesh to compare several. The last line on standard output is one JSON
object with all figures.
"""

import dataclasses
import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import jax

from experiments.cli import command_line
from experiments.console.formatting import byte_size, duration, table
from experiments.console.progress import say
from experiments.planning import costs
from experiments.planning.chips import CHIPS
from experiments.training import compose
from transformer.config import MESH_AXES, Config, ParallelConfig
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options:
    """The training, and the hardware."""

    config: Config = Config()
    """The experiment."""
    mesh: tuple[str, ...] = dataclasses.field(default=(), metadata={"repeated": True})
    """Devices along each mesh axis, for example data:64,model:4; an axis that is not named has one
    device. Overrides --config.parallel.data and .model. Repeat it to compare meshes.
    """
    utilization: float = 0.4
    """Fraction of a chip's peak FLOP/s that a step is assumed to reach: about 0.4 for large models,
    less for small ones.
    """


MAX_DEVICES = 2048
"""Limit of simulated CPU devices in one process."""

ASSUMPTIONS = """\
Memory is that of XLA's program for simulated CPU devices. On GPUs and TPUs, XLA fuses more. Its CPU
backend computes bfloat16 matmuls in float32, which makes temporaries up to twice as large, and it
undoes model.remat: "kept" is what JAX keeps of the forward pass for the backward pass, before XLA
fuses it.
FLOPs are those of the matmuls, from the sizes of the model, divided evenly over the devices.
Times are arithmetic on published peak rates (experiments/planning/chips.py), not measurements:
{:.0%} of the peak FLOP/s in {} (--utilization), which stands for all that is not a matmul, the
network included."""


def run(options: Options) -> list[dict[str, Any]]:
    """Compile the step on every mesh; return the figures of each plan."""
    config = options.config
    if not 0 < options.utilization <= 1:
        raise InputError(
            f"--utilization={options.utilization}, but it must be a fraction above 0 and at most 1"
        )
    training = config.training
    automatic = training.batch_fitting == "auto" and training.micro_batches is None
    if automatic and training.memory_limit_gib is None:
        raise InputError(
            "training.batch_fitting='auto' depends on the memory of the devices; give "
            "--config.training.memory_limit_gib=GIB for the devices of the plan"
        )
    meshes = [parse_mesh(text) for text in options.mesh] or [config.parallel]
    simulate_devices(max(mesh.data * mesh.model for mesh in meshes))
    # Compiling takes minutes, so every experiment is validated first.
    experiments = [
        build_experiment(config, config.parallel.replace(data=mesh.data, model=mesh.model))
        for mesh in dict.fromkeys(meshes)
    ]
    return [make_plan(experiment, options.utilization) for experiment in experiments]


def main(options: Options) -> None:
    """Print the plans and their figures."""
    plans = run(options)
    print_plans(plans)
    text = ASSUMPTIONS.format(options.utilization, options.config.model.compute_dtype)
    print("\nAssumptions\n" + textwrap.indent(text, "  "))
    print(json.dumps({"utilization": options.utilization, "plans": plans}))


def parse_mesh(text: str) -> ParallelConfig:
    """Parse ``data:64,model:4``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+):([1-9][0-9]*)\s*", part)
        if not match or match[1] not in MESH_AXES or match[1] in sizes:
            raise InputError(
                f"--mesh={text}: {part!r} is not the size of one more mesh axis; write for example "
                f"--mesh=data:64,model:4 (the axes are {' and '.join(MESH_AXES)})"
            )
        sizes[match[1]] = int(match[2])
    return ParallelConfig(**sizes)


def simulate_devices(count: int) -> None:
    """Make JAX see `count` CPU devices, unless its backend is initialized already."""
    if count > MAX_DEVICES:
        raise InputError(
            f"{count:,} devices are more than the {MAX_DEVICES:,} that XLA simulates; plan for "
            "fewer, for example with the same number of rows per device"
        )
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return
    jax.config.update("jax_platforms", "cpu")


def build_experiment(config: Config, parallel: ParallelConfig) -> compose.Experiment:
    """Compose the experiment on a mesh, without data.

    Raises:
      InputError: for everything that `train` rejects, except data.
    """
    experiment = costs.experiment_of_shapes(config.replace(parallel=parallel))
    _ = experiment.abstract_state  # checks the sharding of every parameter
    return experiment


def make_plan(experiment: compose.Experiment, utilization: float) -> dict[str, Any]:
    """Compile the step for the batch shape with the most FLOPs; return its figures.

    Figures are bytes, FLOPs and seconds of one device.
    """
    config, mesh = experiment.config, experiment.mesh
    micro_batches = config.training.micro_batches or 1
    rows, length = max(
        experiment.data.train.shapes(), key=lambda shape: costs.step_flops(experiment.model, *shape)
    )
    about = f"batches of {rows} x {length} tokens on {mesh.size:,} devices"
    say(f"compiling the step for {about}")
    program, cost = costs.compile_step(experiment, rows, length)
    flops = cost.flops / mesh.size
    chips = {}
    for chip in CHIPS:
        seconds = flops / utilization / chip.peak_flops[config.model.compute_dtype]
        chips[chip.name] = {
            "memory_share": cost.peak_bytes / chip.memory_bytes,
            "step_seconds": seconds,
            "training_seconds": config.training.steps * seconds,
        }
    return {
        "mesh": dict(mesh.shape),
        "preset": config.parallel.preset,
        "parameters": experiment.num_parameters,
        "micro_batches": micro_batches,
        "rows": rows,
        "length": length,
        "argument_bytes": program.memory_analysis().argument_size_in_bytes,
        "peak_bytes": cost.peak_bytes,
        "saved_bytes": compose.saved_bytes(experiment, rows, length),
        "flops": flops,
        "chips": chips,
    }


def print_plans(plans: Sequence[dict[str, Any]]) -> None:
    """Print tables with one line per mesh, and per mesh and chip."""
    steps = [["mesh", "batch", "parameters", "arguments", "kept", "memory", "matmul FLOPs"]]
    times = [["mesh", "chip", "memory", "step", "training"]]
    for plan in plans:
        mesh = ",".join(f"{axis}:{size}" for axis, size in plan["mesh"].items())
        batch, parameters = f"{plan['rows']} x {plan['length']}", f"{plan['parameters']:,}"
        names = ("argument_bytes", "saved_bytes", "peak_bytes")
        sizes = [byte_size(plan[name]) for name in names]
        steps.append([mesh, batch, parameters, *sizes, f"{plan['flops']:.3e}"])
        for name, chip in plan["chips"].items():
            step, training = chip["step_seconds"], duration(chip["training_seconds"])
            share = f"{chip['memory_share']:.0%}"
            times.append([mesh, name, share, f"{step * 1e3:.3g} ms", training])
    for title, rows in (
        (f"One step on one device, preset {plans[0]['preset']}", steps),
        ("One step and the training: arithmetic, not measurements", times),
    ):
        print(f"\n{title}\n" + textwrap.indent(table(rows), "  "))
    if any(chip["memory_share"] > 1 for plan in plans for chip in plan["chips"].values()):
        print(
            "\nAbove 100% of its memory a chip cannot compute the step: add devices, "
            "--config.training.micro_batches,\nor --config.model.remat=full, which keeps less of "
            "the forward pass and computes it again."
        )


if __name__ == "__main__":
    command_line.run(main, "config", Options)
