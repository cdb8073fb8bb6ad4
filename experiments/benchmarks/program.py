# SPDX-License-Identifier: Apache-2.0
"""The process of one program that is measured: it gives one timed sample each time it is asked.

python -m experiments.benchmarks.program MODULE.FUNCTION '{"work": {...}, ...}'

It is started by `alternating.Process`. When it is ready it writes one JSON line to standard output,
and then one for every line that it reads; everything else that it prints goes to standard error.
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
from collections.abc import Callable
from typing import Any, TextIO

from experiments import allocator
from experiments.benchmarks.load import OtherLoad
from experiments.benchmarks.work import Work

SAMPLE_SECONDS = 1.0
"""A sample is of so many calls as last this long together, so that the clock is fine enough."""
FEW_CALLS = 2
"""In a sample of no more calls than this, one that is not timed goes before them: while the other
program had its turn, this one's threads slept and its data left the caches.
"""
LONG_CALL_SECONDS = 5.0
"""A call of this length does without, because those first moments are nothing beside it."""


@dataclasses.dataclass
class Program:
    """What is ready to be measured."""

    call: Callable[[], Any] | None = None
    """Does the work once and returns when it is done; what it returns is dropped. None where a
    sample is something other than the time of a call.
    """
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Versions and the like, for the results."""
    seconds: Callable[[], float] | None = None
    """Such a sample, in seconds."""
    units: float = 1.0
    """What a call does is so many times what a sample is the time of."""


def main(place: str, request: str) -> None:
    """Makes the program ready and answers until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    options = json.loads(request)
    options["work"] = Work(**options["work"])
    kept = options.pop("keep_pages")
    # Before the framework is imported, whose allocations it is for.
    if kept and not allocator.keep_pages():
        _write(answers, {"failed": "pages are not kept here (see experiments/allocator.py)"})
        return
    try:
        program = _prepared(place, options)
        sampler = Sampler(program)
    except ModuleNotFoundError as error:
        _write(answers, {"missing": error.name})
        return
    except Exception as error:  # noqa: BLE001 - a peer may raise anything
        first_line = (str(error).splitlines() or [""])[0]
        _write(answers, {"failed": f"{type(error).__name__}: {first_line}"})
        return
    _write(answers, {"ready": program.about})
    for _ in sys.stdin:
        _write(answers, sampler.sample())


def _prepared(place: str, options: dict[str, Any]) -> Program:
    module, _, function = place.rpartition(".")
    return getattr(importlib.import_module(module), function)(**options)


class Sampler:
    """Takes samples of a program that is ready."""

    def __init__(self, program: Program):
        """Makes the calls that compile and warm up."""
        self._program, self._calls, self._warms_up = program, 1, False
        if program.seconds is not None:
            program.seconds()
            return
        program.call()
        seconds = seconds_of(program.call)
        if seconds < LONG_CALL_SECONDS:
            seconds = min(seconds, seconds_of(program.call))
        self._calls = max(1, round(SAMPLE_SECONDS / seconds))
        self._warms_up = self._calls <= FEW_CALLS and seconds < LONG_CALL_SECONDS

    def sample(self) -> dict[str, Any]:
        """The fields of an `alternating.Sample`."""
        if self._warms_up:
            self._program.call()
        with OtherLoad() as other:
            seconds = self._seconds()
        return {"seconds": seconds, "other_load": other.cores, "peak_mib": round(peak_mib())}

    def _seconds(self) -> float:
        if self._program.seconds is not None:
            return self._program.seconds()
        began = time.perf_counter()
        for _ in range(self._calls):
            self._program.call()
        return (time.perf_counter() - began) / self._calls / self._program.units


def peak_mib() -> float:
    """The most memory that this process has had resident so far."""
    # getrusage would count what the process that started this one had resident, too.
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def seconds_of(call: Callable[[], Any]) -> float:
    """Of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _write(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
