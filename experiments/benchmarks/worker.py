# SPDX-License-Identifier: Apache-2.0
"""Worker process: prepare one program, then time it each time the parent process asks.

python -m experiments.benchmarks.worker MODULE.FUNCTION '{"workload": {...}, ...}'

Started by `alternating.Worker`. The function returns a `Program`. The worker writes one JSON line
to standard output when it is ready and one for every line that it reads; everything else that
libraries print goes to standard error.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from experiments import allocator
from experiments.benchmarks.workloads import Workload

SAMPLE_SECONDS = 1.0
"""A sample repeats the call for at least this long."""
LONG_CALL_SECONDS = 5.0
"""Shorter calls are warmed up before every sample by one untimed call, because the threads and
caches of this process were idle while the other program was measured.
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


def main(function: str, request: str) -> None:
    """Prepare the program and answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        sampler = _prepare(function, json.loads(request))
        answer = {"ready": sampler.program.about}
    except ModuleNotFoundError as error:
        sampler, answer = None, {"missing": error.name}
    except Exception as error:  # noqa: BLE001 - a peer may raise anything
        first_line = (str(error).splitlines() or [""])[0]
        sampler, answer = None, {"failed": f"{type(error).__name__}: {first_line}"}
    answers.write(json.dumps(answer) + "\n")
    for _ in sys.stdin if sampler else ():
        answers.write(json.dumps(sampler.sample()) + "\n")


def _prepare(function: str, options: dict[str, Any]) -> "Sampler":
    # Before the framework is imported, whose allocations it affects.
    if options.pop("keep_pages") and not allocator.keep_pages():
        raise RuntimeError("pages cannot be kept here (see experiments/allocator.py)")
    options["workload"] = Workload(**options["workload"])
    module, _, name = function.rpartition(".")
    return Sampler(getattr(importlib.import_module(module), name)(**options))


class Sampler:
    """Takes timed samples of a program."""

    def __init__(self, program: Program):
        """Call the program until it is compiled and warm."""
        self.program = program
        program.call()
        seconds = seconds_of(program.call)
        if seconds < LONG_CALL_SECONDS:
            seconds = min(seconds, seconds_of(program.call))
        self._warm_up = seconds < LONG_CALL_SECONDS
        self._calls = max(1, round(SAMPLE_SECONDS / seconds))

    def sample(self) -> dict[str, Any]:
        """Return the fields of an `alternating.Sample`."""
        if self._warm_up:
            self.program.call()
        before = cpu_seconds()
        seconds = seconds_of(lambda: [self.program.call() for _ in range(self._calls)])
        after = cpu_seconds()
        load = None
        if before and after:
            load = max(0.0, (after[0] - before[0]) - (after[1] - before[1])) / seconds
        per_unit = seconds / self._calls / self.program.units
        return {"seconds": per_unit, "other_load": load, "peak_mib": round(peak_mib())}


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
    if len(trials) > 1:
        for _ in range(3):
            for choice, seconds in trials.items():
                use(choice)
                call()
                seconds.append(seconds_of(call))
    best = min(trials, key=lambda choice: min(trials[choice], default=0.0))
    use(best)
    return best


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_seconds() -> tuple[float, float] | None:
    """CPU seconds of all processes on the usable cores, and of this one; None without /proc."""
    try:
        text = pathlib.Path("/proc/stat").read_text()
    except OSError:
        return None
    return busy_seconds(text, os.sched_getaffinity(0)), sum(os.times()[:4])


def busy_seconds(text: str, cores: set[int]) -> float:
    """Seconds that cores were busy since the machine started.

    Args:
      text: content of /proc/stat, whose line ``cpu7`` has the ticks of core 7: user, nice, system,
        idle, waiting, interrupts, soft interrupts, stolen, guests (included in user).
      cores: core numbers.
    """
    busy = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in cores:
            ticks = list(map(int, fields[:8]))
            busy += sum(ticks) - sum(ticks[3:5])
    return busy / os.sysconf("SC_CLK_TCK")


def peak_mib() -> float:
    """Peak resident memory of this process."""
    # getrusage would include the parent's memory before exec.
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
