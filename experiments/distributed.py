# SPDX-License-Identifier: Apache-2.0
"""One training in several processes, on one machine or on many.

Every process runs the same command, holds its own devices and reads its own rows of each batch; all
of them see one mesh. Process 0 alone writes the logs and prints the result. All must see the same
workdir.
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
    "This is one of several processes; a cluster (TPU slice, Slurm, ...) tells it of the others.",
)
COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, where there is no cluster to tell it ..."
)
PROCESSES = flags.DEFINE_integer("processes", None, "... how many processes there are ...")
PROCESS = flags.DEFINE_integer("process", None, "... and which of them this is, from 0.")
STARTING_SECONDS = 300
"""How long the processes wait for each other at the start."""


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Joins the other processes that the flags tell of; for one process alone, nothing.

    Raises:
      InputError: when the flags do not go together, or the others cannot be found.
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
            initialization_timeout=STARTING_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        where = f"--coordinator={COORDINATOR.value}" if all(given) else "--distributed"
        raise InputError(
            f"{where}: the processes did not find each other ({paths.reason(error)}); start all of "
            "them with the same command, within five minutes"
        ) from None
    if jax.default_backend() == "cpu" and jax.process_count() > 1 and jax.local_device_count() > 1:
        raise InputError(
            f"{jax.local_device_count()} simulated devices in each of several processes wait for "
            "each other for ever; leave JAX_NUM_CPU_DEVICES out, or use one process"
        )
    if not is_main():
        for package in ("transformer", "experiments"):
            logging.getLogger(package).setLevel(logging.ERROR)
    try:
        with _results_alone_on_stdout():
            yield
    except InputError:
        raise
    except (jax.errors.JaxRuntimeError, OSError) as error:
        _leave(error)
    jax.distributed.shutdown()


def _leave(error: Exception) -> NoReturn:
    """Ends this process at once: an orderly end would wait for the others, which are gone, or wait
    for this one.
    """
    print(
        f"error: process {jax.process_index()} of {jax.process_count()} cannot go on: "
        f"{paths.reason(error)}. "
        "Once all of them have ended, run the same commands to go on from the last checkpoint",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


@contextlib.contextmanager
def _results_alone_on_stdout() -> Iterator[None]:
    """Sends to standard error what the communication library prints on standard output."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as results:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(results):
            yield


def several() -> bool:
    """Whether there are several processes."""
    return jax.process_count() > 1


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return jax.process_index() == 0


@contextlib.contextmanager
def all_or_none(what: str) -> Iterator[None]:
    """Either every process does this, or all of them stop: without it one that found its input bad
    would leave the others waiting for it.

    Args:
      what: is done, for the message of those in which it worked.
    """
    problem = None
    try:
        yield
    except (InputError, OSError) as error:
        problem = error
    anywhere = processes.first_error(None if problem is None else str(problem), what)
    if problem is not None:
        raise problem
    if anywhere is not None:
        raise InputError(f"{anywhere}; its own message says why")


def require_same(what: str, content: bytes) -> None:
    """Refuses to go on where the content differs between processes."""
    if not several():
        return
    digest = np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
    everywhere = multihost_utils.process_allgather(digest)
    if (everywhere != everywhere[0]).any():
        raise InputError(
            f"{what} is not the same in all processes; start them all with the same command, on "
            "the same files"
        )


class Stop:
    """Whether a signal has asked the training to stop: after the same step in every process."""

    def __init__(self):
        self.signal: int | None = None

    def after(self, step: int) -> bool:
        """Whether to stop now; every process asks after every step."""
        if several() and multihost_utils.reached_preemption_sync_point(step):
            self.signal = self.signal or signal.SIGTERM
            return True
        return self.signal is not None and not several()


@contextlib.contextmanager
def signals() -> Iterator[Stop]:
    """Turns SIGINT and SIGTERM into a `Stop`; a second one takes its usual course.

    Among several processes SIGTERM belongs to JAX, which tells all of them of it; a SIGINT is
    passed on as one.
    """
    stop, usual = Stop(), {}

    def note(number, _frame):
        stop.signal = number
        signal.signal(number, usual[number])
        if is_main():
            name = signal.Signals(number).name
            print(f"{name}: saving after this step (again to stop at once)", file=sys.stderr)
            sys.stderr.flush()
        if several():
            os.kill(os.getpid(), signal.SIGTERM)

    for number in (signal.SIGINT,) if several() else (signal.SIGINT, signal.SIGTERM):
        usual[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
