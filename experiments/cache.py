# SPDX-License-Identifier: Apache-2.0
"""The user's cache folder: generated corpora and compiled programs, which any run may share."""

import contextlib
import fcntl
import logging
import os
import pathlib
import sys
from collections.abc import Iterator

import jax

logger = logging.getLogger(__name__)


def folder(name: str) -> pathlib.Path:
    """``attention-transformer/<name>`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; made if missing."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    path = pathlib.Path(base) / "attention-transformer" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def claimed(place: pathlib.Path, waiting: str) -> Iterator[None]:
    """One program at a time writes in a folder; a second one says `waiting` and waits."""
    with open(place / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def keep_compiled_programs() -> None:
    """Lets a second start find what the first compiled; a cache given to JAX already stays."""
    if jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        jax.config.update("jax_compilation_cache_dir", str(folder("compiled")))
    except OSError as error:
        logger.warning("compiled programs are not kept for the next start: %s", error)
        return
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
