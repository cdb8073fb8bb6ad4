# SPDX-License-Identifier: Apache-2.0
"""Settings of glibc's allocator that make training on the CPU faster.

XLA's CPU backend allocates its temporaries anew in every step, and by default glibc returns the
freed pages to the kernel, which clears them again. A training step of a small model spends a
quarter to a third of its time on that.
"""

import ctypes
import logging
import os

logger = logging.getLogger(__name__)

_SWITCH = "TRANSFORMER_RETURN_PAGES"
# The parameters of mallopt(3), by their numbers in <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_SETTINGS = {
    _M_ARENA_MAX: 1,
    _M_MMAP_MAX: 0,
    _M_TRIM_THRESHOLD: 2**31 - 1,
    _M_TOP_PAD: 256 * 2**20,
}


def keep_pages() -> bool:
    """Let glibc serve all sizes from one arena that never shrinks; call it before using JAX.

    The process keeps its peak memory to the end, and fragmentation adds to it: 2.8 GiB instead of
    1.2 in the benchmark of the small model (`benchmarks.training_speed`, W1). The environment
    variable ``TRANSFORMER_RETURN_PAGES=1`` leaves glibc as it is. Other C libraries are left alone.

    Returns:
      Whether every setting took effect.
    """
    if os.environ.get(_SWITCH) == "1":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    succeeded = [mallopt(name, value) == 1 for name, value in _SETTINGS.items()]
    if kept := all(succeeded):
        logger.info("freed memory pages are kept; %s=1 returns them to the kernel", _SWITCH)
    return kept
