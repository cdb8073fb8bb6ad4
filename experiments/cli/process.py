# SPDX-License-Identifier: Apache-2.0
"""The process of an app: its signals, and its garbage collection."""

import gc
import os
import signal
import sys
import types

received: "Stopped | None" = None
"""The signal that stops the process; libraries may turn its exception into another one."""


class Stopped(SystemExit):
    """Raised by the first signal, so that ``finally`` clauses run; the status is 128 + number."""

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.code - 128).name}"


def prepare() -> None:
    """Handle signals, and leave the modules, which stay, out of garbage collection."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # `nohup` and background jobs of a script ignore signals on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: `print` would put messages among the results
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    gc.freeze()


def _stop(number: int, frame: types.FrameType | None) -> None:
    global received
    if received:  # The second signal does not wait for clean-up.
        os._exit(128 + number)
    received = Stopped(128 + number)
    raise received
