# SPDX-License-Identifier: Apache-2.0
"""Metrics of the service in Prometheus' text format."""

from collections.abc import Callable

import jax
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_COMPILATION = "/jax/core/compile/backend_compile_duration"
"""JAX's event for every program that it compiles, or loads from its cache on disk."""
_LATENCIES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_FILLS = (0.125, 0.25, 0.5, 0.75, 0.875, 1)


class ServiceMetrics:
    """Counters and histograms of one service; a context manager that listens to JAX."""

    def __init__(self):
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        options = {"registry": self._registry, "namespace": "transformer"}
        self.requests = Counter(
            "requests", "Requests by route and status.", ["route", "status"], **options
        )
        self.latency = Histogram(
            "request_seconds",
            "Seconds from a request's headers to its reply.",
            ["route"],
            buckets=_LATENCIES,
            **options,
        )
        self.accepted = Counter(
            "accepted_requests", "Translation requests that were queued.", **options
        )
        self.answered = Counter(
            "answered_requests", "Accepted requests whose translation was sent.", **options
        )
        self._sentences = Counter("sentences", "Sentences translated.", **options)
        self._batches = Counter("batches", "Batches translated.", **options)
        self._fill = Histogram(
            "batch_fill", "Share of a batch that is not padding.", buckets=_FILLS, **options
        )
        self._batch_seconds = Histogram(
            "batch_seconds", "Seconds of a batch.", buckets=_LATENCIES, **options
        )
        self._queue = Gauge("queue_sentences", "Sentences that wait for a batch.", **options)
        self._compilations = Counter("compilations", "Programs compiled by JAX.", **options)

    def watch_queue(self, length: Callable[[], float]) -> None:
        """Report the value of a function as the length of the queue."""
        self._queue.set_function(length)

    def record_batch(self, sentences: int, rows: int, seconds: float) -> None:
        """Count a batch; `rows` includes padding."""
        self._sentences.inc(sentences)
        self._batches.inc()
        self._fill.observe(sentences / rows)
        self._batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one counter or gauge, by its full name."""
        return self._registry.get_sample_value(name, labels) or 0.0

    def __enter__(self) -> "ServiceMetrics":
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_event)

    def _on_event(self, event: str, duration: float, **_: object) -> None:
        if event == _COMPILATION:
            self._compilations.inc()
