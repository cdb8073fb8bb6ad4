# SPDX-License-Identifier: Apache-2.0
"""How busy the machine is with other work while something is measured."""

import os
import pathlib
import time

_STATISTICS = pathlib.Path("/proc/stat")


def busy_seconds(text: str, cores: set[int], ticks: int) -> float:
    """CPU seconds that these cores have spent on anything since the machine started.

    Args:
      text: of ``/proc/stat``, whose line ``cpu7`` has the ticks of core 7: user, nice, system,
        idle, waiting, interrupts, soft interrupts, stolen, and guests, which user includes.
      cores: their numbers.
      ticks: a second.
    """
    busy = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in cores:
            spent = list(map(int, fields[:8]))
            busy += sum(spent) - sum(spent[3:5])
    return busy / ticks


class OtherLoad:
    """The mean number of cores that other processes keep busy; used with ``with``.

    Of the cores that this process may use; a process is told apart from others by its own count of
    CPU seconds, that of its ended children included.
    """

    cores: float | None = None
    """After the ``with``; None where the system does not tell (it is not Linux)."""

    def __enter__(self) -> "OtherLoad":
        self._before = _counts()
        return self

    def __exit__(self, *_) -> None:
        after = _counts()
        if self._before is None or after is None:
            return
        seconds, busy, own = (b - a for a, b in zip(self._before, after, strict=True))
        self.cores = max(busy - own, 0.0) / seconds


def _counts() -> tuple[float, float, float] | None:
    """Seconds on the clock, busy seconds of the cores, and those of this process."""
    try:
        text = _STATISTICS.read_text()
    except OSError:
        return None
    own = sum(os.times()[:4])
    cores = os.sched_getaffinity(0)
    return time.perf_counter(), busy_seconds(text, cores, os.sysconf("SC_CLK_TCK")), own
