# SPDX-License-Identifier: Apache-2.0
"""Freed memory, which glibc keeps unless it is told to return it."""

import contextlib
import ctypes


def return_unused_pages() -> None:
    """Return freed memory to the kernel, above all what compilations no longer need.

    That can be half of a process that translates, and glibc keeps it for as long as it runs.
    """
    with contextlib.suppress(AttributeError, OSError):  # not in other C libraries
        ctypes.CDLL(None).malloc_trim(0)
