# SPDX-License-Identifier: Apache-2.0
"""The cores that this process may use, and threads that share work between them."""

import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_cores() -> int:
    """Number of cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Call a function with each item, several at the same time; results come in order.

    With one thread, or a single item, the caller's thread does the work.
    """
    items = list(items)
    if threads == 1 or len(items) == 1:
        yield from map(function, items)
        return
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        yield from pool.map(function, items)
