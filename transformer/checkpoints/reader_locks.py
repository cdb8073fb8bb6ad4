# SPDX-License-Identifier: Apache-2.0
"""Locks that keep a training from deleting a checkpoint that another process reads.

A reader holds a shared lock on the digests of the checkpoint. Object stores and some file systems
have no locks, and other machines do not see them.
"""

import contextlib
import fcntl
from collections.abc import Iterable

from etils import epath

from transformer import paths


def hold(records: Iterable[epath.Path]) -> contextlib.ExitStack:
    """Hold the checkpoints with these digests until the returned stack is closed."""
    with contextlib.ExitStack() as held:
        for record in records:
            if not paths.is_remote(record) and paths.is_regular_file(record):
                with contextlib.suppress(OSError):
                    file = held.enter_context(record.open("rb"))
                    fcntl.flock(file, fcntl.LOCK_SH)
        return held.pop_all()


def is_held(record: epath.Path) -> bool:
    """Whether a process holds the checkpoint with these digests."""
    if paths.is_remote(record) or not paths.is_regular_file(record):
        return False
    with contextlib.suppress(OSError), record.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
