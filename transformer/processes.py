# SPDX-License-Identifier: Apache-2.0
"""Broadcast decisions and errors from process 0 to all processes.

Every process makes the same calls in the same order. With one process they return at once.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer.errors import InputError


def from_main_process(decide: Callable[[], Any]) -> Any:
    """Call `decide` in process 0 and return its result in all processes.

    Args:
      decide: returns a value that JSON can represent.

    Raises:
      InputError: in the other processes, with the message of the exception in process 0, where
        that exception is raised unchanged.
    """
    if jax.process_count() == 1:
        return decide()
    message, exception = {}, None
    if jax.process_index() == 0:
        try:
            message = {"result": decide()}
        # The other processes are waiting, so every exception must reach them.
        except Exception as error:  # noqa: BLE001
            message, exception = {"error": str(error)}, error
    message = _broadcast_json(message)
    if exception is not None:
        raise exception
    if "error" in message:
        raise InputError(message["error"])
    return message["result"]


def first_error(error: str | None, action: str) -> str | None:
    """Return the error of this process, or else a note on the first process that has one.

    Args:
      error: message of this process, or None.
      action: what a process with an error cannot do.
    """
    if jax.process_count() == 1:
        return error
    failed = multihost_utils.process_allgather(np.int32(error is not None))
    if error is None and failed.any():
        return f"process {int(failed.argmax())} cannot {action}"
    return error


def _broadcast_json(value: Any) -> Any:
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    # Processes must agree on the shape of what is broadcast.
    length = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    padded = np.resize(data, length)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())
