# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: uvicorn on a socket that is bound before the model is loaded."""

import logging
import signal
import socket
import ssl

import uvicorn
from starlette.types import ASGIApp

from transformer.errors import InputError


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
      InputError: if the address is taken, not allowed or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"--host={host} --port={port} cannot be listened on: {error}; choose another port or "
            "host"
        ) from None


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
    certificate: str | None = None,
    private_key: str | None = None,
    logs_requests: bool = False,
) -> uvicorn.Server:
    """Build the server of an application.

    Args:
      app: the application.
      grace: seconds for accepted requests after a signal.
      certificate: PEM file for TLS, or None.
      private_key: PEM file for TLS, or None.
      logs_requests: whether addresses, paths and statuses are logged; texts never are.
    """
    config = uvicorn.Config(
        app,
        http="httptools",
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
    return uvicorn.Server(config)


def run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, then finish what was accepted."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # uvicorn knows the other two.
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    server.run(sockets=[listener])
