# SPDX-License-Identifier: Apache-2.0
"""Paths on this machine and in object stores, as `etils.epath` knows them.

A path that begins with a scheme, such as ``gs://bucket/run``, must never become a `pathlib.Path`,
which makes ``gs:/bucket/run`` of it.
"""

import contextlib
import logging
import os
from collections.abc import Iterator

from etils import epath

from transformer.errors import InputError

_PACKAGES = {"gs": "gcsfs", "s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}
"""Which package serves a scheme."""


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path begins with a scheme."""
    return "://" in os.fspath(path)


def reachable(path: epath.PathLike) -> epath.Path:
    """The path; one in an object store is asked for once, to know that the store answers.

    Raises:
      InputError: when the scheme is unknown, when the package that serves it is not installed, or
        when the store does not answer.
    """
    scheme, found, _ = os.fspath(path).partition(":/")
    if found and scheme in _PACKAGES and not is_remote(path):
        raise InputError(
            f"{path} has one slash in place of two, as pathlib leaves it; give a string"
        )
    if not is_remote(path):
        return epath.Path(path)
    try:
        found = epath.Path(path)
    except KeyError:
        known = ", ".join(f"{name}://" for name in _PACKAGES)
        raise InputError(
            f"{path}: the scheme {scheme}:// is unknown; give a path on this machine without a "
            f"scheme, or one that begins with {known}"
        ) from None
    package = _PACKAGES.get(scheme, scheme)
    try:
        with _without_log(package):
            found.exists()
    except ImportError:
        raise InputError(
            f"{path}: {scheme}:// needs the package {package}, which is not installed; install it "
            f"with: pip install {package}"
        ) from None
    # Each store has exceptions of its own for a name, a network or a permission that is not right.
    except Exception as error:  # noqa: BLE001
        raise InputError(
            f"{path} cannot be reached: {reason(error)}; check the name, the network and the "
            "permission to use it"
        ) from None
    return found


def absolute(path: epath.PathLike) -> epath.Path:
    """The path from the root. `epath.Path.resolve` takes one with a scheme for a relative one."""
    found = epath.Path(path)
    return found if is_remote(path) else found.resolve()


def children(directory: epath.Path) -> list[epath.Path]:
    """What is in a directory. One in an object store is there only when something is in it."""
    return sorted(directory.iterdir()) if directory.is_dir() else []


def local(path: epath.PathLike, name: str) -> str:
    """The path, which must be on this machine; `name` says in the error what it is of.

    Raises:
      InputError: when it is not.
    """
    if is_remote(path):
        raise InputError(
            f"{name} is {path}, but must be on this machine, because its files are mapped into "
            "memory; name a local folder"
        )
    return os.fspath(path)


def write_atomic(path: epath.Path, data: bytes) -> None:
    """Write a file atomically: readers see the previous content or all of the new one."""
    if is_remote(path):
        # An object appears when it is complete.
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
    """What an exception of a file system or a store says, in one line and without its number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # The message of a store is often the path alone.
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _without_log(package: str) -> Iterator[None]:
    """Keeps a package from logging the traceback of what it raises."""
    log = logging.getLogger(package)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
