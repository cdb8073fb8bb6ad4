# SPDX-License-Identifier: Apache-2.0
"""Plan a training run on hardware that is not there: memory, FLOPs, collectives, roofline time.

python -m experiments.plan --config=experiments/configs/wmt14_ende_big.py \\
    --mesh=data:64,model:4 --config.parallel.preset=fsdp_tensor \\
    --config.data.row_multiple=64 --config.data.tokens_per_batch=400000

The training step is compiled for simulated CPU devices; nothing runs and no data are read. Memory
is XLA's account, collectives are counted in the compiled program, FLOPs follow from the formula of
the model. Times for named chips are roofline arithmetic, not measurements. Repeat --mesh to compare
several. The last line on standard output is one JSON object with all figures.
"""

import dataclasses
import json
import math
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from experiments import compose, costs
from experiments.collectives import count_collectives
from experiments.flags import run
from experiments.formatting import byte_size, duration, print_table
from experiments.roofline import CHIPS
from transformer.config import MESH_AXES, Config, ParallelConfig
from transformer.errors import InputError
from transformer.fields import nearest

MESH = flags.DEFINE_multi_string(
    "mesh",
    [],
    "Devices along each mesh axis, for example data:64,model:4; an axis that is not named has one "
    "device. Overrides --config.parallel.data and .model. Repeat it to compare meshes.",
)
ALL_SHAPES = flags.DEFINE_bool(
    "all_shapes", False, "Compile every batch shape, not only the one with the most FLOPs."
)
UTILIZATION = flags.DEFINE_float(
    "utilization",
    0.4,
    "Fraction of a chip's peak FLOP/s that a step is assumed to reach: about 0.4 for large models, "
    "less for small ones.",
)
flags.DEFINE_alias("utilisation", "utilization")

MAX_DEVICES = 2048
"""Limit of simulated CPU devices in one process."""

Figures = dict[str, Any]
"""Figures of a plan in bytes, FLOPs and seconds, as in the JSON line."""


def main(config: Config) -> None:
    """Compile the step on every mesh; print the plans and their figures."""
    if not 0 < UTILIZATION.value <= 1:
        raise InputError(
            f"--utilization={UTILIZATION.value}, but it must be a fraction above 0 and at most 1"
        )
    meshes = [parse_mesh(text) for text in MESH.value] or [config.parallel]
    simulate_devices(max(mesh.data * mesh.model for mesh in meshes))
    # Compiling takes minutes, so every experiment is validated first.
    experiments = [
        build_experiment(config, config.parallel.replace(data=mesh.data, model=mesh.model))
        for mesh in dict.fromkeys(meshes)
    ]
    plans = []
    for experiment in experiments:
        plans.append(make_plan(experiment, UTILIZATION.value, all_shapes=ALL_SHAPES.value))
        _print_plan(plans[-1])
    if len(plans) > 1:
        _print_comparison(plans)
    _print_assumptions(config.model.compute_dtype)
    print(json.dumps({"utilization": UTILIZATION.value, "plans": plans}))


