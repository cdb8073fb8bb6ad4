# SPDX-License-Identifier: Apache-2.0
"""The SHA-256 digests of a directory's files, in a record that would notice its own damage too."""

import concurrent.futures
import hashlib
import json
import os
from collections.abc import Collection

from etils import epath

from transformer import paths

_PART = 2**20
"""Bytes that are read at once."""


class UnreadableError(ValueError):
    """A record is missing or is not what was written; the message begins with its name."""


def of_files(directory: epath.Path, leave_out: Collection[str] = ()) -> dict[str, str]:
    """The digest of every file below a directory, by its path there.

    Args:
      directory: of any depth.
      leave_out: paths below it.
    """
    files = {name: path for name, path in _files(directory, "").items() if name not in leave_out}
    # hashlib lets other threads run meanwhile.
    with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as threads:
        return dict(zip(files, threads.map(of_file, files.values()), strict=True))


def of_file(path: epath.Path) -> str:
    """The digest of one file, which need not fit into memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_PART):
            digest.update(part)
    return digest.hexdigest()


def difference(expected: dict[str, str], found: dict[str, str]) -> str | None:
    """What is wrong with the first file that is not what was written; None if all are."""
    for name in sorted(expected | found):
        if name not in found:
            return f"file {name} is missing"
        if expected.get(name) != found[name]:
            return f"file {name} is not what was written"
    return None


def write(record: epath.Path, step: int, files: dict[str, str]) -> None:
    """Writes the record of a step, whole."""
    text = json.dumps({"step": step, "files": files, "sha256": _own(step, files)}, indent=1)
    paths.write_atomic(record, text.encode())


def read(record: epath.Path, step: int) -> dict[str, str]:
    """The digests that `write` wrote for this step.

    Raises:
      UnreadableError: when the record is missing, damaged, or of another step.
    """
    if not record.exists():
        raise UnreadableError(f"digests/{record.name} is missing")
    try:
        values = json.loads(record.read_text())
        files = values["files"]
        intact = values["step"] == step and values["sha256"] == _own(step, files)
    except (OSError, ValueError, TypeError, KeyError):
        intact = False
    if not intact:
        raise UnreadableError(f"digests/{record.name} is not what was written")
    return files


def _own(step: int, files: dict[str, str]) -> str:
    """The digest of a record's own content."""
    return hashlib.sha256(json.dumps([step, files], sort_keys=True).encode()).hexdigest()


def _files(directory: epath.Path, before: str) -> dict[str, epath.Path]:
    found = {}
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            found |= _files(path, f"{before}{path.name}/")
        else:
            found[before + path.name] = path
    return found
