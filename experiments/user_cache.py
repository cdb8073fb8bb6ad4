# SPDX-License-Identifier: Apache-2.0
"""The user's cache folder: generated corpora, fetched files and compiled programs, which any run
may share.
"""

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

_BLOCK = 1 << 20


def folder(name: str) -> pathlib.Path:
    """``attention-transformer/<name>`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; made if missing.

    Raises:
      InputError: when it cannot be made.
    """
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    path = pathlib.Path(base) / "attention-transformer" / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the cache folder {path} cannot be made: {paths.reason(error)}; set the environment "
            "variable XDG_CACHE_HOME to a folder in which files can be made"
        ) from None
    return path


def fetched(path: str) -> str:
    """The path of the same file on this machine; one in an object store is copied here once.

    A copy is known by the file's path, size and time of change; a changed file is copied again.

    Raises:
      InputError: when it cannot be reached, or when there is no room for it.
      OSError: when it is not there.
    """
    if not paths.is_remote(path):
        return path
    home = folder("fetched")
    copies, this = (hashlib.sha256(key.encode()).hexdigest()[:16] for key in (path, version(path)))
    copy = home / f"{copies}-{this}"
    try:
        with file_lock.hold(home, f"waiting for another run that fetches into {home}"):
            if copy.exists():
                return str(copy)
            print(f"fetching {path} (once, into {home})", file=sys.stderr, flush=True)
            for older in home.glob(f"{copies}-*"):
                older.unlink()
            partial = copy.with_suffix(".partial")
            with epath.Path(path).open("rb") as source, open(partial, "wb") as target:
                shutil.copyfileobj(source, target, _BLOCK)
            partial.replace(copy)
    # Stores have exceptions of their own.
    except Exception as error:  # noqa: BLE001
        raise InputError(
            f"{path} could not be fetched into {home}: {paths.reason(error)}"
        ) from None
    return str(copy)


def version(path: str) -> str:
    """What changes when a file in an object store does.

    Raises:
      OSError: when it is not there.
    """
    remote = paths.reachable(path)
    found = remote.stat()
    if found.is_directory:
        raise IsADirectoryError
    if found.mtime:
        return f"{found.length} {found.mtime}"
    # Some stores tell the time under a name that epath does not know; fsspec, which serves them,
    # has a key of all that they tell.
    import fsspec

    system, inside = fsspec.core.url_to_fs(path)
    return system.ukey(inside)


def keep_compiled_programs() -> None:
    """Lets a second start find what the first compiled; a cache given to JAX already stays."""
    if jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        jax.config.update("jax_compilation_cache_dir", str(folder("compiled")))
    except InputError as error:
        logger.warning("compiled programs are not kept for the next start: %s", error)
        return
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
