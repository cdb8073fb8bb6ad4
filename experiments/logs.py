# SPDX-License-Identifier: Apache-2.0
"""What a run says while it goes: metrics.jsonl, TensorBoard events, a bar or plain lines."""

import contextlib
import json
import pathlib
import sys
import time
from typing import Any

import rich.console
import rich.progress
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from transformer.errors import InputError


class MetricsLog(contextlib.AbstractContextManager):
    """``metrics.jsonl``, one JSON object a line, and the same numbers as TensorBoard events."""

    def __init__(self, workdir: pathlib.Path, first_step: int, tensorboard: bool):
        """Opens the log to go on after step `first_step`; lines of later steps, of a run that was
        killed after its last checkpoint, are dropped, since those steps are made again.
        """
        path = workdir / "metrics.jsonl"
        lines = enumerate(_lines(path), start=1)
        kept = [line for number, line in lines if _step(line, f"{path}:{number}") <= first_step]
        partial = path.with_suffix(".partial")
        partial.write_text("".join(kept), encoding="utf-8")
        partial.replace(path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed in __exit__
        self._events = EventFileWriter(str(workdir)) if tensorboard else None

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Logs values of one step and split."""
        line = {"step": step, "split": split, **values}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._events:
            numbers = [
                Summary.Value(tag=f"{split}/{name}", simple_value=value)
                for name, value in values.items()
                if isinstance(value, int | float)
            ]
            event = Event(wall_time=time.time(), step=step, summary=Summary(value=numbers))
            self._events.add_event(event)

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._events:
            self._events.close()


class Progress(contextlib.AbstractContextManager):
    """A bar on a terminal, plain lines elsewhere; always on standard error."""

    def __init__(self, first_step: int, steps: int):
        """Begins at `first_step` of `steps`."""
        self._console = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)
        self._steps = steps
        self._bar = None
        if self._console.is_terminal:
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
        text = (
            f"loss {values['loss']:.4f}  {values['tokens_per_second']:,.0f} tokens/s  "
            f"lr {values['learning_rate']:.2e}  {_clock(values['seconds_left'])} left"
        )
        if self._bar:
            self._bar.update(self._task, completed=step, text=text)
        else:
            print(f"step {step}/{self._steps}  {text}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._bar:
            self._bar.console.print(text, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()


def _lines(path: pathlib.Path) -> list[str]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        return [line for line in file if line.endswith("\n")]


def _step(line: str, place: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{place}: not a line of metrics; remove the line") from None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
