# SPDX-License-Identifier: Apache-2.0
"""What one compiled call costs, by XLA's own account.

It is lowered and compiled ahead of time; nothing runs and no array is made.
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import NamedSharding

from experiments import hlo


@dataclasses.dataclass(frozen=True)
class Cost:
    """XLA's account of one call, on one device."""

    flops: float
    """Floating-point operations, all of them, not matrix products alone; the body of a loop counts
    once.
    """
    argument_bytes: int
    output_bytes: int
    """What is returned in memory of its own, not in that of donated arguments."""
    temporary_bytes: int
    """Activations and everything else that lives only during the call."""
    product_flops: int = 0
    """Of matrix products, loops counted as often as they run; what a device other than the CPU
    leaves to libraries is missing.
    """
    collectives: tuple[hlo.Collective, ...] = ()
    """What the devices send each other, that of the most bytes first."""

    @property
    def peak_bytes(self) -> int:
        """The memory the call needs at once."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes


def compiled(step: Any, *arguments: Any) -> tuple[jax.stages.Compiled, Cost]:
    """Compiles a jitted function for the shapes of its arguments, and what a call will cost.

    Args:
      step: what `jax.jit` returned.
      arguments: arrays, or `jax.ShapeDtypeStruct` in their place.
    """
    program = step.lower(*arguments).compile()
    memory, counts = program.memory_analysis(), program.cost_analysis()
    meshes = [
        place.mesh.shape
        for place in jax.tree.leaves(program.input_shardings)
        if isinstance(place, NamedSharding)
    ]
    text = hlo.Program.parse(program.as_text())
    return program, Cost(
        flops=float(counts.get("flops", 0.0)),
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        product_flops=text.product_flops(),
        collectives=text.collectives(meshes[0]) if meshes else (),
    )
