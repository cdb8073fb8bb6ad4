# SPDX-License-Identifier: Apache-2.0
"""With how many threads a program is fastest: each choice is tried, when the machine is quiet."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from experiments.benchmarks.load import OtherLoad
from experiments.benchmarks.program import seconds_of

TRIED = 4
"""Batches of a text with which choices are tried."""
TRIAL_SECONDS = 0.3
"""A choice is tried for so long at once, so that other load is seen (`load`)."""
TRIALS, FEWEST_TRIALS, CHOICE_SECONDS = 3, 2, 45.0
"""Each choice is tried until it has had so many quiet trials; or, when that takes longer than this,
until it has had the fewer ones, loud or not.
"""
QUIET_CORES = 0.15
"""The most that other processes may keep busy in a quiet trial."""


Batch, Choice = TypeVar("Batch"), TypeVar("Choice")


def better_threads(call: Callable[[], Any], use: Callable[[int], None]) -> int:
    """Leaves `call` with one thread or one for each core, whichever is faster; returns how many.

    Args:
      call: does the work once.
      use: sets the number of threads.
    """
    return fastest(call, use, sorted({1, cores()}))


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def a_few(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Some of the batches of a text, from all parts of it."""
    return batches[:: -(-len(batches) // TRIED)]


def fastest(
    call: Callable[[], Any], use: Callable[[Choice], None], choices: Sequence[Choice]
) -> Choice:
    """Leaves `call` with the choice with which it is fastest, and returns that.

    The choices have their turns one after the other, and of each its fastest trial counts: other
    load can only slow one down, and what comes and goes slows them all. Lasting load does not: it
    takes more from two threads than from one, so that quiet trials are waited for.

    Args:
      call: does the work once.
      use: makes a choice; the first call after it is not timed.
      choices: of which one is left.
    """
    if len(choices) == 1:
        use(choices[0])
        return choices[0]
    trials: dict[Choice, list[Trial]] = {choice: [] for choice in choices}
    began = time.monotonic()
    while not _enough(trials.values(), time.monotonic() - began):
        for choice in choices:
            use(choice)
            calls = max(1, round(TRIAL_SECONDS / seconds_of(call)))
            with OtherLoad() as other:
                seconds = seconds_of(lambda calls=calls: [call() for _ in range(calls)]) / calls
            trials[choice].append(Trial(seconds, other.cores or 0.0))
    fastest_trials = {choice: min(of_one) for choice, of_one in trials.items()}
    best = min(choices, key=fastest_trials.__getitem__)
    told = ", ".join(
        f"{choice}: {trial.seconds:.3g} (other load {trial.load:.2f})"
        for choice, trial in fastest_trials.items()
    )
    print(f"  seconds of a call by threads: {told}", file=sys.stderr, flush=True)
    use(best)
    return best


class Trial(NamedTuple):
    """Of a choice; one is less than another if it is faster."""

    seconds: float
    load: float
    """Cores that other processes kept busy."""


def _enough(trials: Iterable[Sequence[Trial]], spent: float) -> bool:
    """Whether every choice has been tried enough, after so many seconds."""
    quiet = min(sum(trial.load <= QUIET_CORES for trial in of_one) for of_one in trials)
    return quiet >= TRIALS or (
        spent > CHOICE_SECONDS and min(len(of_one) for of_one in trials) >= FEWEST_TRIALS
    )
