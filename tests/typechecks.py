# SPDX-License-Identifier: Apache-2.0
"""The type checker of all tests: beartype, for functions that are decorated once."""

from collections.abc import Callable

import beartype


def once(function: Callable, *args, **kwargs) -> Callable:
    """Check a function of a module or class, and leave a function within a function as it is.

    The latter is decorated anew in every call around it, which took a quarter of the time of all
    tests.
    """
    if "<locals>" in getattr(function, "__qualname__", ""):
        return function
    return beartype.beartype(function, *args, **kwargs)
