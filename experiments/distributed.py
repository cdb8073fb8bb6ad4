# SPDX-License-Identifier: Apache-2.0
"""Training in several processes, on one machine or many.

Every process runs the same command on its local devices and reads its local rows of each batch; all
share one mesh and one workdir. Process 0 alone writes logs and prints the result.
"""

import contextlib
import hashlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from transformer import paths, processes
from transformer.errors import InputError

DISTRIBUTED = flags.DEFINE_boolean(
    "distributed",
    False,
    "Join the other processes of a cluster that JAX recognizes (TPU slice, Slurm, ...).",
)
COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, without such a cluster; needs the next two."
)
PROCESSES = flags.DEFINE_integer("processes", None, "Number of processes.")
PROCESS = flags.DEFINE_integer("process", None, "Index of this process, from 0.")
START_TIMEOUT_SECONDS = 300
"""How long the processes wait for each other at the start."""


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Join the other processes that the flags describe, if any.

    Raises:
      InputError: when the flags are incomplete or the other processes cannot be reached.
    """
    given = [flag.value is not None for flag in (COORDINATOR, PROCESSES, PROCESS)]
    if not (DISTRIBUTED.value or any(given)):
        yield
        return
    if any(given) and not all(given):
        raise InputError(
            "--coordinator=HOST:PORT, --processes=N and --process=I go together; give all three, "
            "or --distributed where the cluster knows them"
        )
    if all(given) and not 0 <= PROCESS.value < PROCESSES.value:
        raise InputError(
            f"--process={PROCESS.value} of --processes={PROCESSES.value}: count from 0"
        )
    try:
        jax.distributed.initialize(
            coordinator_address=COORDINATOR.value,
            num_processes=PROCESSES.value,
            process_id=PROCESS.value,
            initialization_timeout=START_TIMEOUT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        flag = f"--coordinator={COORDINATOR.value}" if all(given) else "--distributed"
        raise InputError(
            f"{flag}: the processes did not find each other ({paths.reason(error)}); start all of "
            "them with the same command, within five minutes"
        ) from None
    if jax.default_backend() == "cpu" and several() and jax.local_device_count() > 1:
        raise InputError(
            f"{jax.local_device_count()} simulated devices in each of several processes deadlock; "
            "unset JAX_NUM_CPU_DEVICES, or use one process"
        )
    if not is_main():
        for package in ("transformer", "experiments"):
            logging.getLogger(package).setLevel(logging.ERROR)
    try:
        with _stdout_for_results_only():
            yield
    except InputError:
        raise
    except (jax.errors.JaxRuntimeError, OSError) as error:
        _exit_now(error)
    jax.distributed.shutdown()


def _exit_now(error: Exception) -> NoReturn:
    """End this process at once; an orderly exit would wait for processes that may be gone."""
    print(
        f"error: process {jax.process_index()} of {jax.process_count()} cannot continue: "
        f"{paths.reason(error)}. "
        "When all processes have ended, run the same commands to continue from the last checkpoint",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


@contextlib.contextmanager
def _stdout_for_results_only() -> Iterator[None]:
    """Redirect to stderr what the communication library prints on stdout."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as results:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(results):
            yield


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
      action: what the block does, for the message of the other processes.
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
