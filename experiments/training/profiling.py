# SPDX-License-Identifier: Apache-2.0
"""A profiler trace of a few training steps, for TensorBoard or Perfetto."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import jax

from transformer import paths
from transformer.errors import InputError

WARM_UP = 5
"""Steps before the trace, in which programs are compiled and queues fill."""


class Profile(contextlib.AbstractContextManager):
    """Trace `steps` training steps after the first `WARM_UP`."""

    def __init__(self, steps: int | None, folder: os.PathLike, say: Callable[[str], None]):
        """Trace into `folder`, and `say` when it is done; None: no trace.

        Raises:
          InputError: for a number of steps below 1, or a folder in an object store.
        """
        if steps is not None and steps < 1:
            raise InputError(f"--profile={steps}: trace at least one step, or leave the flag out")
        if steps is not None and paths.is_remote(folder):
            raise InputError(
                f"--profile: the profiler cannot write to {folder}; use a --workdir on this machine"
            )
        self._steps, self._folder, self._say = steps, folder, say
        self._steps_seen, self._tracing = 0, contextlib.ExitStack()

    def before_step(self, state: Any) -> None:
        """Start or stop the trace where it is time; `state` is the result of the step before."""
        if self._steps is None:
            return
        self._steps_seen += 1
        if self._steps_seen == WARM_UP + 1:
            jax.block_until_ready(state)
            self._tracing.enter_context(jax.profiler.trace(str(self._folder)))
        elif self._steps_seen == WARM_UP + 1 + self._steps:
            jax.block_until_ready(state)
            self._tracing.close()
            self._say(
                f"a trace of {self._steps} steps is in {self._folder} (TensorBoard or Perfetto)"
            )

    def __exit__(self, *_: object) -> None:
        self._tracing.close()
