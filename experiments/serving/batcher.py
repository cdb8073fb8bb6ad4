# SPDX-License-Identifier: Apache-2.0
"""Dynamic batching: sentences of many callers, translated together in one thread or a few.

with Batcher(translate, costs=costs) as batcher:
    [[best]] = batcher.submit(["the house"]).result()

A thread takes the oldest sentence, waits a few milliseconds for others, and translates it with
those that are of similar length. Callers may be any number of other threads. This module knows no
model and no HTTP.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

Future = concurrent.futures.Future

_DECAY = 0.9
"""Weight of the past in the moving average of sentences per second."""


class QueueFull(Exception):
    """The queue has no capacity for a request."""

    def __init__(self, waiting: int, retry_after: int):
        super().__init__(f"{waiting} sentences are waiting; retry in {retry_after} seconds")
        self.retry_after = retry_after
        """Seconds after which the queue will probably be short."""


class BatcherClosed(Exception):
    """No request is accepted any more."""


@dataclasses.dataclass(frozen=True)
class BatchRecord:
    """One batch that was translated."""

    sentences: int
    rows: int
    """Sentences and padding."""
    seconds: float


@dataclasses.dataclass(eq=False)
class _Request:
    """The future of a call of `submit`, and its results so far."""

    future: Future
    results: list[Any]
    missing: int
    """Number of sentences without a result."""

    def finish(self, index: int, result: Any) -> None:
        self.results[index] = result
        self.missing -= 1
        if not self.missing:
            _resolve(self.future, self.results)


@dataclasses.dataclass(frozen=True, eq=False)
class _Item:
    """One sentence of a request, or one function call."""

    request: _Request
    index: int
    arrival: float
    work: str | Callable[[], Any]
    length: int = 1
    num_results: int = 0
    line: int = 1


class Batcher:
    """Translate the sentences of many callers in shared batches; a context manager.

    All methods may be called from any thread. Closing finishes everything that was accepted.
    """

    def __init__(
        self,
        translate: Callable[[list[str], int, int], Sequence[Any]],
        *,
        costs: Callable[[int], Mapping[int, float]],
        bucket: Callable[[int], int] = lambda length: length,
        window: float = 0.0,
        capacity: int | None = None,
        combine: bool = True,
        threads: int = 1,
        observe: Callable[[BatchRecord], None] = lambda record: None,
    ):
        """Start the threads.

        Args:
          translate: `(sentences, num_results, first_line) -> results`, one a sentence. The result
            of a sentence must not depend on the others.
          costs: the numbers of rows that a batch with these `num_results` can have, each with its
            cost in any unit; see `choose`.
          bucket: the static length for a number of tokens.
          window: seconds for which a sentence waits for others.
          capacity: sentences that may wait; None for any number.
          combine: whether sentences of different requests share batches. If not, the results may
            depend on line numbers, as samples do.
          threads: batches that are translated at the same time.
          observe: called after each batch, in its thread.
        """
        self._translate_batch, self._costs, self._bucket = translate, costs, bucket
        self._window, self._capacity, self._combine = window, capacity, combine
        self._observe = observe
        self._items: collections.deque[_Item] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._rate = 0.0
        self._threads = [
            threading.Thread(target=self._run, name=f"batcher {number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        sentences: Sequence[str],
        num_results: int = 1,
        first_line: int = 1,
        lengths: Sequence[int] | None = None,
    ) -> Future[list[Any]]:
        """Queue sentences.

        Args:
          sentences: lines of text.
          num_results: passed to `translate`.
          first_line: line number of the first sentence.
          lengths: tokens of each sentence; equal by default.

        Returns:
          a future of the results, one a sentence. Cancelling it drops what is still in the queue.

        Raises:
          QueueFull: if the sentences exceed the capacity; none of them is queued.
          BatcherClosed: after `close`.
        """
        request = _Request(Future(), [None] * len(sentences), len(sentences))
        if not sentences:
            request.future.set_result([])
            return request.future
        arrival = time.monotonic()
        self._enqueue(
            _Item(request, index, arrival, text, length, num_results, first_line)
            for index, (text, length) in enumerate(
                zip(sentences, lengths or [1] * len(sentences), strict=True)
            )
        )
        return request.future

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Queue a function that a thread calls between two batches.

        Raises:
          QueueFull: if the queue is full.
          BatcherClosed: after `close`.
        """
        future: Future[Any] = Future()
        self._enqueue([_Item(_Request(future, [], 0), 0, time.monotonic(), function)])
        return future

    @property
    def waiting(self) -> int:
        """Sentences in the queue."""
        return len(self._items)

    def close(self) -> None:
        """Refuse new requests, finish the accepted ones, and end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(self, items: Iterable[_Item]) -> None:
        items = list(items)
        with self._changed:
            if self._closed:
                raise BatcherClosed("the service is shutting down")
            waiting = len(self._items)
            if self._capacity is not None and waiting + len(items) > self._capacity:
                seconds = math.ceil(waiting / self._rate) if self._rate else 1
                raise QueueFull(waiting, min(max(seconds, 1), 60))
            self._items.extend(items)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                if callable(batch[0].work):
                    _call(batch[0])
                else:
                    self._translate(batch)
        except Exception as error:  # noqa: BLE001 - without a thread, callers would wait forever
            with self._changed:
                self._closed = True
                waiting, self._items = self._items, collections.deque()
                self._changed.notify_all()
            for item in waiting:
                _fail(item.request.future, error)

    def _next_batch(self) -> list[_Item]:
        """Wait for work and remove it from the queue; empty after `close`."""
        with self._changed:
            while True:
                self._drop_cancelled()
                if not self._items:
                    if self._closed:
                        return []
                    self._changed.wait()
                    continue
                oldest = self._items[0]
                if callable(oldest.work):
                    return [self._items.popleft()]
                candidates = self._alike(oldest)
                costs = self._costs(oldest.num_results)
                remaining = oldest.arrival + self._window - time.monotonic()
                if len(candidates) >= max(costs) or remaining <= 0 or self._closed:
                    return self._take(candidates, costs)
                self._changed.wait(remaining)

    def _alike(self, oldest: _Item) -> list[_Item]:
        """The sentences that may share a batch with the oldest one, in order of arrival."""
        return [
            item
            for item in self._items
            if item.num_results == oldest.num_results
            and (self._combine or item.request is oldest.request)
        ]

    def _take(self, candidates: list[_Item], costs: Mapping[int, float]) -> list[_Item]:
        """Remove the next batch from the queue."""
        if self._combine:
            lengths = [item.length for item in candidates]
            batch = [candidates[i] for i in choose(lengths, costs, self._bucket)]
        else:
            # Consecutive lines, whatever their lengths.
            batch = candidates[: max(costs)]
        taken = set(batch)
        self._items = collections.deque(item for item in self._items if item not in taken)
        return batch

    def _drop_cancelled(self) -> None:
        if any(item.request.future.cancelled() for item in self._items):
            self._items = collections.deque(
                item for item in self._items if not item.request.future.cancelled()
            )

    def _translate(self, batch: list[_Item]) -> None:
        began = time.perf_counter()
        try:
            self._finish(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, its callers must hear of it
            if len(batch) == 1:
                _fail(batch[0].request.future, error)
            else:
                # One sentence must not be able to fail those of other callers.
                for item in batch:
                    self._translate([item])
            return
        seconds = time.perf_counter() - began
        rate = len(self._threads) * len(batch) / max(seconds, 1e-9)
        self._rate = _DECAY * self._rate + (1 - _DECAY) * rate if self._rate else rate
        costs = self._costs(batch[0].num_results)
        rows = min((size for size in costs if size >= len(batch)), default=len(batch))
        self._observe(BatchRecord(len(batch), rows, seconds))

    def _finish(self, batch: list[_Item]) -> None:
        first = batch[0]
        line = first.line + first.index
        results = self._translate_batch([item.work for item in batch], first.num_results, line)
        for item, result in zip(batch, results, strict=True):
            item.request.finish(item.index, result)


def choose(
    lengths: Sequence[int], costs: Mapping[int, float], bucket: Callable[[int], int]
) -> list[int]:
    """Choose the sentences of the next batch, among which is always the first.

    A batch takes the steps of its longest sentence, at a cost for each step that its number of rows
    decides. Of all batches of adjacent lengths, it is the one with the lowest cost a token. Where
    costs grow with the rows, as on a CPU, 9 sentences are better translated as 8 and 1 than in a
    batch of 64 rows; where they do not, as on an accelerator, padding is free.

    Args:
      lengths: of the sentences that wait, in tokens, the oldest first.
      costs: by number of rows.
      bucket: the static length for a number of tokens.

    Returns:
      indices of the batch's sentences, the longest first. The longest bucket is at most twice that
      of the first sentence, which would otherwise wait long.
    """
    longest = 2 * bucket(lengths[0])
    order = [index for index, length in enumerate(lengths) if bucket(length) <= longest]
    order.sort(key=lambda index: -lengths[index])
    oldest = order.index(0)
    totals = [0, *itertools.accumulate(lengths[index] for index in order)]
    batches: dict[float, list[int]] = {}
    for rows in sorted(costs, reverse=True):
        for start in range(max(0, oldest - rows + 1), oldest + 1):
            end = min(start + rows, len(order))
            cost = costs[rows] * lengths[order[start]] / (totals[end] - totals[start])
            batches.setdefault(cost, order[start:end])
    return batches[min(batches)]


def _call(item: _Item) -> None:
    if not item.request.future.set_running_or_notify_cancel():
        return
    try:
        item.request.future.set_result(item.work())
    except Exception as error:  # noqa: BLE001 - the caller must hear of it
        item.request.future.set_exception(error)


def _resolve(future: Future, result: Any) -> None:
    with contextlib.suppress(concurrent.futures.InvalidStateError):  # cancelled meanwhile
        future.set_result(result)


def _fail(future: Future, error: Exception) -> None:
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        future.set_exception(error)
