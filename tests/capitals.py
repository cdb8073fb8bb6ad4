# SPDX-License-Identifier: Apache-2.0
"""A service whose model writes capitals: everything but JAX is real, the sockets too."""

import concurrent.futures
import contextlib
import re
import threading
import types

import httpx

from experiments.serving import http_server
from experiments.serving.engine import Engine
from experiments.serving.languages import Languages
from experiments.serving.routes import Limits, Service
from experiments.serving.service_metrics import ServiceMetrics
from transformer.config import Config, DataConfig, DecodeConfig
from transformer.translator import Translation

CONFIG = Config(
    decode=DecodeConfig(beams=3, batch_size=16),
    data=DataConfig(max_length=20, bucket_lengths=(5, 20), tokens_per_batch=160),
)


class _Words:
    """A tokenizer of words, whose ids are their lengths."""

    def encode(self, sentences):
        return [[*map(len, sentence.split()), 2] for sentence in sentences]


class Capitals:
    """The part of a `Translator` that an engine uses; may be held back."""

    config = CONFIG
    model = None
    search = types.SimpleNamespace(
        threads=1, lengths=CONFIG.data.bucket_lengths, padded_length=CONFIG.data.bucket
    )
    vocabularies = types.SimpleNamespace(source=_Words(), target=_Words())

    def __init__(self):
        self.may_go = threading.Event()
        self.may_go.set()
        self.entered = threading.Event()
        self.sentences = []

    def batch_rows(self):
        return [1, 8, 16]

    def nbest(self, sentences, num_results, first_line):
        self.entered.set()
        assert self.may_go.wait(60)
        self.sentences += sentences
        if any("explode" in sentence for sentence in sentences):
            raise ValueError("as asked")
        return [
            [
                Translation(f"{s.upper()}{'!' * n}", -0.5 - n, -1.0, (4, 2))
                for n in range(num_results)
            ]
            for s in sentences
        ]

    def hold(self):
        self.may_go.clear()
        self.entered.clear()


def reversed_attention(source, target):
    """A reply of ``/attention`` in which word t of the target reads mostly word -t of the source.

    There are two layers, of which the first reads the other way round.
    """
    spans = [
        [[match.start(), match.end()] for match in re.finditer(r"\w+", text)]
        for text in (source, target)
    ]
    rows, columns = len(spans[1]), len(spans[0]) + 1
    weights = [[0.1 / (columns - 1)] * columns for _ in range(rows)]
    for row in range(rows):
        weights[row][(columns - 2 - row) % columns] = 0.9
    return {"source": spans[0], "target": spans[1], "weights": [weights[::-1], weights]}


class Running:
    """A service in threads of this process, and clients for it."""

    def __init__(
        self,
        limits=None,
        *,
        attention=False,
        ready=True,
        capacity=64,
        certificate=(None, None, True),
        **options,
    ):
        self.translator = Capitals()
        self.metrics = ServiceMetrics()
        self.engine = Engine(self.translator, capacity=capacity, observe=self.metrics.record_batch)
        if attention:
            self.engine.shows_attention = True
            self.engine.attention = lambda *pair: finished(reversed_attention(*pair))
        self.metrics.watch_queue(lambda: self.engine.batcher.waiting)
        if ready:
            self.engine.ready.set()
        languages = Languages("en", ("de",))
        service = Service(self.engine, languages, self.metrics, limits or Limits(), **options)
        self.listener = http_server.listen("127.0.0.1", 0)
        self.address = self.listener.getsockname()
        *files, trusted = certificate
        self.server = http_server.build(
            service.app, grace=20, certificate=files[0], private_key=files[1]
        )
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True
        )
        self.thread.start()
        scheme = "https" if files[0] else "http"
        self.url = f"{scheme}://127.0.0.1:{self.address[1]}"
        self.client = httpx.Client(base_url=self.url, timeout=60, verify=trusted)

    def stop(self):
        """Begin the shutdown, as SIGTERM does."""
        self.server.should_exit = True

    def close(self):
        self.stop()
        self.translator.may_go.set()
        self.client.close()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.listener.close()


def finished(result):
    """A future with this result."""
    future = concurrent.futures.Future()
    future.set_result(result)
    return future


@contextlib.contextmanager
def running(*arguments, **options):
    """A service, until the end of the block."""
    service = Running(*arguments, **options)
    try:
        yield service
    finally:
        service.close()
