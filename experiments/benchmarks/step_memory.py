# SPDX-License-Identifier: Apache-2.0
"""Time and memory of training steps of all batch lengths, with the allocator settings of `train`.

python -m experiments.benchmarks.step_memory --config=multi30k:short
GLIBC_TUNABLES=glibc.malloc.hugetlb=0 python -m experiments.benchmarks.step_memory --config=...
LD_PRELOAD=libjemalloc.so.2 GLIBC_TUNABLES=... python -m experiments.benchmarks.step_memory ...

Each length of data.bucket_lengths is compiled as in a training; then every round does one step of
each. The sentences are synthetic, so no text is read. Standard output has one JSON object: seconds
of a round, fastest, median and slowest; peak memory of the process in the first round and in all;
what the largest step needs by XLA's account; what the training state has; the resident memory
with state and batches before the first program is compiled and after each, when what the
compilation no longer needs was returned to the kernel; and what is in use and what is free in
glibc's arenas after the first round and the last.
"""

import ctypes
import json
import statistics
import time

import jax
import numpy as np
from absl import flags

from experiments.benchmarks.worker import peak_mib
from experiments.cli.command_line import run
from experiments.planning import costs
from experiments.training import allocator
from transformer import device_memory
from transformer.config import Config

ROUNDS = flags.DEFINE_integer("rounds", 8, "Rounds; the first is not timed.", lower_bound=2)


class _MallocInfo(ctypes.Structure):
    """The fields of glibc's ``struct mallinfo2``, in bytes or blocks."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def main(config: Config) -> None:
    """Measure and print."""
    allocator.use_few_arenas()
    lengths = np.array(config.data.bucket_lengths, np.int32)
    # A batch of each length at least, however many rows it has.
    lengths = np.repeat(lengths, config.data.tokens_per_batch)
    experiment = costs.experiment_of_lengths(config, None, [(1.0, lengths, lengths)])
    batches = experiment.data.train
    index_of_length = {one.length: index for index, one in enumerate(batches.plan(0))}
    chosen = [experiment.put_batch(batches[index]) for index in index_of_length.values()]
    state, needed, peaks, seconds, arenas = experiment.init_state(), 0, [], [], []
    jax.block_until_ready((state, chosen))
    time.sleep(1)  # XLA frees the temporaries of a program after its results are ready.
    allocator.return_unused_pages()
    resident = [device_memory.resident_bytes()]
    for batch in chosen:
        program = experiment.train_step.lower(state, batch).compile()
        needed = max(needed, device_memory.peak_bytes(program))
        allocator.return_unused_pages()
        resident.append(device_memory.resident_bytes())
    unused_pages = allocator.PeriodicReturn()
    for _ in range(ROUNDS.value):
        began = time.perf_counter()
        for batch in chosen:
            state, sums = experiment.train_step(state, batch)
            jax.block_until_ready((state, sums))
            unused_pages.after_step()
        seconds.append(time.perf_counter() - began)
        peaks.append(peak_mib())
        arenas.append(_arenas_mib())
    timed = seconds[1:]
    result = {
        "huge_pages": allocator.uses_huge_pages(),
        "lengths": list(index_of_length),
        "seconds": [round(f(timed), 3) for f in (min, statistics.median, max)],
        "peak_mib": [peaks[0], peaks[-1]],
        "needed_mib": needed >> 20,
        "state_mib": sum(leaf.nbytes for leaf in jax.tree.leaves(state)) >> 20,
        "resident_mib": [size >> 20 for size in resident],
        "arenas_mib": [arenas[0], arenas[-1]],
    }
    print(json.dumps(result))


def _arenas_mib() -> dict[str, int] | None:
    """MiB in use and free in glibc's arenas; None with another C library."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _MallocInfo
    info = mallinfo()
    return {"in_use": info.uordblks >> 20, "free": info.fordblks >> 20}


if __name__ == "__main__":
    run(main, config_from="config")
