# SPDX-License-Identifier: Apache-2.0
"""The type checker of all tests: beartype, for functions and methods that are decorated once."""

from collections.abc import Callable

import beartype


def once(function: Callable, *args, **kwargs) -> Callable:
    """Check a function of a module or a method, and leave the others as they are.

    JAX rebuilds pytrees through `__init__` with shardings, shapes or batched arrays in place of the
    arrays that the fields are annotated with; `test_trace` checks the annotations on real values.
    A function within a function is decorated anew in every call around it, which took a quarter of
    the time of all tests.
    """
    if function.__name__ == "__init__" or "<locals>" in function.__qualname__:
        return function
    return beartype.beartype(function, *args, **kwargs)
