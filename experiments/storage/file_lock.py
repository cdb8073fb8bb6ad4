# SPDX-License-Identifier: Apache-2.0
"""An exclusive lock on a local directory, released by the system however the process ends."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

from experiments.console.progress import say


@contextlib.contextmanager
def hold(directory: str | os.PathLike, waiting: str | None = None) -> Iterator[None]:
    """Hold the lock of a directory.

    Args:
      directory: gets a file ``.lock``.
      waiting: message to print before waiting for another process.

    Raises:
      BlockingIOError: when another process holds the lock and `waiting` is None.
    """
    with open(pathlib.Path(directory) / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise
            say(waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