def parse_mesh(text: str) -> ParallelConfig:
    """Parse ``data:64,model:4``.

    Raises:
      InputError: if the text does not describe a mesh.
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
            raise InputError(f"--mesh={text}: the axis {axis!r} is given twice; give it one size")
        if not size.isascii() or not size.isdigit() or int(size) < 1:
            raise InputError(
                f"--mesh={text}: {size!r} devices along {axis!r}, but it must be a whole number of "
                "at least 1"
            )
        sizes[axis] = int(size)
    return ParallelConfig(**sizes)


def simulate_devices(count: int) -> None:
    """Make JAX see `count` CPU devices, unless its backend is initialized already.

    Raises:
      InputError: for more devices than XLA can simulate.
    """
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
    training = config.training
    automatic = training.batch_fitting == "auto" and training.micro_batches is None
    if automatic and training.memory_limit_gib is None:
        raise InputError(
            "training.batch_fitting='auto' depends on the memory of the devices; give "
            "--config.training.memory_limit_gib=GIB for the devices of the plan"
        )
    experiment = costs.experiment_of_shapes(config.replace(parallel=parallel))
    _ = experiment.abstract_state  # checks the sharding of every parameter
    return experiment


def make_plan(experiment: compose.Experiment, utilization: float, *, all_shapes: bool) -> Figures:
    """Compile the step for all batch shapes, or the one with the most FLOPs; return the figures."""
    config = experiment.config
    shapes = sorted(
        experiment.data.train.shapes(),
        key=lambda shape: -costs.step_flops(experiment.model, *shape),
    )
    return {
        "mesh": dict(experiment.mesh.shape),
        "preset": config.parallel.preset,
        "rules": config.parallel.rules,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(experiment.abstract_state.params)),
        "compute_dtype": config.model.compute_dtype,
        "optimizer": config.optimizer.name,
        "micro_batches": config.training.micro_batches or 1,
        "steps": config.training.steps,
        "shapes": [
            _shape_figures(experiment, rows, length, utilization)
            for rows, length in (shapes if all_shapes else shapes[:1])
        ],
    }


def _shape_figures(
    experiment: compose.Experiment, rows: int, length: int, utilization: float
) -> Figures:
    config, mesh = experiment.config, experiment.mesh
    micro_batches = config.training.micro_batches or 1
    _log(f"compiling the step for batches of {rows} x {length} tokens on {_devices(mesh.size)}")
    began = time.monotonic()
    program, cost = costs.compile_step(experiment, rows, length)
    _log(f"compiled in {duration(time.monotonic() - began)}")
    flops, memory = cost.flops / mesh.size, cost.memory
    bytes_accessed = float(program.cost_analysis().get("bytes accessed", 0.0)) * micro_batches
    collectives = count_collectives(program.as_text(), mesh.shape, micro_batches)
    chips = {}
    for chip in CHIPS:
        seconds = chip.roofline(
            flops / utilization, config.model.compute_dtype, bytes_accessed, collectives
        )
        step = [max(seconds.values()), sum(seconds.values())]  # all overlapped, nothing overlapped
        chips[chip.name] = {
            "memory_share": memory.peak_bytes / chip.memory_bytes,
            "fits": memory.peak_bytes <= chip.memory_bytes,
            **{f"{resource}_seconds": value for resource, value in seconds.items()},
            "bound": max(seconds, key=seconds.get),
            "step_seconds": step,
            "target_positions_per_second": [rows * length / one for one in step],
            "training_seconds": [config.training.steps * one for one in step],
        }
    return {
        "rows": rows,
        "length": length,
        **dataclasses.asdict(memory),
        "peak_bytes": memory.peak_bytes,
        "flops": flops,
        "xla_flops": cost.xla_flops,
        "bytes_accessed": bytes_accessed,
        "sent_bytes": sum(one.sent_bytes for one in collectives),
        "collectives": [
            {**dataclasses.asdict(one), "group": len(one.group), "sent_bytes": one.sent_bytes}
            for one in collectives
        ],
        "chips": chips,
    }


# Text.


def _print_plan(plan: Figures) -> None:
    devices = _devices(math.prod(plan["mesh"].values()))
    rules = f" with rules {', '.join(plan['rules'])}" if plan["rules"] else ""
    print(f"\nMesh {_mesh(plan)} ({devices}), preset {plan['preset']}{rules}")
    print(
        f"  {plan['parameters']:,} parameters, {plan['compute_dtype']}, optimizer "
        f"{plan['optimizer']}, micro-batches: {plan['micro_batches']}"
    )
    for shape in plan["shapes"]:
        print(f"\nOne step on one device, batches of {shape['rows']} x {shape['length']} tokens")
        temporary_bytes = shape["temporary_bytes"] + shape["output_bytes"]
        print(
            f"  memory: {byte_size(shape['peak_bytes'])}, of which arguments "
            f"{byte_size(shape['argument_bytes'])} and temporaries {byte_size(temporary_bytes)}\n"
            f"  FLOPs of the matmuls: {shape['flops']:.3e}; XLA counts {shape['xla_flops']:.3e} "
            f"({shape['xla_flops'] / shape['flops']:.0%})"
        )
        table = [["collectives", "axes", "group", "count", "bytes", "sent by a device"]]
        for one in shape["collectives"]:
            sizes = byte_size(one["bytes"]), byte_size(one["sent_bytes"])
            counts = f"{one['group']}", f"{one['count']:,}"
            table.append([one["kind"], " and ".join(one["axes"]), *counts, *sizes])
        print_table(table) if shape["collectives"] else print("  collectives: none")
        table = [["roofline", "memory", "compute", "HBM", "network", "a step"]]
        table[0] += [f"{plan['steps']:,} steps", "bound"]
        for name, chip in shape["chips"].items():
            seconds = [chip[f"{resource}_seconds"] for resource in ("compute", "memory", "network")]
            table.append(
                [
                    name,
                    f"{chip['memory_share']:.0%}" + ("" if chip["fits"] else ": too small"),
                    *map(_milliseconds, seconds),
                    " to ".join(map(_milliseconds, chip["step_seconds"])),
                    " to ".join(map(duration, chip["training_seconds"])),
                    chip["bound"],
                ]
            )
        print_table(table)


def _print_comparison(plans: Sequence[Figures]) -> None:
    """Print one line per mesh."""
    print("\nComparison of the meshes: target positions per second, everything overlapped")
    table = [["mesh", "memory", "sent by a device", *(chip.name for chip in CHIPS)]]
    for plan in plans:
        shape = plan["shapes"][0]
        rates = [
            f"{chip['target_positions_per_second'][0]:,.0f}" if chip["fits"] else "too small"
            for chip in shape["chips"].values()
        ]
        sizes = byte_size(shape["peak_bytes"]), byte_size(shape["sent_bytes"])
        table.append([_mesh(plan), *sizes, *rates])
    print_table(table)


def _print_assumptions(dtype: str) -> None:
    peaks = "; ".join(
        f"{chip.name}: {chip.peak_flops[dtype] / 1e12:.0f} TFLOP/s, "
        f"{chip.memory_bandwidth / 1e12:.2g} TB/s, {chip.link_bandwidth / 1e9:.0f} GB/s"
        for chip in CHIPS
    )
    notes = [
        "Memory, bytes accessed and collectives are those of XLA's program for simulated CPU "
        "devices. On GPUs and TPUs, XLA fuses more and combines collectives. Its CPU backend "
        "computes bfloat16 matmuls in float32, which makes temporaries up to twice as large.",
        "FLOPs follow from the sizes of the model, divided evenly over the devices. XLA's count "
        "has the body of a loop only once. Far above 100%, devices repeat each other's work.",
        "Roofline times are arithmetic on published peak rates, not measurements: "
        f"{UTILIZATION.value:.0%} of the peak FLOP/s in {dtype} (--utilization), full memory and "
        f"link bandwidth, no latency; from all overlapped to nothing overlapped. {peaks}.",
    ]
    print("\nAssumptions")
    for note in notes:
        print(textwrap.fill(note, 100, initial_indent="  - ", subsequent_indent="    "))
    print()


def _mesh(plan: Figures) -> str:
    return ",".join(f"{axis}:{size}" for axis, size in plan["mesh"].items())


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count:,} devices"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms"


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, config_from="config")
