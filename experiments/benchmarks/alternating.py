# SPDX-License-Identifier: Apache-2.0
"""Two programs measured in turns, so that what slows the machine down slows both down.

Each runs in a process of its own (`program`) and gives one timed sample when it is asked; the other
one waits. A sample under too much other load is taken again, as long as the time allows.
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
from typing import Any, Protocol, Self

from experiments.benchmarks.work import Work
from transformer.errors import InputError

PROGRAMS = "experiments.benchmarks.programs"
PAUSE_SECONDS = 0.3
"""Between two samples; the threads of some libraries look for more work for a while."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a program measured once."""

    seconds: float
    other_load: float | None
    """Cores that other processes kept busy meanwhile; None where that cannot be told."""
    peak_mib: int = 0
    """Peak resident memory of the process until then."""

    def quiet(self, limit: float) -> bool:
        """Whether other processes kept no more than so many cores busy."""
        return self.other_load is None or self.other_load <= limit


class Sampled(Protocol):
    """What can be asked for samples."""

    def sample(self) -> Sample:
        """Measures once."""


class Unavailable(Exception):
    """A program that cannot be measured here, and why."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program that is measured, and how."""

    name: str
    place: str
    """MODULE.FUNCTION, which gives a `program.Program`."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keep_pages: bool = False
    """With this program's allocator settings (`experiments.allocator`)."""

    def start(self, work: Work) -> "Process":
        """Waits until the program is ready.

        Raises:
          Unavailable: when a library that it needs is not there, or it fails.
        """
        return Process(self, work)


class Process:
    """A process that runs `experiments.benchmarks.program`; used with ``with``."""

    def __init__(self, subject: Subject, work: Work):
        self.subject = subject
        request = dict(subject.options, work=dataclasses.asdict(work))
        request["keep_pages"] = subject.keep_pages
        program = "experiments.benchmarks.program"
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, subject.place, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C at the terminal is for this program, which then stops its processes.
            process_group=0,
        )
        try:
            self.about = self._ready()
        except BaseException:
            self.stop()
            raise

    def sample(self) -> Sample:
        """Has the program measure once.

        Raises:
          Unavailable: when it has ended.
        """
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return Sample(**self._answer())

    def stop(self) -> None:
        """Ends it and what it has started, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def _ready(self) -> dict[str, Any]:
        answer = self._answer()
        if "missing" in answer:
            raise Unavailable(f"{answer['missing']} is not installed (pip install -e .[bench])")
        if "failed" in answer:
            raise Unavailable(answer["failed"])
        return answer["ready"]

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise Unavailable(f"the process of {self.subject.name} ended with status {status}")
        return json.loads(line)


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int = 9
    quiet: float = 0.15
    """The most cores that other processes may keep busy during a sample."""
    budget: float = 90.0
    """Seconds; loud samples are taken again until then."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"{self.rounds} rounds asked for; there must be at least 1")


@dataclasses.dataclass(frozen=True)
class Round:
    """One sample of each program, one right after the other."""

    own: Sample
    other: Sample

    def quiet(self, limit: float) -> bool:
        """Whether both samples are."""
        return self.own.quiet(limit) and self.other.quiet(limit)

    @property
    def ratio(self) -> float:
        """How many times as long the other program takes."""
        return self.other.seconds / self.own.seconds

    @property
    def load(self) -> float:
        """The louder sample's."""
        return max(self.own.other_load or 0.0, self.other.other_load or 0.0)


def alternate(
    own: Sampled,
    other: Sampled,
    effort: Effort,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[Round]:
    """Measures both in turns until there are enough quiet rounds.

    When the time is spent before, the rounds with the least other load take the missing places.
    Which of the two is first changes from round to round.

    Args:
      own: this program.
      other: what it is compared with.
      effort: how many rounds, and how long.
      clock: in seconds; tests give their own.
      pause: waits so many seconds.

    Returns:
      as many rounds as asked for, in the order in which they were measured.
    """
    began, rounds = clock(), []

    def missing() -> int:
        return effort.rounds - sum(one.quiet(effort.quiet) for one in rounds)

    while missing() > 0 and (len(rounds) < effort.rounds or clock() - began < effort.budget):
        taken = {}
        order = ("own", own), ("other", other)
        for name, program in order if len(rounds) % 2 == 0 else reversed(order):
            pause(PAUSE_SECONDS)
            taken[name] = program.sample()
        rounds.append(Round(**taken))
    by_load = sorted(range(len(rounds)), key=lambda place: _rank(rounds[place], effort.quiet))
    return [rounds[place] for place in sorted(by_load[: effort.rounds])]


def _rank(one: Round, limit: float) -> float:
    """Quiet rounds are alike, or the quietest would be picked from among them."""
    return 0.0 if one.quiet(limit) else one.load


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median of some figures, and the quartiles below and above it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Self:
        """Of at least one figure; quartiles lie between two figures in proportion."""
        if len(figures) == 1:
            return cls(figures[0], figures[0], figures[0])
        low, median, high = statistics.quantiles(figures, n=4, method="inclusive")
        return cls(median, low, high)


def compare(
    own: Subject, others: Sequence[Subject], work: Work, effort: Effort, say: Callable[[str], None]
) -> Iterator[tuple[Subject, dict[str, Any]]]:
    """Measures this program against each of the others, one after the other.

    Args:
      own: this program; its process runs on while the others come and go.
      others: one that cannot be measured here is left out, with a message.
      work: what all of them do.
      effort: of each comparison.
      say: takes a line for the person who waits.

    Yields:
      each that was measured, and its figures.

    Raises:
      InputError: when this program itself cannot be measured.
    """
    say(f"preparing {own.name}")
    try:
        with _stopped_by_termination(), own.start(work) as running:
            for other in others:
                say(f"measuring {other.name}")
                try:
                    with other.start(work) as process:
                        rounds = alternate(running, process, effort)
                except Unavailable as reason:
                    say(f"{other.name} is skipped: {reason}")
                    continue
                own_about = {f"own_{key}": value for key, value in running.about.items()}
                yield other, own_about | process.about | figures(rounds, effort)
    except Unavailable as reason:
        raise InputError(f"{own.name} cannot be measured: {reason}") from None


@contextlib.contextmanager
def _stopped_by_termination() -> Iterator[None]:
    """SIGTERM, as `timeout` sends it, ends the measured programs too: they would go on, as load on
    whatever is measured next.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def figures(rounds: Sequence[Round], effort: Effort) -> dict[str, Any]:
    """What a comparison comes to: times in milliseconds, ratios of the two samples of a round."""
    ratio = Spread.of([one.ratio for one in rounds])
    own, other = (
        Spread.of([getattr(one, name).seconds * 1e3 for one in rounds]) for name in ("own", "other")
    )
    return {
        "ratio": round(ratio.median, 3),
        "ratio_quartiles": [round(ratio.low, 3), round(ratio.high, 3)],
        "own_ms": _digits(own.median),
        "own_ms_quartiles": [_digits(own.low), _digits(own.high)],
        "ms": _digits(other.median),
        "ms_quartiles": [_digits(other.low), _digits(other.high)],
        "own_peak_mib": max(one.own.peak_mib for one in rounds),
        "peak_mib": max(one.other.peak_mib for one in rounds),
        "rounds": len(rounds),
        "loud_rounds": sum(not one.quiet(effort.quiet) for one in rounds),
        "other_load": round(statistics.median(one.load for one in rounds), 3),
    }


def _digits(value: float) -> float:
    """Four of them."""
    return float(f"{value:.4g}")
