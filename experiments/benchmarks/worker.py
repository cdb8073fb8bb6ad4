# SPDX-License-Identifier: Apache-2.0
"""Worker process: prepare one program, then time it each time the parent process asks.

python -m experiments.benchmarks.worker MODULE.FUNCTION '{"workload": {...}, ...}'

Started by `comparison.Worker`, possibly in another checkout: both sides keep to this protocol. The
function returns a `Program`. The worker writes one JSON line to standard output when it is ready
and one for every line that it reads; what libraries print goes to standard error.
"""

import dataclasses
import gc
import importlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from experiments.benchmarks.workloads import Workload

SAMPLE_SECONDS = 1.0
"""A sample repeats the call for about this long."""

WARM_CALLS = 3
"""Untimed calls before a sample.

While the other program ran, threads and caches were idle, and a virtual machine may have returned
to its host the memory that this program had freed.
"""

STEPS_AHEAD = 8
"""Training steps on an accelerator that are called before the last of them is waited for.

`train` reads no result of a step until it logs, so an accelerator computes while the next steps are
being called. A CPU does both.
"""

Choice = TypeVar("Choice")


@dataclasses.dataclass
class Program:
    """A prepared program."""

    call: Callable[[], Any]
    """Does the work once and returns when it is finished; the result is dropped."""
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Versions and other facts for the results."""
    units: float = 1.0
    """Units of work per call; samples are seconds per unit."""
    device_peak_bytes: Callable[[], int] = lambda: 0
    """Peak memory on an accelerator so far; 0 on a CPU."""


def main(function: str, request: str) -> None:
    """Prepare the program and answer until standard input ends."""
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        program = _prepare(function, json.loads(request))
        calls = calls_per_sample(program)
        answer = {"ready": program.about}
    except ModuleNotFoundError as error:
        answer = {"missing": error.name}
    except Exception as error:  # noqa: BLE001 - a peer may raise anything
        first_line = (str(error).splitlines() or [""])[0]
        answer = {"failed": f"{type(error).__name__}: {first_line}"}
    print(json.dumps(answer), file=answers)
    for _ in sys.stdin if "ready" in answer else ():
        print(json.dumps(take_sample(program, calls)), file=answers)


def _prepare(function: str, options: dict[str, Any]) -> Program:
    options["workload"] = Workload(**options["workload"])
    module, _, name = function.rpartition(".")
    return getattr(importlib.import_module(module), name)(**options)


def calls_per_sample(program: Program) -> int:
    """Call the program until it is compiled and warm; return the calls that fill a sample."""
    program.call()
    return max(1, round(SAMPLE_SECONDS / seconds_of(program.call)))


def take_sample(program: Program, calls: int) -> dict[str, Any]:
    """Return the fields of a `comparison.Sample`."""
    for _ in range(WARM_CALLS):
        program.call()
    busy, local = busy_seconds(), cpu_seconds()
    seconds = seconds_of(lambda: [program.call() for _ in range(calls)])
    others = (busy_seconds() - busy) - (cpu_seconds() - local)
    return {
        "seconds": seconds / calls / program.units,
        "other_load": max(0.0, others) / seconds,
        "peak_mib": peak_mib(),
        "device_peak_mib": program.device_peak_bytes() >> 20,
    }


def seconds_of(call: Callable[[], Any]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def fastest(
    call: Callable[[], Any], use: Callable[[Choice], None], choices: Iterable[Choice]
) -> Choice:
    """Leave `call` with the choice, for example of threads, that makes it fastest; return it.

    The choices take turns and the fastest of three trials counts, because load from other processes
    only slows a trial down.
    """
    trials: dict[Choice, list[float]] = {choice: [] for choice in choices}
    for _ in range(3):
        for choice, seconds in trials.items():
            use(choice)
            call()
            seconds.append(seconds_of(call))
    best = min(trials, key=lambda choice: min(trials[choice]))
    use(best)
    return best


def cpu_seconds() -> float:
    """CPU seconds of this process."""
    return sum(os.times()[:4])


def busy_seconds(statistics: str = "/proc/stat") -> float:
    """Seconds that the cores of this process were busy since the machine started.

    The line ``cpu7`` of the file has the ticks of core 7: user, nice, system, idle, waiting,
    interrupts, soft interrupts, stolen, guests (included in user).
    """
    lines = map(str.split, pathlib.Path(statistics).read_text().splitlines())
    ticks = {name: list(map(int, fields[:8])) for name, *fields in lines if name.startswith("cpu")}
    cores = [ticks[f"cpu{core}"] for core in os.sched_getaffinity(0)]
    return sum(sum(core) - sum(core[3:5]) for core in cores) / os.sysconf("SC_CLK_TCK")


def peak_mib() -> int:
    """Peak resident memory of this process."""
    # getrusage would include the parent's memory before exec.
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
