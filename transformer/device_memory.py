# SPDX-License-Identifier: Apache-2.0
"""Memory that a computation needs on each device, and memory that the device has."""

import contextlib
import math
import os
import pathlib
from typing import Any

import jax

from transformer.errors import InputError


def peak_bytes(program: jax.stages.Compiled) -> int:
    """Memory of one call on each device, by XLA's `memory_analysis`.

    Arguments, temporaries, and outputs that do not reuse the memory of donated arguments.
    """
    memory = program.memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes + outputs


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


def resident_bytes() -> int | None:
    """Resident memory of this process; None where the system does not report it."""
    try:
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def tree_bytes(tree: Any) -> int:
    """Bytes on one device of arrays, or of shapes with dtypes and shardings."""

    def leaf_bytes(leaf: Any) -> int:
        where = getattr(leaf, "sharding", None)
        shape = where.shard_shape(leaf.shape) if where is not None else leaf.shape
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(map(leaf_bytes, jax.tree.leaves(tree)))


def require(needed: int, action: str, remedy: str) -> None:
    """Refuse an action that needs more bytes than a device has; the remedy names config fields."""
    available = available_bytes()
    if needed > available:
        raise InputError(
            f"{action} needs at least {needed / 2**30:,.1f} GiB on each device, which has "
            f"{available / 2**30:,.1f} GiB; {remedy}"
        )
