# SPDX-License-Identifier: Apache-2.0
"""The user's cache directory, shared by all runs: corpora, fetched files and compiled programs."""

import hashlib
import shutil

from etils import epath

from experiments.console.progress import say
from experiments.storage import file_lock
from transformer import paths
from transformer.compile_cache import folder
from transformer.errors import InputError

_CHUNK_BYTES = 1 << 20


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
            say(f"fetching {path} (once, into {home})")
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
