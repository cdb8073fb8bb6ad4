# SPDX-License-Identifier: Apache-2.0
"""Local paths and paths in object stores, with `etils.epath`.

A path with a scheme, such as ``gs://bucket/run``, must never become a `pathlib.Path`, which turns
it into ``gs:/bucket/run``.
"""

import contextlib
import logging
import os
import zipfile
from collections.abc import Iterator

from etils import epath

from transformer.errors import InputError

_PACKAGES = {"gs": "gcsfs", "s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}
"""The package that serves each scheme."""


Readable = epath.PathLike | zipfile.Path
"""A path of a file system, of an object store, or in a bundle that is open."""


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path has a scheme."""
    return "://" in os.fspath(path)


def reachable(path: Readable) -> epath.Path | zipfile.Path:
    """Return the path after checking that its object store, if any, answers.

    Raises:
      InputError: when the scheme is unknown, the package that serves it is not installed, or the
        store does not answer.
    """
    if isinstance(path, zipfile.Path):
        return path
    scheme, separator, _ = os.fspath(path).partition(":/")
    if not is_remote(path):
        if separator and scheme in _PACKAGES:
            raise InputError(
                f"{path} has one slash instead of two, as pathlib leaves it; give a string"
            )
        return epath.Path(path)
    try:
        remote = epath.Path(path)
    except KeyError:
        known = ", ".join(f"{name}://" for name in _PACKAGES)
        raise InputError(
            f"{path}: the scheme {scheme}:// is unknown; give a local path, or one that begins "
            f"with {known}"
        ) from None
    package = _PACKAGES.get(scheme, scheme)
    try:
        with _log_level(package, logging.CRITICAL):
            remote.exists()
    except ImportError:
        raise InputError(
            f"{path}: {scheme}:// needs the package {package}, which is not installed; install it "
            f"with: pip install {package}"
        ) from None
    # Each object store raises its own exception types.
    except Exception as error:  # noqa: BLE001
        raise InputError(
            f"{path} cannot be reached: {reason(error)}; check the name, the network and the "
            "permissions"
        ) from None
    return remote


def absolute(path: epath.PathLike) -> epath.Path:
    """Return the absolute path, without following symbolic links."""
    return epath.Path(path if is_remote(path) else os.path.abspath(path))


def children(directory: epath.Path) -> list[epath.Path]:
    """List a directory in order; empty if it does not exist, as in a store without its objects."""
    return sorted(directory.iterdir()) if directory.is_dir() else []


def is_regular_file(path: epath.Path) -> bool:
    """Whether the path can be read to its end; `epath.Path.is_file` is true of a FIFO, too."""
    return path.is_file() if is_remote(path) else os.path.isfile(path)


def local(path: epath.PathLike, name: str) -> str:
    """Return the path, which must be local; the error has the name of its field or argument."""
    if is_remote(path):
        raise InputError(
            f"{name} is {path}, but must be local, because its files are mapped into memory; name "
            "a local folder"
        )
    return os.fspath(path)


def write_atomic(path: epath.Path, data: bytes) -> None:
    """Write a file atomically: readers see the previous content or all of the new one.

    A link is followed. A device or a pipe is written to, and not replaced.
    """
    # An object in an object store appears when it is complete.
    path = path if is_remote(path) else epath.Path(os.path.realpath(path))
    if is_remote(path) or (path.exists() and not os.path.isfile(path)):
        path.write_bytes(data)
        return
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def reason(error: Exception) -> str:
    """Return the message of a file system or object store in one line, without error number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # The message of an object store is often the path alone.
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _log_level(package: str, level: int) -> Iterator[None]:
    """Set the log level of a package that logs the tracebacks of the exceptions it raises."""
    logger = logging.getLogger(package)
    previous = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(previous)
