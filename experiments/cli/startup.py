# SPDX-License-Identifier: Apache-2.0
"""Prepare the process of an app before its slow imports: signals, standard streams, limits.

`experiments/__init__.py` calls `prepare` for ``python -m experiments.NAME``, before any other
module is imported, so only the standard library's smallest modules are used here.
"""

import contextlib
import gc
import io
import os
import resource
import signal
import sys
import types
from collections.abc import Iterator
from typing import Any

STDOUT = "standard output"
"""Name of the file in an OSError of standard output."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FEWEST_FILES, _MANY_FILES = 64, 1024
"""Open files that the apps need, and that they ask for."""

received: "Stopped | None" = None
"""The signal that stops the process; libraries may turn its exception into another one."""
_prepared = False
_at_once = True
"""Whether a signal ends the process without unwinding the stack."""


class Stopped(SystemExit):
    """Raised by a signal; the exit status is 128 + its number."""

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.code - 128).name}"


def prepare() -> None:
    """Prepare the process, with garbage collection off until `imports_are_done`.

    A second call does nothing.
    """
    global _prepared
    if _prepared:
        return
    _prepared = True
    gc.disable()
    _prepare_streams()
    for number in _SIGNALS:
        # `nohup` and background jobs of a script ignore signals on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    _raise_file_limit()
    devices = os.environ.get("JAX_NUM_CPU_DEVICES", "1")
    if not (devices.isascii() and devices.isdecimal() and int(devices)):
        sys.exit(
            f"error: the environment variable JAX_NUM_CPU_DEVICES is {devices!r}, but must be a "
            "whole number of at least 1; correct or unset it"
        )


def imports_are_done() -> None:
    """Turn garbage collection on, for objects allocated from now on; a second call does nothing.

    Modules consist of hundreds of thousands of objects, which stay. To search them for garbage, in
    the imports and later, takes a tenth of the time in which an app translates one sentence.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let the first signal raise `Stopped` within this block, so that ``finally`` clauses run.

    Elsewhere, and from the second signal on, the process ends at once: in an import or in the
    interpreter's shutdown, an exception would be swallowed or printed as a traceback.
    """
    global _at_once
    _at_once = False
    try:
        yield
    finally:
        _at_once = True


def _stop(number: int, frame: types.FrameType | None) -> None:
    global received, _at_once
    if _drops_exceptions(frame):
        signal.signal(signal.SIGALRM, lambda _, later: _stop(number, later))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        return
    received = received or Stopped(128 + number)
    if not _at_once:
        _at_once = True
        raise received
    # `print` must not be interrupted by a second `print`.
    with contextlib.suppress(OSError):
        os.write(2, f"{Stopped(128 + number)}\n".encode())
    os._exit(128 + number)


def _drops_exceptions(frame: types.FrameType | None) -> bool:
    """Whether the interpreter prints and drops an exception that is raised here."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _MANY_FILES:
        return
    soft = _MANY_FILES if hard == resource.RLIM_INFINITY else min(_MANY_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < _FEWEST_FILES:
        sys.exit(
            f"error: only {soft} files may be open at once; raise the limit (ulimit -n "
            f"{_MANY_FILES})"
        )


def _prepare_streams() -> None:
    """Give closed standard streams their descriptors back, so that no other file takes them.

    Standard input is then write-only and standard output read-only: their use fails.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free descriptor, which is `number`
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = _wrapped(sys.stdout, 1, _Results, "strict")
    sys.stderr = _wrapped(sys.stderr, 2, _Messages, "backslashreplace")
    if isinstance(sys.stderr, _Messages):
        sys.stderr.reconfigure(line_buffering=True)


def _wrapped(stream: Any, number: int, wrapper: type[io.TextIOWrapper], errors: str) -> Any:
    if stream is None:
        buffer = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        return wrapper(buffer, "utf-8", errors)
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # redirected within Python
    return wrapper(stream.buffer, "utf-8", errors, line_buffering=stream.line_buffering)


class _Results(io.TextIOWrapper):
    """Standard output, which is named in the exceptions of its use."""

    def write(self, text: str) -> int:
        with self._named():
            return super().write(text)

    def flush(self) -> None:
        with self._named():
            super().flush()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, STDOUT) from None


class _Messages(io.TextIOWrapper):
    """Standard error, which drops what cannot be written."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()
