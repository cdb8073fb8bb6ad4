# SPDX-License-Identifier: Apache-2.0
"""Memory of attention as sentences grow, for each kernel.

python -m experiments.benchmarks.attention_memory --lengths=2048,4096,8192,16384

One attention layer of 8 heads of size 64 is computed forward and backward for one sentence, each
kernel and length in a separate process. Memory is the peak of that process, Python and JAX
included. Standard output has one JSON object per result.
"""

import dataclasses
import json

from experiments.benchmarks.comparison import Unavailable, Worker, program
from experiments.benchmarks.workloads import Workload
from experiments.cli import command_line
from transformer.errors import InputError
from transformer.kernels import KERNELS

LIMIT_MIB = 2048
"""Longer sentences are skipped above this memory."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The lengths."""

    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    """Sentence lengths in tokens."""


def run(options: Options) -> None:
    """Measure and print."""
    for kernel in ("einsum", *KERNELS):
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
            if sample.peak_mib > LIMIT_MIB:
                break


if __name__ == "__main__":
    command_line.run(run, None, Options)
