# SPDX-License-Identifier: Apache-2.0
"""Keeping freed pages: XLA's CPU backend asks for its temporaries afresh at every step, and glibc
would hand the pages back to the kernel each time, which then clears them again. A training step of
a small model spends a quarter to a third of its time on that.
"""

import ctypes
import logging
import os

logger = logging.getLogger(__name__)

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_SWITCH = "TRANSFORMER_RETURN_PAGES"


def keep_pages() -> bool:
    """Tells glibc to serve all sizes from one arena that never shrinks; call it before the first
    use of JAX.

    Memory is not given back before the process ends, and glibc does not always find a freed block
    again: the process of the benchmark that trains the small model (`benchmarks.training`, W1)
    comes to 2.8 GiB, where it comes to 1.2 without. The environment variable
    ``TRANSFORMER_RETURN_PAGES=1`` leaves glibc as it is. On other C libraries nothing happens.

    Returns:
      whether all of it took effect.
    """
    if os.environ.get(_SWITCH) == "1":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = {
        _M_ARENA_MAX: 1,
        _M_MMAP_MAX: 0,
        _M_TRIM_THRESHOLD: 2**31 - 1,
        _M_TOP_PAD: 256 * 2**20,
    }
    # A list, because each of the settings is to be made even where one fails.
    taken = [mallopt(name, value) == 1 for name, value in settings.items()]
    kept = all(taken)
    if kept:
        logger.info("freed memory pages are kept; %s=1 gives them back", _SWITCH)
    return kept
