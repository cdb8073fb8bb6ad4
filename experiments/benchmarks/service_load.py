# SPDX-License-Identifier: Apache-2.0
"""Load on the service: throughput, latency, and whether every request gets its own answer.

python -m experiments.benchmarks.service_load --workdir=runs/de

Clients on this machine send one sentence of the test set per request and wait for each reply. In
every round the service and `Translator` on the same sentences in batches take turns. One JSON
object per program is printed, with medians over the rounds.

--seconds=1800 --per_second=20 instead sends requests at a constant rate and prints the service's
memory every minute.
"""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.benchmarks.comparison import spread
from experiments.cli import command_line
from experiments.cli.weights import Weights
from experiments.data import registry, text_files
from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model of the service, and its load."""

    requests: int = 2000
    """Requests per round."""
    clients: int = 32
    """Concurrent clients."""
    rounds: int = 3
    """Number of rounds."""
    input: str | None = None
    """Text file to translate; the test set by default."""
    seconds: float | None = None
    """Send requests for this time, at --per_second."""
    per_second: float = 20.0
    """Requests per second, with --seconds."""


def run(options: Options) -> None:
    """Measure and print."""
    sentences = _sentences(options)
    with _service(f"--workdir={options.workdir}") as address:
        if options.seconds:
            _soak(address, sentences, options)
        else:
            _compare(address, sentences, options)


def _sentences(options: Options) -> list[str]:
    """One sentence per request; a shorter file is repeated."""
    if options.input:
        every = text_files.lines(options.input, allow_empty=True)
        lines = [line for line in every if line.strip()]
    else:
        lines = [source for source, _ in registry.sentence_pairs(options.config.data, "test")]
    return list(itertools.islice(itertools.cycle(lines), options.requests))


@contextlib.contextmanager
def _service(*flags: str) -> Iterator[str]:
    """Start the service in a process, and yield its address when it is ready."""
    command = [sys.executable, "-m", "experiments.serve", "--port=0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            if not line:
                raise InputError(f"the service ended with status {process.wait()}; see above")
            yield address_of(line)
        finally:
            process.terminate()


def address_of(line: str) -> str:
    """Return host and port from the line that the service prints when it is ready."""
    return urllib.parse.urlsplit(json.loads(line)["url"]).netloc


def metrics(address: str) -> dict[str, float]:
    """Return the samples of the service's ``/metrics`` by name, with their labels."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


@dataclasses.dataclass(frozen=True)
class Reply:
    """The reply to a client for one sentence."""

    sentence: str
    status: int
    """0 if the connection ended without a reply."""
    text: str
    seconds: float


