# SPDX-License-Identifier: Apache-2.0
"""One training at a time in a workdir, on this machine and in an object store.

A file on this machine is locked, and the system lets go of it however the program ends. An object
store has no locks: there a file says who is training and when that was last true. It is renewed
while the training lives, and counts for nothing when it has not been for some minutes.
"""

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from etils import epath

from transformer import paths
from transformer.errors import InputError

logger = logging.getLogger(__name__)

FILE = ".claim.json"
"""In a remote workdir."""
RENEWED_EVERY = 60.0
"""Seconds."""
DEAD_AFTER = 300.0
"""Seconds without renewal; clocks of two machines may differ by a few of them."""
SETTLED_AFTER = 2.0
"""Seconds until one of two that begin at once sees that the other was later, and yields."""


@contextlib.contextmanager
def held(workdir: epath.Path) -> Iterator[None]:
    """Keeps other trainings out of a directory.

    Raises:
      InputError: when another training runs in it.
    """
    with _announced(workdir / FILE) if paths.is_remote(workdir) else _locked(workdir):
        yield


@contextlib.contextmanager
def _locked(workdir: epath.Path) -> Iterator[None]:
    with open(workdir / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another training is running in {workdir}; wait for it, or use another --workdir"
            ) from None
        yield


@contextlib.contextmanager
def _announced(file: epath.Path) -> Iterator[None]:
    own = {"host": socket.gethostname(), "process": os.getpid(), "token": uuid.uuid4().hex}
    before = _holder(file)
    if before and time.time() - before["renewed"] < DEAD_AFTER:
        raise _refusal(file, before)
    _announce(file, own)
    time.sleep(SETTLED_AFTER)
    after = _holder(file)
    if after and after["token"] != own["token"]:
        raise _refusal(file, after)
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(file, own, ended), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        _withdraw(file, own)


def _holder(file: epath.Path) -> dict[str, Any] | None:
    """Who announced a training: ``host``, ``process``, ``token``, and when it was ``renewed``."""
    try:
        found = json.loads(file.read_bytes())
        return {name: found[name] for name in ("host", "process", "token", "renewed")}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        raise InputError(
            f"{file} does not say who is training; remove it if nobody is, or use another --workdir"
        ) from None


def _announce(file: epath.Path, own: dict[str, Any]) -> None:
    file.write_bytes(json.dumps({**own, "renewed": time.time()}).encode())


def _refusal(file: epath.Path, holder: dict[str, Any]) -> InputError:
    age = max(time.time() - holder["renewed"], 0)
    return InputError(
        f"another training is running in {file.parent}: process {holder['process']} on "
        f"{holder['host']}, which said so {age:.0f} s ago. Wait for it, or use another --workdir; "
        f"if it is dead, remove {file}, or wait {max(DEAD_AFTER - age, 0):.0f} s"
    )


def _renew(file: epath.Path, own: dict[str, Any], ended: threading.Event) -> None:
    """Says again and again that the training lives; ends it where another took its place."""
    while not ended.wait(RENEWED_EVERY):
        try:
            holder = _holder(file)
            if holder and holder["token"] != own["token"]:
                logger.error(
                    "process %s on %s trains in %s too, having heard nothing of this one for "
                    "minutes; stopping this one",
                    *(holder["process"], holder["host"], file.parent),
                )
                os.kill(os.getpid(), signal.SIGTERM)
                return
            _announce(file, own)
        # Stores have exceptions of their own; the next renewal may succeed.
        except Exception as error:  # noqa: BLE001
            logger.warning("%s could not be renewed (%s); trying again", file, error)


def _withdraw(file: epath.Path, own: dict[str, Any]) -> None:
    try:
        holder = _holder(file)
        if holder and holder["token"] == own["token"]:
            file.unlink()
    except Exception as error:  # noqa: BLE001 - as above; it grows old by itself
        logger.warning("%s could not be removed: %s", file, error)
