# SPDX-License-Identifier: Apache-2.0
"""What a run says while it goes: metrics.jsonl, TensorBoard events, a bar or plain lines."""

import contextlib
import io
import json
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import rich.console
import rich.progress
from etils import epath
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.errors import InputError

logger = logging.getLogger(__name__)


class MetricsLog(contextlib.AbstractContextManager):
    """``metrics.jsonl``, one JSON object a line, and the same numbers as TensorBoard events.

    An object store cannot append to a file. For a workdir in one, both are written on this machine,
    and copied there whole: with each validation, at the end, and else at most once a minute.
    """

    COPIED_EVERY = 60.0
    """Seconds between two copies, at the least."""

    def __init__(self, workdir: epath.Path | None, first_step: int, tensorboard: bool):
        """Opens the log to go on after step `first_step`; lines of later steps, of a run that was
        killed after its last checkpoint, are dropped, since those steps are made again.

        Of several processes that train together, only one has a workdir to log to; the others give
        None, and nothing is written.

        Raises:
          InputError: when the log cannot be read or written.
        """
        self._workdir, self._closing = workdir, contextlib.ExitStack()
        self._lines = self._events = self._scratch = None
        if workdir is None:
            return
        kept = _lines_until(workdir / workdir_files.METRICS, first_step)
        with contextlib.ExitStack() as opening, self._written():
            if paths.is_remote(workdir):
                self._scratch = epath.Path(opening.enter_context(tempfile.TemporaryDirectory()))
            here = self._scratch or workdir
            workdir_files.write_bytes(here / workdir_files.METRICS, kept)
            self._lines = opening.enter_context(_Appended(here / workdir_files.METRICS))
            if tensorboard:
                name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
                self._events = RecordWriter(opening.enter_context(_Appended(here / name)))
                self._add_event(file_version="brain.Event:2")
            self._closing = opening.pop_all()
        self._copied_at = time.monotonic()

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Logs values of one step and split.

        Raises:
          InputError: when there is no room for them.
        """
        if self._lines is None:
            return
        line = {"step": step, "split": split, **values}
        with self._written():
            self._lines.write((json.dumps(line) + "\n").encode())
            if self._events:
                numbers = [
                    Summary.Value(tag=f"{split}/{name}", simple_value=value)
                    for name, value in values.items()
                    if isinstance(value, int | float)
                ]
                self._add_event(step=step, summary=Summary(value=numbers))
        waited = time.monotonic() - self._copied_at
        if split == "validation" or waited >= self.COPIED_EVERY:
            self._copy()

    def __exit__(self, *_: object) -> None:
        with self._closing:
            self._copy()

    def _add_event(self, **fields: Any) -> None:
        event = Event(wall_time=time.time(), **fields)
        self._events.write(event.SerializeToString())

    def _copy(self) -> None:
        """Copies the files to a remote workdir. A failure is only said: the next may succeed."""
        if self._scratch is None:
            return
        self._copied_at = time.monotonic()
        for file in self._scratch.iterdir():
            try:
                workdir_files.write_bytes(self._workdir / file.name, file.read_bytes())
            except InputError as error:
                logger.warning("the log was not copied: %s", error)

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Turns what writing raises into one message."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"metrics cannot be written to {self._scratch or self._workdir}: "
                f"{paths.reason(error)}; make room there and run the same command to go on "
                "from the last checkpoint"
            ) from None


class Progress(contextlib.AbstractContextManager):
    """A bar on a terminal, plain lines elsewhere; always on standard error."""

    def __init__(self, first_step: int, steps: int, shown: bool = True):
        """Begins at `first_step` of `steps`; of several processes, only one shows it."""
        self._shown = shown
        self._console = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)
        self._steps = steps
        self._bar = None
        if shown and self._console.is_terminal:
            self._bar = rich.progress.Progress(
                rich.progress.BarColumn(bar_width=24),
                rich.progress.TextColumn("step {task.completed}/{task.total}  {task.fields[text]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=steps, completed=first_step, text="")
            self._bar.start()

    def advance(self, step: int) -> None:
        """Moves the bar."""
        if self._bar:
            self._bar.update(self._task, completed=step)

    def report(self, step: int, values: dict[str, float]) -> None:
        """Shows loss, tokens a second, learning rate and time left."""
        # No step since the last report was finite where there is none.
        loss = f"{values['loss']:.4f}" if "loss" in values else "not finite"
        text = (
            f"loss {loss}  {values['tokens_per_second']:,.0f} tokens/s  "
            f"lr {values['learning_rate']:.2e}  {_clock(values['seconds_left'])} left"
        )
        if self._bar:
            self._bar.update(self._task, completed=step, text=text)
        else:
            self.say(f"step {step}/{self._steps}  {text}")

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._bar:
            self._bar.console.print(text, markup=False)
        elif self._shown:
            print(text, file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()


class _Appended(io.FileIO):
    """A file without a buffer: what is written is there at once, whole, or it fails at once."""

    def __init__(self, path: epath.Path):
        super().__init__(path, "ab")

    def write(self, data: bytes) -> int:
        """Writes all of it, where `io.FileIO` may write only a part."""
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)


def _lines_until(path: epath.Path, step: int) -> bytes:
    """The whole lines of a log as far as the step."""
    text = path.read_bytes() if path.exists() else b""
    lines = enumerate(text.split(b"\n")[:-1], start=1)
    return b"".join(line + b"\n" for number, line in lines if _step(line, path, number) <= step)


def _step(line: bytes, path: epath.Path, number: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path}:{number}: not a line of metrics; remove the line") from None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
