# SPDX-License-Identifier: Apache-2.0
"""Memory of attention as sentences grow, for each kernel.

python -m experiments.benchmarks.attention_memory --lengths=2048,4096,8192,16384

One attention layer of 8 heads of size 64 is computed forward and backward for one sentence, each
kernel and length in a separate process. Memory is the peak of that process, Python and JAX
included. Standard output has one JSON object per result.
"""

import json

from absl import flags

from experiments.benchmarks.alternating import Subject, Unavailable, Worker
from experiments.benchmarks.workloads import Workload
from experiments.cli.command_line import run
from experiments.cli.options import parse_integers
from transformer.errors import InputError
from transformer.kernels import KERNELS

_LENGTHS = flags.DEFINE_list("lengths", ["1024", "2048", "4096", "8192", "16384"], "In tokens.")
_NAMES = ["einsum", *KERNELS]
_KERNELS = flags.DEFINE_multi_enum(
    "kernels", _NAMES, _NAMES, "Attention kernels to measure; may be repeated."
)
_LIMIT = flags.DEFINE_float("limit_gib", 2.0, "Longer sentences are skipped above this memory.")


def main() -> None:
    """Measure and print."""
    lengths = sorted(parse_integers("lengths", _LENGTHS.value))
    for kernel in _KERNELS.value:
        function = "experiments.benchmarks.programs.this_project.attention"
        subject = Subject(kernel, function, {"kernel": kernel})
        for length in lengths:
            workload = Workload(
                num_layers=1,
                d_model=512,
                num_heads=8,
                d_ff=1,
                vocab_size=5,
                batch_size=1,
                source_length=length,
                target_length=length,
            )
            try:
                with Worker(subject, workload) as worker:
                    sample = worker.sample()
            except Unavailable as reason:
                raise InputError(f"{kernel} at length {length} failed: {reason}") from None
            result = {"kernel": kernel, "length": length, "seconds": round(sample.seconds, 4)}
            print(json.dumps(result | {"peak_mib": sample.peak_mib} | worker.about), flush=True)
            if sample.peak_mib > _LIMIT.value * 1024:
                break


if __name__ == "__main__":
    run(main, config_from=None)
