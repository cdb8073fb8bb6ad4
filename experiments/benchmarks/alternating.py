# SPDX-License-Identifier: Apache-2.0
"""Measure two programs in alternating turns, so that what slows the machine down affects both.

Each program runs in a separate process (`worker`) and takes one sample when asked, while the other
one waits. Rounds under load from other processes are repeated as long as time allows.
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


class Unavailable(Exception):
    """A program that cannot be measured here, and why."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program to measure."""

    name: str
    function: str
    """MODULE.FUNCTION that returns a `worker.Program`."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the function besides the workload."""
    checkout: str | None = None
    """Path of another checkout of this project to run from."""


class Worker:
    """Process of a subject; a context manager, which waits until the program is ready."""

    about: dict[str, Any]
    """What the program says of itself when it is ready."""

    def __init__(self, subject: Subject, workload: Workload):
        """Start the process."""
        request = {**subject.options, "workload": dataclasses.asdict(workload)}
        path = {"PYTHONPATH": subject.checkout} if subject.checkout else {}
        worker = [sys.executable, "-m", "experiments.benchmarks.worker"]
        self._name, self._first_answer = subject.name, None
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
        return Sample(**self._content(self._process.stdout.readline()))

    def wait(self) -> None:
        """Wait until the program is ready or has failed."""
        if self._first_answer is None:
            self._first_answer = self._process.stdout.readline()

    def __enter__(self) -> Self:
        """Wait until the program is ready.

        Raises:
          Unavailable: if a library is missing or the program fails.
        """
        try:
            self.wait()
            self.about = self._content(self._first_answer)["ready"]
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process and what it has started, once."""
        if self._process.stdout.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _content(self, line: str) -> dict[str, Any]:
        if not line:
            status = self._process.wait()
            raise Unavailable(f"the process of {self._name} ended with status {status}")
        answer = json.loads(line)
        if "missing" in answer:
            raise Unavailable(f"{answer['missing']} is not installed (pip install -e .[bench])")
        if "failed" in answer:
            raise Unavailable(answer["failed"])
        return answer


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured, and when it is prepared."""

    rounds: int = 9
    quiet: float = 0.15
    """Cores that other processes may keep busy in a quiet round."""
    budget: float = 90.0
    """Seconds after which loud rounds are not repeated any more."""
    together: bool = False
    """Prepare all programs at the same time, before the first is measured."""


@dataclasses.dataclass(frozen=True)
class Round:
    """One sample of each program, one right after the other."""

    ours: Sample
    peer: Sample

    @property
    def load(self) -> float:
        """Load of the louder sample."""
        return max(self.ours.other_load, self.peer.other_load)


def alternate(
    ours: Callable[[], Sample],
    peer: Callable[[], Sample],
    effort: Effort,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[Round]:
    """Measure both in turns until there are enough quiet rounds.

    Which of the two is first alternates. If the budget is spent before, the rounds with the least
    load fill the gap.

    Returns:
      `effort.rounds` rounds in the order in which they were measured.
    """
    began, rounds = clock(), []
    while sum(one.load <= effort.quiet for one in rounds) < effort.rounds:
        if len(rounds) >= effort.rounds and clock() - began >= effort.budget:
            break
        samples = {}
        order = [("ours", ours), ("peer", peer)]
        for name, sample in order if len(rounds) % 2 == 0 else reversed(order):
            pause(PAUSE_SECONDS)
            samples[name] = sample()
        rounds.append(Round(**samples))
    # All quiet rounds rank equal, so that the quietest are not preferred among them.
    by_load = sorted(range(len(rounds)), key=lambda i: max(rounds[i].load, effort.quiet))
    return [rounds[index] for index in sorted(by_load[: effort.rounds])]


def compare(
    ours: Subject,
    peers: Sequence[Subject],
    workload: Workload,
    effort: Effort,
    log: Callable[[str], None],
) -> Iterator[tuple[Subject, dict[str, Any]]]:
    """Measure this project against each peer in turn; a peer that is unavailable is skipped.

    Yields:
      each measured peer and its figures.

    Raises:
      InputError: if this project cannot be measured.
    """
    log(f"preparing {ours.name}")
    with contextlib.ExitStack() as started:

        def start(subject: Subject) -> Worker:
            worker = Worker(subject, workload)
            started.callback(worker.stop)
            return worker

        our_worker, workers = start(ours), map(start, peers)
        if effort.together:
            workers = list(workers)
            for worker in (our_worker, *workers):
                worker.wait()
        try:
            started.enter_context(our_worker)
            for peer, peer_worker in zip(peers, workers, strict=True):
                log(f"measuring {peer.name}")
                try:
                    with peer_worker:
                        rounds = alternate(our_worker.sample, peer_worker.sample, effort)
                except Unavailable as reason:
                    log(f"{peer.name} is skipped: {reason}")
                    continue
                about = {f"peer_{name}": value for name, value in peer_worker.about.items()}
                yield peer, our_worker.about | about | summarize(rounds, effort)
        except Unavailable as reason:
            raise InputError(f"{ours.name} cannot be measured: {reason}") from None


def summarize(rounds: Sequence[Round], effort: Effort) -> dict[str, Any]:
    """Medians and quartiles: milliseconds, and the speedup within each round."""
    figures: dict[str, Any] = {}
    for name, values in {
        "speedup": [one.peer.seconds / one.ours.seconds for one in rounds],
        "ms": [one.ours.seconds * 1e3 for one in rounds],
        "peer_ms": [one.peer.seconds * 1e3 for one in rounds],
    }.items():
        low, median, high = quartiles(values)
        figures |= {name: median, f"{name}_quartiles": [low, high]}
    return figures | {
        "peak_mib": max(one.ours.peak_mib for one in rounds),
        "peer_peak_mib": max(one.peer.peak_mib for one in rounds),
        "device_peak_mib": max(one.ours.device_peak_mib for one in rounds),
        "peer_device_peak_mib": max(one.peer.device_peak_mib for one in rounds),
        "rounds": len(rounds),
        "loud_rounds": sum(one.load > effort.quiet for one in rounds),
        "other_load": round(statistics.median(one.load for one in rounds), 3),
    }


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile to four digits, interpolated between values."""
    three = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return tuple(float(f"{value:.4g}") for value in three)
