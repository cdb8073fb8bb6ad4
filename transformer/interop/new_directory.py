# SPDX-License-Identifier: Apache-2.0
"""Write a directory atomically: it appears complete, or not at all."""

import contextlib
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator

from transformer import paths
from transformer.errors import InputError


@contextlib.contextmanager
def new_directory(path: os.PathLike | str, flag: str = "--output") -> Iterator[pathlib.Path]:
    """Yield a temporary directory that becomes `path` when the block ends without an exception.

    Args:
      path: a directory of the local file system that does not exist, or is empty.
      flag: what the user calls the path, for errors.

    Raises:
      InputError: when the directory exists and is not empty, or cannot be written.
    """
    if paths.is_remote(path):
        raise InputError(f"{flag}={path} must be a local directory; copy it there afterwards")
    target = pathlib.Path(os.path.abspath(path))
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{flag}={path} exists; name a new directory, or remove it")
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.replace(target)
    except OSError as error:
        raise InputError(f"{flag}={path} cannot be written: {paths.reason(error)}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
