# SPDX-License-Identifier: Apache-2.0
"""Memory that a compiled program needs on each device, and memory that the device has."""

import dataclasses
import os
import pathlib
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class MemoryUsage:
    """XLA's `memory_analysis` of one call on one device, in bytes."""

    argument_bytes: int
    output_bytes: int
    """Outputs that do not reuse the memory of donated arguments."""
    temporary_bytes: int
    """Activations and everything else that is freed when the call returns."""

    @property
    def peak_bytes(self) -> int:
        """Arguments, outputs and temporaries together."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes


def memory_usage(program: jax.stages.Compiled) -> MemoryUsage:
    """Memory that a call of a compiled program needs on each device."""
    memory = program.memory_analysis()
    return MemoryUsage(
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes - memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
    )


def required_bytes(step: Any, *arguments: Any) -> int:
    """Compile a jitted function ahead of time and return the peak memory of a call.

    Args:
      step: result of `jax.jit`.
      arguments: arrays or `jax.ShapeDtypeStruct`; nothing is allocated or run.
    """
    return memory_usage(step.lower(*arguments).compile()).peak_bytes


def available_bytes() -> int:
    """Memory of a device; on the CPU, that of the machine or the limit of its container."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container = pathlib.Path("/sys/fs/cgroup/memory.max")
    try:
        return min(machine, int(container.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return machine
