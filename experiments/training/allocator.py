# SPDX-License-Identifier: Apache-2.0
"""Settings of glibc's allocator, with which training on the CPU is faster and takes less memory.

XLA's CPU backend allocates the temporaries of a program at every call. glibc returns them to the
kernel, which clears their pages again at the next call: a fifth of a small model's training step
with pages of 4 KiB, half of that with huge pages of 2 MiB. To keep the pages instead is faster yet,
but small allocations split the freed blocks, and the process grows to twice its size or more
(`benchmarks.step_memory`; docs/speed_details.md).
"""

import contextlib
import os
import sys
import time

_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb"
_FIRST_VERSION = (2, 35)
"""The first version of glibc with the setting."""
_M_ARENA_MAX = -8
"""The number of this parameter in glibc's malloc.h."""
_SUPPORT = "/sys/kernel/mm/transparent_hugepage/enabled"


def restart_with_huge_pages() -> None:
    """Restart this process with huge pages, unless the user has chosen or they have no effect.

    glibc reads the setting when a process starts, so this must come before slow imports.
    ``GLIBC_TUNABLES=glibc.malloc.hugetlb=0`` leaves the allocator as it is.
    """
    if _HUGE_PAGES in os.environ.get(_TUNABLES, "") or not _have_effect():
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment(huge_pages=True))


def environment(*, huge_pages: bool) -> dict[str, str]:
    """The environment variables of this process, with the setting for another one."""
    others = [
        each
        for each in os.environ.get(_TUNABLES, "").split(":")
        if each and not each.startswith(f"{_HUGE_PAGES}=")
    ]
    return os.environ | {_TUNABLES: ":".join([*others, f"{_HUGE_PAGES}={int(huge_pages)}"])}


def uses_huge_pages() -> bool:
    """Whether this process was started with huge pages."""
    return f"{_HUGE_PAGES}=1" in os.environ.get(_TUNABLES, "").split(":")


def _have_effect() -> bool:
    """Whether glibc has the setting, and the kernel gives huge pages only on request."""
    try:
        name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
        with open(_SUPPORT, encoding="ascii") as file:
            on_request = "[madvise]" in file.read()
    except (AttributeError, ValueError, OSError):  # another system or C library
        return False
    known = tuple(map(int, version.split(".")[:2])) >= _FIRST_VERSION
    return name == "glibc" and known and on_request


def return_unused_pages() -> None:
    """Return freed memory to the kernel, above all what compilations no longer need.

    That can be half of a process that translates, and glibc keeps it for as long as it runs.
    """
    _call_glibc("malloc_trim", 0)


class PeriodicReturn:
    """Returns freed memory to the kernel every few seconds of a training.

    A step allocates short-lived blocks, which glibc cuts from what a compilation has freed, from a
    different part of it each time. If that was returned, each first use of a part faults in a huge
    page, until all of it is resident again.
    """

    def __init__(self, seconds: float = 2) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def after_step(self) -> None:
        """Return unused pages if it is time to."""
        if time.monotonic() - self._last >= self._seconds:
            return_unused_pages()
            self._last = time.monotonic()


def use_few_arenas() -> None:
    """Make threads that start later share two arenas for each core.

    glibc creates up to eight for each core. Memory that a compilation or a validation frees in one
    arena cannot be allocated from another. With a single arena, XLA's threads wait for each other,
    and a compilation takes a third longer, for no less memory.
    """
    from transformer.cores import num_cores  # not needed by a start

    _call_glibc("mallopt", _M_ARENA_MAX, 2 * num_cores())


def _call_glibc(function: str, *arguments: int) -> None:
    import ctypes  # not needed by a start

    with contextlib.suppress(AttributeError, OSError):  # not in other C libraries
        getattr(ctypes.CDLL(None), function)(*arguments)
