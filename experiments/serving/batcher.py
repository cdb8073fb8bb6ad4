# SPDX-License-Identifier: Apache-2.0
"""Dynamic batching: sentences of many callers are translated in shared batches.

with Batcher(translate, costs=costs) as batcher:
    [future] = batcher.submit(["the house"])
    [best] = future.result()

A thread takes the oldest sentence, waits a few milliseconds for others, and translates it together
with sentences of similar length. This module depends neither on a model nor on HTTP.
"""

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self


class QueueFull(Exception):
    """The queue has no capacity for a request."""


class BatcherClosed(Exception):
    """No request is accepted any more."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Item:
    """A sentence in the queue."""

    sentence: str
    arrival: float
    length: int
    num_results: int
    line: int
    future: Future = dataclasses.field(default_factory=Future)


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
        threads: int = 1,
        observe: Callable[[int, int, float], None] = lambda sentences, rows, seconds: None,
    ):
        """Start the threads.

        Args:
          translate: `(sentences, num_results, first_line) -> results`, one result for each
            sentence. The result of a sentence must not depend on the others in its batch.
          costs: maps `num_results` to the possible numbers of rows of a batch, each with its cost
            in any unit; see `choose`.
          bucket: maps a number of tokens to the static length of a batch.
          window: seconds for which a sentence waits for others.
          capacity: number of sentences that may wait; None for no limit.
          threads: number of batches that are translated at the same time.
          observe: called after each batch with its sentences, its rows and its seconds.
        """
        self._translate_batch, self._costs, self._bucket = translate, costs, bucket
        self._window, self._capacity, self._observe = window, capacity, observe
        self._items: list[_Item] = []
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        sentences: Sequence[str],
        num_results: int = 1,
        lengths: Sequence[int] | None = None,
    ) -> list[Future]:
        """Queue sentences.

        Args:
          sentences: lines of text.
          num_results: passed to `translate`.
          lengths: number of tokens of each sentence; equal by default.

        Returns:
          a future for each sentence. Cancelling it removes the sentence from the queue.

        Raises:
          QueueFull: if the sentences exceed the capacity; none of them is queued.
          BatcherClosed: after `close`.
        """
        arrival, lengths = time.monotonic(), lengths or [1] * len(sentences)
        items = [
            _Item(sentence, arrival, length, num_results, line)
            for line, (sentence, length) in enumerate(zip(sentences, lengths, strict=True), 1)
        ]
        with self._changed:
            if self._closed:
                raise BatcherClosed("the service is shutting down")
            if self._capacity is not None and self.waiting + len(items) > self._capacity:
                raise QueueFull(f"{self.waiting} sentences are waiting; retry later")
            self._items += items
            self._changed.notify_all()
        return [item.future for item in items]

    @property
    def waiting(self) -> int:
        """Number of sentences in the queue."""
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

    def _run(self) -> None:
        while batch := self._next_batch():
            self._translate(batch)

    def _next_batch(self) -> list[_Item]:
        """Wait for sentences and remove them from the queue; empty after `close`."""
        with self._changed:
            while True:
                self._items = [item for item in self._items if not item.future.cancelled()]
                if not self._items:
                    if self._closed:
                        return []
                    self._changed.wait()
                    continue
                oldest = self._items[0]
                alike = [item for item in self._items if item.num_results == oldest.num_results]
                costs = self._costs(oldest.num_results)
                remaining = oldest.arrival + self._window - time.monotonic()
                if len(alike) < max(costs) and remaining > 0 and not self._closed:
                    self._changed.wait(remaining)
                    continue
                chosen = choose([item.length for item in alike], costs, self._bucket)
                batch = [alike[index] for index in chosen]
                taken = set(batch)
                self._items = [item for item in self._items if item not in taken]
                # After this, a future cannot be cancelled any more.
                if batch := [i for i in batch if i.future.set_running_or_notify_cancel()]:
                    return batch

    def _translate(self, batch: list[_Item]) -> None:
        began, num_results = time.perf_counter(), batch[0].num_results
        try:
            sentences = [item.sentence for item in batch]
            results = self._translate_batch(sentences, num_results, batch[0].line)
        except Exception as error:  # noqa: BLE001 - the callers get it
            if len(batch) == 1:
                batch[0].future.set_exception(error)
            else:
                # One sentence must not be able to fail those of other callers.
                for item in batch:
                    self._translate([item])
            return
        for item, result in zip(batch, results, strict=True):
            item.future.set_result(result)
        rows = min(size for size in self._costs(num_results) if size >= len(batch))
        self._observe(len(batch), rows, time.perf_counter() - began)


def choose(
    lengths: Sequence[int], costs: Mapping[int, float], bucket: Callable[[int], int]
) -> list[int]:
    """Choose the sentences of the next batch; the first sentence is always one of them.

    A batch takes as many steps as its longest sentence, and the cost of a step depends on the
    number of rows. The chosen batch has the lowest cost per token of all batches of adjacent
    lengths. Where the cost grows with the rows, as on a CPU, 9 sentences become batches of 8 and 1;
    where it does not, as on an accelerator, they become one padded batch of 64 rows.

    Args:
      lengths: number of tokens of each waiting sentence, the oldest first.
      costs: cost of a step by number of rows.
      bucket: maps a number of tokens to the static length of a batch.

    Returns:
      indices of the sentences, the longest first. Their longest bucket is at most twice that of
      the first sentence, which would otherwise wait long.
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