class Client:
    """A connection that is kept from one request to the next.

    HTTP is written and parsed here, because Python's `http.client` costs more than the service, on
    the cores that both share.
    """

    def __init__(self, address: str):
        """Connect at the first request to `address`, a host and a port."""
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._socket: socket.socket | None = None

    def translate(self, sentence: str) -> Reply:
        """Translate one sentence."""
        began = time.perf_counter()
        try:
            status, reply = self._post(json.dumps({"q": sentence, "source": "auto"}).encode())
            text = json.loads(reply).get("translatedText", "")
        except OSError:
            self.close()
            status, text = 0, ""
        return Reply(sentence, status, text, time.perf_counter() - began)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._replies.close()
            self._socket.close()
            self._socket = None

    def _post(self, body: bytes) -> tuple[int, bytes]:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=120)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._replies = self._socket.makefile("rb")
        self._socket.sendall(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        head = list(iter(self._replies.readline, b"\r\n"))
        if b"" in head or not head:
            raise ConnectionError("the service closed the connection")
        fields = dict(line.lower().rstrip().split(b": ", 1) for line in head[1:])
        reply = self._replies.read(int(fields[b"content-length"]))
        if fields.get(b"connection") == b"close":
            self.close()
        return int(head[0].split()[1]), reply


def send(address: str, sentences: Sequence[str], clients: int) -> list[Reply]:
    """Translate each sentence once by clients that keep their connections."""
    following = iter(sentences)  # each sentence is taken by one thread

    def client(_: int) -> list[Reply]:
        connection = Client(address)
        with contextlib.closing(connection):
            return [connection.translate(sentence) for sentence in following]

    with concurrent.futures.ThreadPoolExecutor(clients) as threads:
        return list(itertools.chain.from_iterable(threads.map(client, range(clients))))


def _compare(address: str, sentences: list[str], options: Options) -> None:
    """Rounds of `Translator` and of the service in turn."""
    translator = options.translator()
    translations = translator(sentences)
    expected = {sentence: each.text for sentence, each in zip(sentences, translations, strict=True)}
    before, replies = metrics(address), []
    rates: dict[str, list[float]] = {"translate": [], "service": []}
    cpu = dict.fromkeys(rates, 0.0)  # CPU seconds of this process: the translator or the clients
    for _ in range(options.rounds):
        for name in rates:
            began, used = time.perf_counter(), time.process_time()
            if name == "translate":
                translator(sentences)
            else:
                replies += send(address, sentences, options.clients)
            rates[name].append(len(sentences) / (time.perf_counter() - began))
            cpu[name] += time.process_time() - used
    milliseconds = 1000 / (options.rounds * len(sentences))
    result = {
        "program": "translate",
        **spread("per_second", rates["translate"]),
        "cpu_ms": round(milliseconds * cpu["translate"], 3),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result))
    after = metrics(address)
    gains = {sample: value - before.get(sample, 0) for sample, value in after.items()}
    seconds = [reply.seconds for reply in replies]
    p50, p99 = 1000 * np.quantile(seconds, (0.5, 0.99), method="inverted_cdf")
    batches = gains["transformer_sentences_total"] / gains["transformer_batches_total"]
    pairs = zip(rates["service"], rates["translate"], strict=True)
    result = {
        "program": "service",
        "requests": len(replies),
        "lost": sum(reply.status != 200 for reply in replies),
        "unlike_translate": sum(reply.text != expected[reply.sentence] for reply in replies),
        "compilations": gains["transformer_compilations_total"],
        **spread("per_second", rates["service"]),
        **spread("share_of_translate", [ours / alone for ours, alone in pairs]),
        # Of all cores, for each request: independent of other processes on the machine.
        "cpu_ms": round(milliseconds * gains["process_cpu_seconds_total"], 3),
        "client_cpu_ms": round(milliseconds * cpu["service"], 3),
        "p50_ms": round(float(p50), 1),
        "p99_ms": round(float(p99), 1),
        "sentences_a_batch": round(batches, 1),
        "resident_mib": round(after["process_resident_memory_bytes"] / 2**20),
    }
    print(json.dumps(result), flush=True)


def _soak(address: str, sentences: Sequence[str], options: Options) -> None:
    """Send requests at a constant rate; print the service's memory every minute."""
    began, before, statuses = time.monotonic(), metrics(address), []

    def client(number: int) -> None:
        connection = Client(address)
        moments = np.arange(number, options.seconds * options.per_second, options.clients)
        for request, moment in enumerate(began + moments / options.per_second):
            time.sleep(max(moment - time.monotonic(), 0))
            sentence = sentences[(number + request * 7) % len(sentences)]
            statuses.append(connection.translate(sentence).status)
            connection.close()  # else the service closes it while it is idle

    with concurrent.futures.ThreadPoolExecutor(options.clients) as threads:
        for number in range(options.clients):
            threads.submit(client, number)
        while (elapsed := time.monotonic() - began) < options.seconds:
            now = metrics(address)
            compiled = "transformer_compilations_total"
            line = {
                "minute": round(elapsed / 60, 1),
                "resident_mib": round(now["process_resident_memory_bytes"] / 2**20, 1),
                "requests": len(statuses),
                "lost": sum(status != 200 for status in statuses),
                "compilations": now[compiled] - before[compiled],
                "open_files": now["process_open_fds"],
            }
            print(json.dumps(line), flush=True)
            time.sleep(min(60, max(options.seconds - elapsed, 0.01)))


if __name__ == "__main__":
    command_line.run(run, "workdir", Options)
