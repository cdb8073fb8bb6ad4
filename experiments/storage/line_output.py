# SPDX-License-Identifier: Apache-2.0
"""A file of lines that appears when it is complete, and can be continued."""

import contextlib
import fcntl
import glob
import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterable
from typing import BinaryIO

from transformer.errors import InputError


class ResumableFile(contextlib.AbstractContextManager):
    """Lines of a local file, written beside it and renamed when the block ends without exception.

    `num_lines` is the number of complete lines. The name of the unfinished file has a digest of
    everything that the lines depend on.
    """

    def __init__(
        self, path: str, identity: str, resume: bool, multiple: int, total: int | None = None
    ):
        """Open and lock the unfinished file.

        Args:
          path: path of the complete file.
          identity: everything that the lines depend on.
          resume: continue the unfinished file, if there is one, instead of starting again.
          multiple: the number of lines kept of an unfinished file is a multiple of this.
          total: the number of lines of the complete file, if it is known.

        Raises:
          InputError: if the file cannot be written, another process writes it, or unfinished files
            have other identities or too many lines.
        """
        self._path = pathlib.Path(os.path.realpath(path))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        self._partial = self._path.with_name(f"{self._path.name}.{digest}.partial")
        if resume and not self._partial.exists():
            others = sorted(glob.glob(f"{glob.escape(str(self._path))}.*.partial"))
            if others:
                raise InputError(
                    f"--resume: {others[0]} is of other flags, weights or input; use the same, or "
                    "leave --resume out to start again"
                )
        self._file = self._locked()
        num_lines = sum(line.endswith(b"\n") for line in self._file) if resume else 0
        if total is not None and num_lines > total:
            self._file.close()
            raise InputError(
                f"--resume: {self._partial} has {num_lines:,} lines, but only {total:,} are to be "
                "written; remove it, or leave --resume out to start again"
            )
        self.num_lines = num_lines - num_lines % multiple
        self._file.seek(0)
        self._file.truncate(sum(map(len, itertools.islice(self._file, self.num_lines))))
        self._file.seek(0, os.SEEK_END)

    def _locked(self) -> BinaryIO:
        """The unfinished file, which no other process writes; the lock ends with the process."""
        while True:
            file = open(os.open(self._partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b")  # noqa: SIM115
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise InputError(
                    f"another process is writing {self._path}; wait for it, or name another file"
                ) from None
            # Between opening and locking, a process that completed the file may have renamed it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self._partial)):
                    return file
            file.close()

    def writelines(self, lines: Iterable[str]) -> None:
        """Append lines, which end with a line feed."""
        for line in lines:
            self._file.write(line.encode())
            self.num_lines += 1

    def flush(self) -> None:
        """Leave all lines to the operating system, so that they survive the process."""
        self._file.flush()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if error is None:
            try:
                self._partial.replace(self._path)
            except OSError as failure:
                raise InputError(
                    f"{self._path} cannot be written: {failure.strerror}; its lines are in "
                    f"{self._partial}"
                ) from None
        elif self.num_lines:
            error.add_note(
                f"{self.num_lines:,} lines are in {self._partial}; --resume continues there"
            )
        else:
            self._partial.unlink(missing_ok=True)
