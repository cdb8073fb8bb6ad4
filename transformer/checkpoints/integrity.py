# SPDX-License-Identifier: Apache-2.0
"""SHA-256 digests of the files of a directory, and the record that holds them."""

import contextlib
import hashlib
import json
from collections.abc import Collection

from etils import epath

from transformer import paths
from transformer.cores import map_in_threads, num_cores

_CHUNK_BYTES = 2**20


def directory_digests(directory: epath.Path, exclude: Collection[str] = ()) -> dict[str, str]:
    """Return the digest of every file below a directory but the excluded, by relative path."""
    files = {name: path for name, path in _files(directory, "").items() if name not in exclude}
    # hashlib releases the interpreter lock.
    digests = map_in_threads(file_digest, files.values(), min(num_cores(), 8))
    return dict(zip(files, digests, strict=True))


def file_digest(path: epath.Path) -> str:
    """Return the digest of one file without reading it into memory at once."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def first_difference(expected: dict[str, str], actual: dict[str, str]) -> str | None:
    """Describe the first file that is missing or does not match its digest; None if all match."""
    for name in sorted(expected | actual):
        if name not in actual:
            return f"file {name} is missing"
        if expected.get(name) != actual[name]:
            return f"file {name} does not match its digest"
    return None


def write_record(record: epath.Path, digests: dict[str, str]) -> None:
    """Write the digests of a directory atomically."""
    paths.write_atomic(record, json.dumps({"files": digests}, indent=1).encode())


def read_record(record: epath.Path) -> dict[str, str] | None:
    """Read the digests that `write_record` wrote; None if they are missing or unreadable."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        if paths.is_regular_file(record):
            return dict(json.loads(record.read_text())["files"])
    return None


def _files(directory: epath.Path, prefix: str) -> dict[str, epath.Path]:
    files = {}
    for path in directory.iterdir():
        name = prefix + path.name
        if path.is_dir():
            files |= _files(path, f"{name}/")
        elif paths.is_regular_file(path):
            files[name] = path
        else:  # reading a FIFO would wait for a writer
            raise OSError(f"file {name} is not a regular file")
    return files
