# SPDX-License-Identifier: Apache-2.0
"""Load on the service: throughput, latency, and whether every request gets its own answer.

python -m experiments.benchmarks.service_load --workdir=runs/de

Clients on this machine send one sentence of the test set a request and wait for each reply. In
every round the service and `Translator` on the same sentences in batches take turns. One JSON
object a program is printed, with medians over the rounds.

--seconds=1800 --per_second=20 instead sends requests at a constant rate and prints the service's
memory every minute; --terminate stops it with SIGTERM under load and counts the replies.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.benchmarks.load_clients import Client, Reply, Server, metrics, send
from experiments.cli.command_line import run
from experiments.cli.weights import Weights
from experiments.data import registry, text_files


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model of the service, and its load."""

    requests: int = 2000
    """Requests of a round."""
    clients: int = 32
    """Concurrent clients."""
    rounds: int = 3
    """Rounds."""
    input: str | None = None
    """Text file to translate; the test set by default."""
    seconds: float | None = None
    """Send requests for this long, at --per_second."""
    per_second: float = 20.0
    """Requests a second, with --seconds."""
    terminate: bool = False
    """Send SIGTERM in the middle of a round."""
    server_flags: tuple[str, ...] = ()
    """Flags of the service, without '--'."""


def main(options: Options) -> None:
    """Measure and print."""
    sentences = _sentences(options)
    flags = [f"--{flag}" for flag in options.server_flags]
    with Server("experiments.serve", options.workdir, *flags) as server:
        if options.seconds:
            _soak(server, sentences, options)
        elif options.terminate:
            _terminate(server, sentences, options)
        else:
            _compare(server, sentences, options)


def _sentences(options: Options) -> list[str]:
    """As many sentences as requests; the file is repeated if it is shorter."""
    if options.input:
        every = text_files.lines(options.input, allow_empty=True)
        lines = [line for line in every if line.strip()]
    else:
        lines = [source for source, _ in registry.sentence_pairs(options.config.data, "test")]
    return list(itertools.islice(itertools.cycle(lines), options.requests))


def _compare(server: Server, sentences: list[str], options: Options) -> None:
    """Rounds of `translate` and of the service in turn."""
    translator = options.translator()
    translations = translator(sentences)
    expected = {sentence: each.text for sentence, each in zip(sentences, translations, strict=True)}
    before, replies, shares = metrics(server.address), [], []
    rates: dict[str, list[float]] = {"translate": [], "service": []}
    cpu: dict[str, float] = dict.fromkeys(rates, 0.0)
    """CPU seconds of this process: of `Translator`, or of the clients of the service."""
    for _ in range(options.rounds):
        with _timed("translate", len(sentences), rates, cpu):
            translator(sentences)
        with _timed("service", len(sentences), rates, cpu):
            replies += send(server.address, sentences, options.clients)
        shares.append(rates["service"][-1] / rates["translate"][-1])
    milliseconds = 1000 / (options.rounds * len(sentences))
    result = {
        "program": "translate",
        **_spread("per_second", rates["translate"]),
        "cpu_ms": round(milliseconds * cpu["translate"], 3),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result))
    after = metrics(server.address)
    gains = {sample: value - before.get(sample, 0) for sample, value in after.items()}
    seconds = [reply.seconds for reply in replies]
    p50, p99 = 1000 * np.quantile(seconds, (0.5, 0.99), method="inverted_cdf")
    batches = gains["transformer_sentences_total"] / gains["transformer_batches_total"]
    result = {
        "program": "service",
        "requests": len(replies),
        "lost": sum(reply.status != 200 for reply in replies),
        "unlike_translate": sum(reply.text != expected[reply.sentence] for reply in replies),
        "compilations": gains["transformer_compilations_total"],
        **_spread("per_second", rates["service"]),
        **_spread("share_of_translate", shares),
        # Of both cores, for each request: independent of other processes on the machine.
        "cpu_ms": round(milliseconds * gains["process_cpu_seconds_total"], 3),
        "client_cpu_ms": round(milliseconds * cpu["service"], 3),
        "p50_ms": round(float(p50), 1),
        "p99_ms": round(float(p99), 1),
        "sentences_a_batch": round(batches, 1),
        "resident_mib": round(after["process_resident_memory_bytes"] / 2**20),
    }
    print(json.dumps(result), flush=True)


@contextlib.contextmanager
def _timed(
    name: str, sentences: int, rates: dict[str, list[float]], cpu: dict[str, float]
) -> Iterator[None]:
    """Add the sentences per second and the CPU seconds of the block."""
    began, used = time.perf_counter(), time.process_time()
    yield
    rates[name].append(sentences / (time.perf_counter() - began))
    cpu[name] += time.process_time() - used


def _spread(name: str, values: Sequence[float]) -> dict[str, object]:
    """The median, and the quartiles."""
    digits = 1 if max(values) >= 10 else 3
    low, high = np.quantile(values, (0.25, 0.75))
    return {
        name: round(statistics.median(values), digits),
        f"{name}_quartiles": [round(float(low), digits), round(float(high), digits)],
    }


def _terminate(server: Server, sentences: Sequence[str], options: Options) -> None:
    """Stop the service in the middle; what it reports on standard error is its own count."""
    timer = threading.Timer(2.0, server.terminate)
    timer.start()
    replies = send(server.address, sentences * 100, options.clients)
    timer.join()
    counts = {str(status): sum(r.status == status for r in replies) for status in (200, 503, 0)}
    print(json.dumps({"program": "this project", "replies_by_status": counts}))


def _soak(server: Server, sentences: Sequence[str], options: Options) -> None:
    """A constant rate for a long time; one line of memory a minute."""
    end = time.monotonic() + options.seconds
    replies: list[Reply] = []

    def client(number: int) -> None:
        connection = Client(server.address)
        for moment, sentence in _schedule(sentences, number, options):
            time.sleep(max(moment - time.monotonic(), 0))
            if time.monotonic() >= end:
                break
            replies.append(
                dataclasses.replace(connection.translate(sentence), sentence="", text="")
            )
        connection.close()

    threads = [threading.Thread(target=client, args=(n,)) for n in range(options.clients)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    compiled = metrics(server.address)["transformer_compilations_total"]
    while time.monotonic() < end:
        now = metrics(server.address)
        line = {
            "minute": round((time.monotonic() - began) / 60, 1),
            "resident_mib": round(now["process_resident_memory_bytes"] / 2**20, 1),
            "requests": len(replies),
            "lost": sum(reply.status != 200 for reply in replies),
            "compilations": now["transformer_compilations_total"] - compiled,
            "open_files": now["process_open_fds"],
        }
        print(json.dumps(line), flush=True)
        time.sleep(min(60, max(end - time.monotonic(), 0.01)))
    for thread in threads:
        thread.join()


def _schedule(
    sentences: Sequence[str], client: int, options: Options
) -> Iterator[tuple[float, str]]:
    """Moments and sentences of one client; all clients together keep the rate."""
    interval = options.clients / options.per_second
    start = time.monotonic() + interval * client / options.clients
    for number in itertools.count():
        yield start + interval * number, sentences[(client + number * 7) % len(sentences)]


if __name__ == "__main__":
    run(main, "workdir", Options)
