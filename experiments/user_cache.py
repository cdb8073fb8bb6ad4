# SPDX-License-Identifier: Apache-2.0
"""The user's cache directory, shared by all runs: corpora, fetched files and compiled programs."""

import hashlib
import logging
import os
import pathlib
import shutil
import sys

import jax
from etils import epath

from experiments import file_lock
from transformer import paths
from transformer.errors import InputError

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


def folder(name: str) -> pathlib.Path:
    """Return ``attention-transformer/<name>`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
      InputError: when the directory cannot be created.
    """
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    path = pathlib.Path(base) / "attention-transformer" / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the cache folder {path} cannot be created: {paths.reason(error)}; set the "
            "environment variable XDG_CACHE_HOME to a writable folder"
        ) from None
    return path


def fetched(path: str) -> str:
    """Return the local path of a file; a file in an object store is copied once.

    The name of the copy depends on the path, size and modification time, so a changed file is
    copied again.

    Raises:
      InputError: when the file cannot be reached or the copy cannot be written.
      OSError: when the file does not exist.
    """
    if not paths.is_remote(path):
        return path
    home = folder("fetched")
    name, edition = (hashlib.sha256(key.encode()).hexdigest()[:16] for key in (path, version(path)))
    copy = home / f"{name}-{edition}"
    try:
        with file_lock.hold(home, f"waiting for another run that fetches into {home}"):
            if copy.exists():
                return str(copy)
            print(f"fetching {path} (once, into {home})", file=sys.stderr, flush=True)
            for older in home.glob(f"{name}-*"):
                older.unlink()
            partial = copy.with_suffix(".partial")
            with epath.Path(path).open("rb") as source, open(partial, "wb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            partial.replace(copy)
    # Each object store raises its own exception types.
    except Exception as error:  # noqa: BLE001
        raise InputError(
            f"{path} could not be fetched into {home}: {paths.reason(error)}"
        ) from None
    return str(copy)


def version(path: str) -> str:
    """Return a text that changes when a file in an object store changes.

    Raises:
      OSError: when the file does not exist.
    """
    remote = paths.reachable(path)
    found = remote.stat()
    if found.is_directory:
        raise IsADirectoryError
    if found.mtime:
        return f"{found.length} {found.mtime}"
    # Some stores report the time under a name that epath does not know. fsspec, which serves them,
    # hashes everything that they report.
    import fsspec

    system, inside = fsspec.core.url_to_fs(path)
    return system.ukey(inside)


def keep_compiled_programs() -> None:
    """Let later runs reuse compiled programs, unless JAX has a compilation cache already."""
    if jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        jax.config.update("jax_compilation_cache_dir", str(folder("compiled")))
    except InputError as error:
        logger.warning("compiled programs are not kept for the next start: %s", error)
        return
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
