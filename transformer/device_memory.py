# SPDX-License-Identifier: Apache-2.0
"""Memory that a computation needs on each device, and memory that the device has."""

import contextlib
import dataclasses
import math
import os
import pathlib
from typing import Any

import jax

from transformer.errors import InputError


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
    """Memory of a device; CPU devices share the memory of the machine or of its container."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container = pathlib.Path("/sys/fs/cgroup/memory.max")
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        available = min(available, int(container.read_text()))
    return available // jax.local_device_count()


def tree_bytes(tree: Any) -> int:
    """Bytes on one device of arrays, or of shapes with dtypes and shardings."""

    def leaf_bytes(leaf: Any) -> int:
        where = getattr(leaf, "sharding", None)
        shape = where.shard_shape(leaf.shape) if where is not None else leaf.shape
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(map(leaf_bytes, jax.tree.leaves(tree)))


def require(needed: int, action: str, remedy: str) -> None:
    """Raise an InputError if a device has less memory than a computation needs at least.

    Args:
      needed: bytes on each device.
      action: what needs them.
      remedy: fields of the config to change.
    """
    available = available_bytes()
    if needed > available:
        raise InputError(
            f"{action} needs at least {needed / 2**30:,.1f} GiB on each device, which has "
            f"{available / 2**30:,.1f} GiB; {remedy}"
        )
