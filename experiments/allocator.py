# SPDX-License-Identifier: Apache-2.0
"""Settings of glibc's allocator, with which training on the CPU is faster and takes less memory.

**Huge pages.** XLA's CPU backend allocates the temporaries of a program at every call. glibc
returns them to the kernel, which clears their pages again at the next call: a fifth of a small
model's training step with pages of 4 KiB, half of that with huge pages of 2 MiB. To keep the pages
instead is faster yet, but small allocations split the freed blocks, and the process grows to twice
its size or more.

**One arena.** By default, threads allocate from up to eight arenas for each core, and what a
compilation or a validation frees in one is of no use to the others (`benchmarks.step_memory`;
docs/speed.md).
"""

import contextlib
import os
import sys

_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES, _ARENAS = "glibc.malloc.hugetlb", "glibc.malloc.arena_max"
_FIRST_VERSION = (2, 35)
"""The first version of glibc with both settings."""
_SUPPORT = "/sys/kernel/mm/transparent_hugepage/enabled"


def restart_with_settings() -> None:
    """Restart this process with the settings, unless the user has chosen or they have no effect.

    glibc reads them when a process starts, so this must come before slow imports.
    ``GLIBC_TUNABLES=glibc.malloc.hugetlb=0`` leaves the allocator as it is.
    """
    if _HUGE_PAGES in os.environ.get(_TUNABLES, "") or not _have_effect():
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment(huge_pages=True))


def environment(*, huge_pages: bool) -> dict[str, str]:
    """The environment variables of this process for another one, with the settings or without."""
    ours = [f"{_HUGE_PAGES}=1", f"{_ARENAS}=1"] if huge_pages else [f"{_HUGE_PAGES}=0"]
    others = [
        each
        for each in os.environ.get(_TUNABLES, "").split(":")
        if each and not each.startswith((f"{_HUGE_PAGES}=", f"{_ARENAS}="))
    ]
    return os.environ | {_TUNABLES: ":".join([*others, *ours])}


def uses_huge_pages() -> bool:
    """Whether this process was started with huge pages."""
    return f"{_HUGE_PAGES}=1" in os.environ.get(_TUNABLES, "").split(":")


def _have_effect() -> bool:
    """Whether glibc has the settings, and the kernel gives huge pages only on request."""
    try:
        name, version = os.confstr("CS_GNU_LIBC_VERSION").split()
        with open(_SUPPORT, encoding="ascii") as file:
            on_request = "[madvise]" in file.read()
    except (AttributeError, ValueError, OSError):  # another system or C library
        return False
    known = tuple(map(int, version.split(".")[:2])) >= _FIRST_VERSION
    return name == "glibc" and known and on_request


def return_unused_pages() -> None:
    """Return freed memory to the kernel, for example what a compilation no longer needs."""
    import ctypes  # not needed by a start

    with contextlib.suppress(AttributeError, OSError):  # not in other C libraries
        ctypes.CDLL(None).malloc_trim(0)
