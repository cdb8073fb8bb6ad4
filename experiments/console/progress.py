# SPDX-License-Identifier: Apache-2.0
"""Messages and progress, on standard error."""

import contextlib
import datetime
import sys
import time

import rich.console
import rich.progress

REPORT_SECONDS = 2.0
"""Least time between two lines of a `Rate`."""


def say(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)


class Rate:
    """Items done, their rate and the remaining time, a line every few seconds."""

    def __init__(self, unit: str, start: int, total: int | None, prefix: str = ""):
        """Begin at item `start` of `total`, None if the number is unknown."""
        self._unit, self._start, self._total, self._prefix = unit, start, total, prefix
        self._began = self._reported = time.monotonic()

    def report(self, done: int) -> None:
        """Report, unless the last report is recent or all items are done."""
        now = time.monotonic()
        if now - self._reported < REPORT_SECONDS or done == self._total:
            return
        self._reported = now
        rate = (done - self._start) / (now - self._began)
        of, left = "", ""
        if self._total is not None:
            of, left = f" of {self._total:,}", f"  {_time((self._total - done) / rate)} left"
        say(f"{self._prefix}{done:,}{of} {self._unit}  {rate:,.1f} {self._unit}/s{left}")


class TrainingProgress(contextlib.AbstractContextManager):
    """The steps of a training: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, first_step: int, steps: int, shown: bool = True):
        """Start at `first_step` of `steps`; with several processes only process 0 shows it."""
        self._shown, self._steps, self._bar = shown, steps, None
        console = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)
        if shown and console.is_terminal:
            self._bar = rich.progress.Progress(
                rich.progress.BarColumn(bar_width=24),
                rich.progress.TextColumn("step {task.completed}/{task.total}  {task.fields[text]}"),
                console=console,
            )
            self._task = self._bar.add_task("", total=steps, completed=first_step, text="")
            self._bar.start()

    def advance(self, step: int) -> None:
        """Move the bar."""
        if self._bar:
            self._bar.update(self._task, completed=step)

    def report(self, step: int, values: dict[str, float]) -> None:
        """Show loss, tokens per second, learning rate and remaining time."""
        # The loss is missing if no step since the last report was finite.
        loss = f"{values['loss']:.4f}" if "loss" in values else "not finite"
        text = (
            f"loss {loss}  {values['tokens_per_second']:,.0f} tokens/s  "
            f"lr {values['learning_rate']:.2e}  {_time(values['seconds_left'])} left"
        )
        if self._bar:
            self._bar.update(self._task, completed=step, text=text)
        else:
            self.say(f"step {step}/{self._steps}  {text}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar:
            self._bar.console.print(text, markup=False)
        elif self._shown:
            say(text)

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()


def _time(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=round(seconds))
