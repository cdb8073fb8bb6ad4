# SPDX-License-Identifier: Apache-2.0
"""What one process of several finds out, all of them know.

Every process makes the same calls in the same order; one process alone is no special case.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer.errors import InputError


def agreed(decide: Callable[[], Any]) -> Any:
    """What process 0 decides; the others wait for it, and fail if it does.

    Args:
      decide: called in process 0 alone; JSON must be able to hold what it returns.

    Raises:
      InputError: in the other processes, with the message of whatever process 0 raised.
    """
    if jax.process_count() == 1:
        return decide()
    told, problem = {}, None
    if jax.process_index() == 0:
        try:
            told = {"answer": decide()}
        # Whatever it is, the others must not wait for ever.
        except Exception as error:  # noqa: BLE001
            told, problem = {"problem": str(error)}, error
    told = _told_by_the_first(told)
    if problem is not None:
        raise problem
    if "problem" in told:
        raise InputError(told["problem"])
    return told["answer"]


def any_problem(problem: str | None, what: str) -> str | None:
    """A problem of any process: this one's own, else a word about the first that has one.

    Args:
      problem: of this process, if it has one.
      what: none of them can do if one cannot.
    """
    if jax.process_count() == 1:
        return problem
    found = multihost_utils.process_allgather(np.int32(problem is not None))
    if problem is None and found.any():
        return f"process {int(found.argmax())} cannot {what}"
    return problem


def _told_by_the_first(value: Any) -> Any:
    """Process 0's value in all of them."""
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    padded = np.resize(data, length)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())
