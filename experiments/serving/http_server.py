# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: uvicorn with a time limit for request headers, and errors in JSON."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
import ssl
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from transformer.errors import InputError

HEADER_SECONDS = 10.0
"""Time limit for the headers of the first request, and of a later one once it has begun."""
_LARGEST_HEADERS = 2**14
_BODY_HEADERS = (b"content-length", b"transfer-encoding")


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 with limits of the headers' time and size, and errors in JSON."""

    _header_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _in_headers = False
    """Whether a request has begun whose headers are incomplete."""
    _refusal: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the timer of the first request."""
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Keep the timer running while headers are incomplete."""
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > _LARGEST_HEADERS and not self.transport.is_closing():
                self.send_400_response(f"The headers have more than {_LARGEST_HEADERS} bytes.")
        if self._in_headers or self.cycle is None or self.cycle.response_complete:
            self._expect_headers()

    def on_message_begin(self) -> None:
        """Begin to count the bytes of the headers."""
        super().on_message_begin()
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Stop the timer, and ignore the offer of another protocol.

        The parser ends at such an offer: it reads no body, and no request after this one.
        """
        self._in_headers = False
        self._stop_timer()
        offers = self.parser.should_upgrade()
        if offers and any(name in _BODY_HEADERS for name, _ in self.headers):
            self._refusal = "A request with a body cannot upgrade HTTP; leave out Upgrade."
            raise ValueError(self._refusal)  # the parser then calls `send_400_response`
        super().on_headers_complete()
        self.cycle.keep_alive = self.cycle.keep_alive and not offers

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Leave the wait for the next request to uvicorn's keep-alive timeout."""
        self._stop_timer()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP."""
        body = json.dumps({"error": self._refusal or msg}).encode()
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()

    def _expect_headers(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(
                HEADER_SECONDS, self.timeout_keep_alive_handler
            )

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class Server(uvicorn.Server):
    """Uvicorn's server, which calls a function when it listens."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]):
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if not self.should_exit:
            self._on_start()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
      InputError: if the address is taken, not allowed or not one of this machine.
    """
    with contextlib.ExitStack() as unless_bound:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = unless_bound.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise InputError(
                f"--host={host} --port={port} cannot be listened on: {error.strerror or error}; "
                "choose another port or host"
            ) from None
        unless_bound.pop_all()
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def check_certificate(certificate: str | None, private_key: str | None) -> None:
    """Require a pair of files that TLS can use.

    Raises:
      InputError: if one is missing, or they do not belong together.
    """
    if (certificate is None) != (private_key is None):
        raise InputError("TLS needs both --certificate=FILE and --private_key=FILE")
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key)
    except OSError as error:  # ssl.SSLError is one
        raise InputError(
            f"--certificate={certificate} and --private_key={private_key} cannot be used: "
            f"{error.strerror or error}; give two PEM files that belong together"
        ) from None


def build(
    app: ASGIApp,
    *,
    grace: float,
    certificate: str | None,
    private_key: str | None,
    logs_requests: bool,
    on_start: Callable[[], None],
) -> Server:
    """The server of an application.

    Args:
      app: to run.
      grace: seconds for accepted requests after SIGTERM or SIGINT.
      certificate: PEM file for TLS, or None.
      private_key: PEM file for TLS, or None.
      logs_requests: whether addresses, paths and statuses are logged; never texts.
      on_start: called when it listens.
    """
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.INFO if logs_requests else logging.ERROR,
        access_log=logs_requests,
        server_header=False,
        timeout_graceful_shutdown=grace,
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
    )
    return Server(config, on_start)


def run(server: Server, listener: socket.socket) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP (treated as SIGTERM), then finish what was accepted."""
    former = signal.getsignal(signal.SIGHUP)
    if former is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _, frame: server.handle_exit(signal.SIGTERM, frame))
    try:
        server.run(sockets=[listener])
    finally:
        signal.signal(signal.SIGHUP, former)
