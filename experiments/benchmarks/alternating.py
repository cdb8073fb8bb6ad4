# SPDX-License-Identifier: Apache-2.0
"""Measure two programs in alternating turns, so that load on the machine affects both.

Each program runs in a separate process (`worker`) and takes one sample when asked, while the other
one waits.
"""

import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from experiments.benchmarks.workloads import Workload
from transformer.errors import InputError

_SHARED_DEVICE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""JAX takes memory of an accelerator when it needs it, because others measure there too."""
PAUSE_SECONDS = 0.3
"""Pause between two samples; idle threads of some libraries spin for a while."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measurement of a program."""

    seconds: float
    other_load: float
    """Cores kept busy by other processes."""
    peak_mib: int = 0
    """Peak resident memory of the process so far."""
    device_peak_mib: int = 0
    """Peak memory on an accelerator so far."""


Round = tuple[Sample, Sample]
"""A sample of this project and one of a peer, one right after the other."""


class Unavailable(Exception):
    """A program that cannot be measured here, and why."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program to measure."""

    name: str
    function: str
    """MODULE.FUNCTION that returns a `worker.Program`."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the function in addition to the workload."""
    checkout: str | None = None
    """Path of another checkout of this project to run from."""


class Worker:
    """Process of a subject; a context manager, which waits until the program is ready."""

    about: dict[str, Any]
    """Facts that the program reports when it is ready."""

    def __init__(self, subject: Subject, workload: Workload):
        """Start the process."""
        request = {**subject.options, "workload": dataclasses.asdict(workload)}
        path = {"PYTHONPATH": subject.checkout} if subject.checkout else {}
        worker = [sys.executable, "-m", "experiments.benchmarks.worker"]
        self._name = subject.name
        self._process = subprocess.Popen(
            [*worker, subject.function, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=subject.checkout,
            env=_SHARED_DEVICE | os.environ | path,
            process_group=0,  # Ctrl-C reaches only this process, which stops its workers
        )

    def sample(self) -> Sample:
        """Measure once.

        Raises:
          Unavailable: if the process has ended.
        """
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return Sample(**self._answer())

    def __enter__(self) -> Self:
        """Wait until the program is ready.

        Raises:
          Unavailable: if a library is missing or the program fails.
        """
        try:
            self.about = self._answer()["ready"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise Unavailable(f"the process of {self._name} ended with status {status}")
        answer = json.loads(line)
        if "missing" in answer:
            raise Unavailable(f"{answer['missing']} is not installed (pip install -e .[bench])")
        if "failed" in answer:
            raise Unavailable(answer["failed"])
        return answer


def alternate(ours: Callable[[], Sample], peer: Callable[[], Sample], rounds: int) -> list[Round]:
    """Measure both in turns; which of the two is first alternates."""
    measured = []
    for number in range(rounds):
        samples = {}
        for sample in (ours, peer) if number % 2 == 0 else (peer, ours):
            time.sleep(PAUSE_SECONDS)
            samples[sample] = sample()
        measured.append((samples[ours], samples[peer]))
    return measured


def compare(
    ours: Subject,
    peers: Sequence[Subject],
    workload: Workload,
    rounds: int,
    log: Callable[[str], None],
) -> Iterator[tuple[Subject, dict[str, Any]]]:
    """Measure this project against each peer in turn; a peer that is unavailable is skipped.

    Yields:
      each measured peer and its figures.

    Raises:
      InputError: if this project cannot be measured.
    """
    log(f"preparing {ours.name}")
    try:
        with Worker(ours, workload) as our_worker:
            for peer in peers:
                log(f"measuring {peer.name}")
                try:
                    with Worker(peer, workload) as worker:
                        measured = alternate(our_worker.sample, worker.sample, rounds)
                except Unavailable as reason:
                    log(f"{peer.name} is skipped: {reason}")
                    continue
                about = {f"peer_{name}": value for name, value in worker.about.items()}
                yield peer, our_worker.about | about | summarize(measured)
    except Unavailable as reason:
        raise InputError(f"{ours.name} cannot be measured: {reason}") from None


def summarize(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return medians and quartiles: milliseconds, and the speedup within each round."""
    figures: dict[str, Any] = {}
    for name, values in {
        "speedup": [peer.seconds / ours.seconds for ours, peer in rounds],
        "ms": [ours.seconds * 1e3 for ours, _ in rounds],
        "peer_ms": [peer.seconds * 1e3 for _, peer in rounds],
    }.items():
        low, median, high = quartiles(values)
        figures |= {name: median, f"{name}_quartiles": [low, high]}
    for prefix, samples in zip(("", "peer_"), zip(*rounds, strict=True), strict=True):
        for name in ("peak_mib", "device_peak_mib"):
            figures[prefix + name] = max(getattr(sample, name) for sample in samples)
    loads = [max(sample.other_load for sample in samples) for samples in rounds]
    return figures | {"rounds": len(rounds), "other_load": round(statistics.median(loads), 3)}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile to four digits, interpolated."""
    three = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return tuple(float(f"{value:.4g}") for value in three)
