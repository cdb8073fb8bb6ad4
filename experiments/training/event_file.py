# SPDX-License-Identifier: Apache-2.0
"""TensorBoard event files, written without TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def new_name() -> str:
    """Return a file name that TensorBoard recognizes and no other process uses."""
    return f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"


class EventWriter:
    """Writes scalars to an open file, after step `first`; earlier files may have later steps."""

    def __init__(self, file: BinaryIO, first: int):
        self._records = RecordWriter(file)
        self._write(file_version="brain.Event:2")
        # TensorBoard drops what earlier files have from this step on.
        self._write(step=first + 1, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step, keyed by tag."""
        summary = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(step=step, summary=Summary(value=summary))

    def _write(self, **fields: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
