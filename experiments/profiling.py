# SPDX-License-Identifier: Apache-2.0
"""A trace of a few training steps, for TensorBoard's profiler or Perfetto."""

import contextlib
import os
from typing import Any

import jax

from transformer import paths
from transformer.errors import InputError

WARM_UP = 5
"""Steps of a start that are not traced: the first compile, and fill the queues."""


class Profile(contextlib.AbstractContextManager):
    """Traces so many steps of this start after the first `WARM_UP`."""

    def __init__(self, steps: int | None, folder: os.PathLike):
        """With None nothing is traced.

        Raises:
          InputError: for a number of steps below 1, or a folder in an object store.
        """
        if steps is not None and steps < 1:
            raise InputError(f"--profile={steps}: trace at least one step, or leave the flag out")
        if steps is not None and paths.is_remote(folder):
            raise InputError(
                f"--profile: the profiler cannot write to {folder}; use a --workdir on this machine"
            )
        self.folder = folder
        self._steps, self._begun = steps, 0
        self._tracing = False

    def before_step(self, last_result: Any) -> str | None:
        """Call it before each step with what the step before it gave; returns what to say."""
        if self._steps is None:
            return None
        self._begun += 1
        if self._begun == WARM_UP + 1:
            jax.block_until_ready(last_result)
            jax.profiler.start_trace(str(self.folder))
            self._tracing = True
        elif self._begun == WARM_UP + 1 + self._steps:
            jax.block_until_ready(last_result)
            self._stop()
            return f"a trace of {self._steps} steps is in {self.folder} (tensorboard, or Perfetto)"
        return None

    def __exit__(self, *_: object) -> None:
        if self._tracing:
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._tracing = False
