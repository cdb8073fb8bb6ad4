# SPDX-License-Identifier: Apache-2.0
"""How much memory attention needs as sentences grow, kernel by kernel.

python -m experiments.benchmarks.attention_memory --lengths=2048,4096,8192,16384

One attention of 8 heads of width 64 over one sentence is computed forward and backward, each kernel
and length in a process of its own; the memory is the peak of that process, Python and JAX included.
A kernel's lengths end with the first that needs more than the limit. Standard output has one JSON
object a result, standard error a table.
"""

import contextlib
import json
import sys
from typing import Any

from absl import flags

from experiments.benchmarks import reporting
from experiments.benchmarks.alternating import PROGRAMS, Subject, Unavailable
from experiments.benchmarks.work import Work
from experiments.flags import run
from experiments.formatting import print_table
from transformer.errors import InputError
from transformer.nn.attention import KERNELS

_LENGTHS = flags.DEFINE_list("lengths", ["1024", "2048", "4096", "8192", "16384"], "In tokens.")
_KERNELS = flags.DEFINE_list("kernels", list(KERNELS), "Which of them.")
_LIMIT = flags.DEFINE_float("limit_gib", 2.0, "Above which no longer sentence is tried.")

HEADS, WIDTH = 8, 64


def main() -> None:
    """Measures and prints."""
    for kernel in _KERNELS.value:
        if kernel not in KERNELS:
            raise InputError(f"--kernels={kernel}: there are {', '.join(KERNELS)}")
    results = []
    for kernel in _KERNELS.value:
        for length in sorted(reporting.numbers("lengths", _LENGTHS.value)):
            result = measured(kernel, length)
            print(json.dumps(result), flush=True)
            results.append(result)
            if result["peak_mib"] > _LIMIT.value * 1024:
                reporting.say(f"{kernel} is above {_LIMIT.value:g} GiB; no longer ones are tried")
                break
    columns = ("kernel", "length", "peak_mib", "seconds")
    rows = [columns, *([str(one[column]) for column in columns] for one in results)]
    with contextlib.redirect_stdout(sys.stderr):
        print_table(rows)


def measured(kernel: str, length: int) -> dict[str, Any]:
    """The peak memory of a process that does nothing else, and the seconds of one pass.

    Raises:
      InputError: when the process fails.
    """
    work = Work(
        layers=1,
        d_model=HEADS * WIDTH,
        heads=HEADS,
        d_ff=1,
        vocabulary=5,
        rows=1,
        source=length,
        target=length,
    )
    subject = Subject(kernel, f"{PROGRAMS}.own.attention", {"kernel": kernel})
    try:
        with subject.start(work) as process:
            sample = process.sample()
    except Unavailable as reason:
        raise InputError(f"{kernel} at length {length} cannot be measured: {reason}") from None
    return {
        "benchmark": "attention_memory",
        "kernel": kernel,
        "length": length,
        "peak_mib": sample.peak_mib,
        "seconds": round(sample.seconds, 4),
        "version": process.about["version"],
    }


if __name__ == "__main__":
    run(main, config_from=None)
