# SPDX-License-Identifier: Apache-2.0
"""Training in several processes, on one machine or many.

Every process runs the same command on its local devices and reads its local rows of each batch; all
share one mesh and one workdir. Process 0 alone writes logs and prints the result.
"""

import contextlib
import hashlib
import os
import signal
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer import processes
from transformer.errors import InputError


def several() -> bool:
    """Whether there are several processes."""
    return jax.process_count() > 1


def is_main() -> bool:
    """Whether this is process 0, which writes and prints."""
    return jax.process_index() == 0


@contextlib.contextmanager
def all_or_none(action: str) -> Iterator[None]:
    """Stop all processes if one fails in this block; otherwise the others would wait for it.

    Args:
      action: a verb phrase for the block, for the message of the other processes.
    """
    error = None
    try:
        yield
    except (InputError, OSError) as caught:
        error = caught
    first = processes.first_error(None if error is None else str(error), action)
    if error is not None:
        raise error
    if first is not None:
        raise InputError(f"{first}; the message of that process says why")


def require_same(what: str, content: bytes) -> None:
    """Refuse to continue if the content differs between processes."""
    if not several():
        return
    digest = np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
    digests = multihost_utils.process_allgather(digest)
    if (digests != digests[0]).any():
        raise InputError(
            f"{what} differs between processes; start all of them with the same command, on the "
            "same files"
        )


class Stop:
    """Whether a signal asked the training to stop, after the same step in every process."""

    def __init__(self):
        self.signal: int | None = None

    def after(self, step: int) -> bool:
        """Whether to stop now; every process calls this after every step."""
        if several() and multihost_utils.reached_preemption_sync_point(step):
            self.signal = self.signal or signal.SIGTERM
            return True
        return self.signal is not None and not several()


@contextlib.contextmanager
def signals() -> Iterator[Stop]:
    """Record SIGINT, SIGTERM and SIGHUP in a `Stop`; a second signal has its usual effect.

    With several processes JAX handles SIGTERM and notifies all of them; the others are forwarded as
    one. A signal that is ignored, as under `nohup`, stays ignored.
    """
    stop, previous = Stop(), {}

    def record(number, _frame):
        stop.signal = number
        signal.signal(number, previous[number])
        if is_main():
            name = signal.Signals(number).name
            # `print` must not be interrupted by a second `print`.
            with contextlib.suppress(OSError):
                os.write(2, f"{name}: saving after this step (again to stop at once)\n".encode())
        if several():
            os.kill(os.getpid(), signal.SIGTERM)

    numbers = {signal.SIGINT, signal.SIGHUP} | (set() if several() else {signal.SIGTERM})
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, record)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
