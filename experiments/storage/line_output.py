# SPDX-License-Identifier: Apache-2.0
"""A file of lines that appears when it is complete, and can be continued."""

import contextlib
import glob
import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterable

from transformer.errors import InputError


class ResumableFile(contextlib.AbstractContextManager):
    """Lines of a local file, written beside it and renamed when the block ends without exception.

    `num_lines` is the number of complete lines. The name of the unfinished file has a digest of
    everything that the lines depend on.
    """

    def __init__(self, path: str, identity: str, resume: bool, multiple: int):
        """Open the unfinished file.

        Args:
          path: path of the complete file.
          identity: everything that the lines depend on.
          resume: continue the unfinished file, if there is one, instead of starting again.
          multiple: the number of lines kept of an unfinished file is a multiple of this.

        Raises:
          InputError: if the file cannot be written, or unfinished files have other identities.
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
        mode = "r+b" if resume and self._partial.exists() else "w+b"
        self._file = open(self._partial, mode)  # noqa: SIM115 - closed by __exit__
        num_lines = sum(line.endswith(b"\n") for line in self._file)
        self.num_lines = num_lines - num_lines % multiple
        self._file.seek(0)
        self._file.truncate(sum(map(len, itertools.islice(self._file, self.num_lines))))
        self._file.seek(0, os.SEEK_END)

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
