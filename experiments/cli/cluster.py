# SPDX-License-Identifier: Apache-2.0
"""The options that name the other processes of a training, and how this process joins them."""

import contextlib
import dataclasses
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

import jax

from experiments.cli import process
from experiments.console.progress import say
from experiments.training import distributed
from transformer import paths
from transformer.errors import InputError

START_TIMEOUT_SECONDS = 300
"""How long the processes wait for each other at the start."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together."""

    distributed: bool = False
    """Join the other processes of a cluster that JAX recognizes (TPU slice, Slurm, ...)."""
    coordinator: str | None = None
    """HOST:PORT of process 0, without such a cluster; needs the next two."""
    processes: int | None = None
    """Number of processes."""
    process: int | None = None
    """Index of this process, from 0."""


@contextlib.contextmanager
def joined(cluster: Cluster) -> Iterator[None]:
    """Join the other processes, if there are any."""
    given = [each is not None for each in (cluster.coordinator, cluster.processes, cluster.process)]
    if not (cluster.distributed or any(given)):
        yield
        return
    if any(given) and not all(given):
        raise InputError(
            "--coordinator=HOST:PORT, --processes=N and --process=I go together; give all three, "
            "or --distributed where the cluster knows them"
        )
    if all(given) and not 0 <= cluster.process < cluster.processes:
        raise InputError(
            f"--process={cluster.process} of --processes={cluster.processes}: count from 0"
        )
    try:
        jax.distributed.initialize(
            coordinator_address=cluster.coordinator,
            num_processes=cluster.processes,
            process_id=cluster.process,
            initialization_timeout=START_TIMEOUT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        flag = f"--coordinator={cluster.coordinator}" if all(given) else "--distributed"
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
            jax.distributed.shutdown()
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other processes wait for this one
        if process.received:
            raise
        if not isinstance(error, (jax.errors.JaxRuntimeError, OSError)):
            traceback.print_exc()
        _exit_now(error)


def _exit_now(error: Exception) -> NoReturn:
    """End this process at once; an orderly exit would wait for processes that may be gone."""
    say(
        f"error: process {jax.process_index()} of {jax.process_count()} cannot continue: "
        f"{paths.reason(error)}. "
        "When all processes have ended, run the same commands to continue from the last checkpoint"
    )
    os._exit(1)


@contextlib.contextmanager
def _stdout_for_results_only() -> Iterator[None]:
    """Redirect to stderr what the communication library prints on stdout."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as results:
        os.dup2(2, 1)
        try:
            with contextlib.redirect_stdout(results):
                yield
        finally:
            results.flush()
            os.dup2(results.fileno(), 1)
