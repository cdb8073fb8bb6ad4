# SPDX-License-Identifier: Apache-2.0
"""The log of a training: metrics.jsonl and TensorBoard events."""

import contextlib
import io
import json
import logging
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from etils import epath

from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.errors import InputError

logger = logging.getLogger(__name__)


class MetricsLog(contextlib.AbstractContextManager):
    """``metrics.jsonl``, one JSON object a line, and the same numbers as TensorBoard events.

    Objects in a store cannot be appended to. For a remote workdir both files are written locally
    and copied with each validation, at the end, and otherwise at most once a minute.
    """

    COPY_INTERVAL_SECONDS = 60.0

    def __init__(self, workdir: epath.Path | None, first_step: int, tensorboard: bool):
        """Open the log to continue after step `first_step`.

        Lines of later steps are dropped: those steps, made after the last checkpoint of a killed
        run, are repeated. With several processes only process 0 gives a workdir; with None nothing
        is written.

        Raises:
          InputError: when the log cannot be read or written.
        """
        self._workdir, self._closing = workdir, contextlib.ExitStack()
        self._lines = self._events = self._scratch = None
        if workdir is None:
            return
        kept = _lines_until(workdir / workdir_files.METRICS, first_step)
        with contextlib.ExitStack() as opening, self._disk_errors():
            if paths.is_remote(workdir):
                self._scratch = epath.Path(opening.enter_context(tempfile.TemporaryDirectory()))
            directory = self._scratch or workdir
            workdir_files.write_bytes(directory / workdir_files.METRICS, kept)
            self._lines = opening.enter_context(_AppendedFile(directory / workdir_files.METRICS))
            if tensorboard:
                # Importing TensorBoard takes long, and neither --help nor other apps need it.
                from experiments.training import event_file

                path = directory / event_file.new_name()
                file = opening.enter_context(_AppendedFile(path))
                self._events = event_file.EventWriter(file, first_step)
            self._closing = opening.pop_all()
        self._copied_at = time.monotonic()

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Log the values of one step and split.

        Raises:
          InputError: when they cannot be written.
        """
        if self._lines is None:
            return
        line = {"step": step, "split": split, **values}
        with self._disk_errors():
            self._lines.write((json.dumps(line) + "\n").encode())
            if self._events:
                self._events.scalars(
                    step,
                    {
                        f"{split}/{name}": value
                        for name, value in values.items()
                        if isinstance(value, int | float)
                    },
                )
        age = time.monotonic() - self._copied_at
        if split == "validation" or age >= self.COPY_INTERVAL_SECONDS:
            self._copy()

    def __exit__(self, *_: object) -> None:
        with self._closing:
            self._copy()

    def _copy(self) -> None:
        """Copy the files to a remote workdir; failures are logged, since the next may succeed."""
        if self._scratch is None:
            return
        self._copied_at = time.monotonic()
        for file in self._scratch.iterdir():
            try:
                workdir_files.write_bytes(self._workdir / file.name, file.read_bytes())
            except InputError as error:
                logger.warning("the log was not copied: %s", error)

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"metrics cannot be written to {self._scratch or self._workdir}: "
                f"{paths.reason(error)}; free space there and run the same command to continue "
                "from the last checkpoint"
            ) from None


class _AppendedFile(io.FileIO):
    """A file without a buffer: every write is on disk at once and complete, or fails."""

    def __init__(self, path: epath.Path):
        super().__init__(path, "ab")

    def write(self, data: bytes) -> int:
        """Write all of the data, of which `io.FileIO` may write a part."""
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)


def _lines_until(path: epath.Path, step: int) -> bytes:
    """Return the complete lines of a log up to and including a step."""
    text = path.read_bytes() if path.exists() else b""
    lines = enumerate(text.split(b"\n")[:-1], start=1)
    return b"".join(line + b"\n" for number, line in lines if _step(line, path, number) <= step)


def _step(line: bytes, path: epath.Path, number: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path}:{number}: not a line of metrics; remove the line") from None
