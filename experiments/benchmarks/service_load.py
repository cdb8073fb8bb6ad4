# SPDX-License-Identifier: Apache-2.0
"""Load on the service: throughput, latency, and whether every request gets its own answer.

python -m experiments.benchmarks.service_load --workdir=runs/de

Clients on this machine send one sentence of the test set a request and wait for each reply. In
every round the service, `Translator` on the same sentences in batches, and CTranslate2 behind the
same routes take turns. One JSON object a program is printed, with medians over the rounds.

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
from absl import flags

from experiments.benchmarks.load_clients import Client, Reply, Server, metrics, send
from experiments.cli import checkpoint_flags
from experiments.cli.command_line import run
from experiments.cli.workdir_flag import WORKDIR
from experiments.data import registry, text_files
from transformer.config import Config

REQUESTS = flags.DEFINE_integer("requests", 2000, "Requests of a round.", lower_bound=1)
CLIENTS = flags.DEFINE_integer("clients", 32, "Concurrent clients.", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds.", lower_bound=1)
INPUT = flags.DEFINE_string("input", None, "Text file to translate; the test set by default.")
SECONDS = flags.DEFINE_float("seconds", None, "Send requests for this long, at --per_second.")
PER_SECOND = flags.DEFINE_float("per_second", 20.0, "Requests a second, with --seconds.")
TERMINATE = flags.DEFINE_boolean("terminate", False, "Send SIGTERM in the middle of a round.")
PEERS = flags.DEFINE_list(
    "peers", ["float32", "int8"], "Types of CTranslate2's matmuls to compare with."
)
SERVER_FLAGS = flags.DEFINE_list("server_flags", [], "Flags of the services, without '--'.")
_PEER = "experiments.benchmarks.programs.ctranslate2_service"


def main(config: Config) -> None:
    """Measure and print."""
    sentences = _sentences(config)
    options = [f"--{flag}" for flag in SERVER_FLAGS.value]
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Server("experiments.serve", WORKDIR.value, *options))
        if SECONDS.value:
            _soak(ours, sentences)
        elif TERMINATE.value:
            _terminate(ours, sentences)
        else:
            servers = {"this project": ours}
            for kind in PEERS.value:
                arguments = (WORKDIR.value, f"--compute_type={kind}", *options)
                server = stack.enter_context(Server(_PEER, *arguments))
                servers[f"CTranslate2 {kind}"] = server
            _compare(config, servers, sentences)


def _sentences(config: Config) -> list[str]:
    """As many sentences as requests; the file is repeated if it is shorter."""
    if INPUT.value:
        lines = [line for line in text_files.lines(INPUT.value, allow_empty=True) if line.strip()]
    else:
        lines = [source for source, _ in registry.sentence_pairs(config.data, "test")]
    return list(itertools.islice(itertools.cycle(lines), REQUESTS.value))


def _compare(config: Config, servers: dict[str, Server], sentences: list[str]) -> None:
    """Rounds of `translate` and of each service in turn."""
    translator = checkpoint_flags.translator(config)
    expected = {
        sentence: translation.text
        for sentence, translation in zip(sentences, translator(sentences), strict=True)
    }
    before = {name: metrics(server.address) for name, server in servers.items()}
    rates: dict[str, list[float]] = {name: [] for name in ("translate", *servers)}
    shares: dict[str, list[float]] = {name: [] for name in servers}
    cpu: dict[str, float] = dict.fromkeys(rates, 0.0)
    """CPU seconds of this process: of `Translator`, or of the clients of a service."""
    replies: dict[str, list[Reply]] = {name: [] for name in servers}
    for number in range(ROUNDS.value):
        with _timed("translate", len(sentences), rates, cpu):
            translator(sentences)
        for name in list(servers)[:: 1 if number % 2 else -1]:
            with _timed(name, len(sentences), rates, cpu):
                replies[name] += send(servers[name].address, sentences, CLIENTS.value)
            shares[name].append(rates[name][-1] / rates["translate"][-1])
    milliseconds = 1000 / (ROUNDS.value * len(sentences))
    result = {
        "program": "translate",
        **_spread("per_second", rates["translate"]),
        "cpu_ms": round(milliseconds * cpu["translate"], 3),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result))
    for name, server in servers.items():
        after = metrics(server.address)
        gains = {sample: value - before[name].get(sample, 0) for sample, value in after.items()}
        seconds = [reply.seconds for reply in replies[name]]
        p50, p99 = 1000 * np.quantile(seconds, (0.5, 0.99), method="inverted_cdf")
        result = {
            "program": name,
            "requests": len(replies[name]),
            "lost": sum(reply.status != 200 for reply in replies[name]),
            "unlike_translate": sum(r.text != expected[r.sentence] for r in replies[name]),
            "compilations": gains["transformer_compilations_total"],
            **_spread("per_second", rates[name]),
            **_spread("share_of_translate", shares[name]),
            # Of both cores, for each request: independent of other processes on the machine.
            "cpu_ms": round(milliseconds * gains["process_cpu_seconds_total"], 3),
            "client_cpu_ms": round(milliseconds * cpu[name], 3),
            "p50_ms": round(float(p50), 1),
            "p99_ms": round(float(p99), 1),
            "sentences_a_batch": round(
                gains["transformer_sentences_total"] / gains["transformer_batches_total"], 1
            ),
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


def _terminate(server: Server, sentences: Sequence[str]) -> None:
    """Stop the service in the middle; what it reports on standard error is its own count."""
    timer = threading.Timer(2.0, server.terminate)
    timer.start()
    replies = send(server.address, sentences * 100, CLIENTS.value)
    timer.join()
    counts = {str(status): sum(r.status == status for r in replies) for status in (200, 503, 0)}
    print(json.dumps({"program": "this project", "replies_by_status": counts}))


def _soak(server: Server, sentences: Sequence[str]) -> None:
    """A constant rate for a long time; one line of memory a minute."""
    end = time.monotonic() + SECONDS.value
    replies: list[Reply] = []

    def client(number: int) -> None:
        connection = Client(server.address)
        for moment, sentence in _schedule(sentences, number):
            time.sleep(max(moment - time.monotonic(), 0))
            if time.monotonic() >= end:
                break
            replies.append(
                dataclasses.replace(connection.translate(sentence), sentence="", text="")
            )
        connection.close()

    threads = [threading.Thread(target=client, args=(n,)) for n in range(CLIENTS.value)]
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


def _schedule(sentences: Sequence[str], client: int) -> Iterator[tuple[float, str]]:
    """Moments and sentences of one client; all clients together keep the rate."""
    interval = CLIENTS.value / PER_SECOND.value
    start = time.monotonic() + interval * client / CLIENTS.value
    for number in itertools.count():
        yield start + interval * number, sentences[(client + number * 7) % len(sentences)]


if __name__ == "__main__":
    run(main, config_from="workdir")
