# SPDX-License-Identifier: Apache-2.0
"""Clients that load a service, and a process of the service to load."""

import contextlib
import dataclasses
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Sequence
from typing import Self

from transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a client received for one sentence."""

    sentence: str
    status: int
    """0 if the connection ended without a reply."""
    text: str
    seconds: float


class Server:
    """A service in a process; a context manager."""

    def __init__(self, module: str, workdir: str, *arguments: str):
        """Start it and wait until it is ready.

        Raises:
          InputError: if it ends before that; its messages are on standard error.
        """
        command = [sys.executable, "-m", module, f"--workdir={workdir}", "--port=0", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline()
        if not line:
            raise InputError(f"{module} ended with status {self._process.wait()}")
        self.address = address_of(line)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.terminate()
        self._process.wait(120)
        self._process.stdout.close()


def address_of(line: str) -> str:
    """Host and port from the line that a service prints when it is ready."""
    return urllib.parse.urlsplit(json.loads(line)["url"]).netloc


def metrics(address: str) -> dict[str, float]:
    """The samples of a service's ``/metrics`` by name, with their labels."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


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
            status, body = self._request(json.dumps({"q": sentence, "source": "auto"}).encode())
            text = json.loads(body).get("translatedText", "")
        except OSError:
            self.close()
            status, text = 0, ""
        return Reply(sentence, status, text, time.perf_counter() - began)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _request(self, body: bytes) -> tuple[int, bytes]:
        """Post on the kept connection; on a new one if the service has closed that meanwhile."""
        kept = self._socket is not None
        try:
            return self._post(body)
        except ConnectionError:
            self.close()
            if not kept:
                raise
        return self._post(body)

    def _post(self, body: bytes) -> tuple[int, bytes]:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=120)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        head, separator, reply = b"", b"", b""
        while not separator:
            head, separator, reply = (head + self._receive()).partition(b"\r\n\r\n")
        fields = head.lower().split(b"\r\n")
        length = next(int(f[15:]) for f in fields if f.startswith(b"content-length:"))
        while len(reply) < length:
            reply += self._receive()
        if b"connection: close" in fields:
            self.close()
        return int(fields[0].split()[1]), reply

    def _receive(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the service closed the connection")
        return data


def send(address: str, sentences: Sequence[str], clients: int) -> list[Reply]:
    """Translate each sentence once by clients that keep their connections."""
    following = iter(sentences)
    lock, replies = threading.Lock(), []

    def run() -> None:
        client = Client(address)
        while True:
            with lock:
                sentence = next(following, None)
            if sentence is None:
                break
            replies.append(client.translate(sentence))
        client.close()

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies
