# SPDX-License-Identifier: Apache-2.0
"""Memory of attention as sentences grow, for each kernel.

python -m experiments.benchmarks.attention_memory --lengths=2048,4096,8192,16384

One attention layer of 8 heads of size 64 is computed forward and backward for one sentence, each
kernel and length in a separate process. Memory is the peak of that process, Python and JAX
included. Standard output has one JSON object per result.
"""

import dataclasses
import json

from experiments.benchmarks.alternating import Unavailable, Worker
from experiments.benchmarks.comparison import program
from experiments.benchmarks.workloads import Workload
from experiments.cli import command_line
from transformer.errors import InputError
from transformer.kernels import KERNELS

NAMES = ("einsum", *KERNELS)
"""The kernels that can be measured."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The kernels and lengths, and when to stop."""

    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    """Sentence lengths in tokens."""
    kernels: tuple[str, ...] = dataclasses.field(default=NAMES, metadata={"repeated": True})
    """Attention kernels to measure; may be repeated."""
    limit_gib: float = 2.0
    """Longer sentences are skipped above this memory."""


def run(options: Options) -> None:
    """Measure and print."""
    for kernel in options.kernels:
        if kernel not in NAMES:
            raise InputError(f"--kernels={kernel}: choose from {', '.join(NAMES)}")
    for kernel in options.kernels:
        for length in sorted(options.lengths):
            # One layer of 8 heads, one sentence; the other sizes have no meaning here.
            workload = Workload(1, 512, 8, 1, 5, 1, length, length)
            try:
                with Worker(
                    program(kernel, "this_project.attention", kernel=kernel), workload
                ) as worker:
                    sample = worker.sample()
            except Unavailable as reason:
                raise InputError(f"{kernel} at length {length} failed: {reason}") from None
            result = {"kernel": kernel, "length": length, "seconds": round(sample.seconds, 4)}
            print(json.dumps(result | {"peak_mib": sample.peak_mib} | worker.about), flush=True)
            if sample.peak_mib > options.limit_gib * 1024:
                break


if __name__ == "__main__":
    command_line.run(run, None, Options)
