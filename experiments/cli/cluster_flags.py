# SPDX-License-Identifier: Apache-2.0
"""Flags that name the other processes of a training, and how this process joins them."""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

import jax
from absl import flags

from experiments.cli import process
from experiments.training import distributed
from transformer import paths
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
    if jax.default_backend() == "cpu" and distributed.several() and jax.local_device_count() > 1:
        raise InputError(
            f"{jax.local_device_count()} simulated devices in each of several processes deadlock; "
            "unset JAX_NUM_CPU_DEVICES, or use one process"
        )
    if not distributed.is_main():
        for package in ("transformer", "experiments"):
            logging.getLogger(package).setLevel(logging.ERROR)
    try:
        with _stdout_for_results_only():
            yield
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other processes wait for this one
        if process.received:
            raise
        if not isinstance(error, (jax.errors.JaxRuntimeError, OSError)):
            traceback.print_exc()
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
