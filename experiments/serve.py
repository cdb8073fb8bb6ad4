# SPDX-License-Identifier: Apache-2.0
"""Serve translations over HTTP, with a page for people.

transformer serve --workdir=runs/de

The page is at http://127.0.0.1:8080. POST /translate takes the requests of LibreTranslate, POST
/v2/translate those of DeepL. GET /languages, /health, /ready and /metrics (Prometheus) describe
the service. Requests of all clients share batches; /ready answers 200 when every program is
compiled. SIGTERM and SIGINT stop the service after every accepted request is answered.

When it is ready, one JSON object with the address is printed. See docs/serving.md.
"""

import dataclasses
import importlib.util
import json
import logging
import math
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from experiments.cli import command_line
from experiments.cli.weights import Weights
from experiments.training import allocator
from transformer.errors import InputError

if TYPE_CHECKING:
    import uvicorn

    from experiments.serving.engine import Engine
    from experiments.serving.languages import Languages

SWITCH_SECONDS = 5e-4
"""A tenth of Python's default, during which the cores that compute would be idle."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PACKAGES = ("httptools", "prometheus_client", "starlette", "uvicorn")


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, the address, and the limits."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 makes the service public."""
    port: int = 8080
    """Port to listen on; 0 for any free one."""
    window_ms: float = 5.0
    """Milliseconds that a sentence waits for others, to share a batch with them."""
    queue: int = 1024
    """Sentences that may wait; further requests get status 503 and Retry-After."""
    timeout: float = 30.0
    """Seconds after which a request gets status 504, and its sentences are dropped."""
    max_bytes: int = 2**17
    """Largest body of a request."""
    max_lines: int = 256
    """Most lines of text in a request."""
    token_file: str | None = None
    """File whose first line every request must carry as 'Authorization: Bearer TOKEN'."""
    certificate: str | None = None
    """PEM file of the certificate, for HTTPS."""
    private_key: str | None = None
    """PEM file of the private key, for HTTPS."""
    source_language: str | None = None
    """Code such as en; inferred from the names of the data by default."""
    target_language: str | None = None
    """Code such as de; inferred from the names of the data by default."""
    log_requests: bool = False
    """Log address, path and status."""
    log_text: bool = False
    """Log texts and their translations."""


def run(options: Options) -> None:
    """Listen, load the model, warm it up, and serve it until a signal.

    Raises:
      InputError: for a missing package, a model without a source, or an invalid option.
    """
    check(options)
    from experiments.serving import http_server
    from experiments.serving.engine import Engine
    from experiments.serving.languages import Languages, target_codes
    from experiments.serving.routes import Limits, Service
    from experiments.serving.service_metrics import ServiceMetrics

    token = _read_token(options.token_file)
    http_server.check_certificate(options.certificate, options.private_key)
    logging.getLogger("experiments.serving").setLevel(logging.INFO)
    with http_server.listen(options.host, options.port) as listener, ServiceMetrics() as metrics:
        if options.host not in _LOOPBACK and token is None:
            _report(
                f"warning: everyone who reaches {options.host} can use the service; give "
                "--token_file"
            )
        # The threads that search must not wait long for the interpreter lock.
        sys.setswitchinterval(SWITCH_SECONDS)
        engine = Engine(
            options.translator(),
            window=options.window_ms / 1000,
            capacity=options.queue,
            observe=metrics.record_batch,
        )
        metrics.watch_queue(lambda: engine.batcher.waiting)
        languages = Languages.of(
            options.config,
            options.source_language,
            options.target_language,
            target_codes(engine.translator.vocabularies),
        )
        service = Service(
            engine,
            languages,
            metrics,
            Limits(options.max_bytes, options.max_lines, options.timeout),
            title=_title(languages, options),
            token=token,
            logs_text=options.log_text,
        )
        server = http_server.build(
            service.app,
            grace=options.timeout + 5,
            certificate=options.certificate,
            private_key=options.private_key,
            logs_requests=options.log_requests,
        )
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        url = f"http{'s' if options.certificate else ''}://{host}:{port}"
        failures: list[BaseException] = []
        arguments = (engine, url, server, failures)
        # Requests are answered meanwhile, with status 503.
        threading.Thread(target=_warm_up, args=arguments, daemon=True).start()
        try:
            http_server.run(server, listener)
        finally:
            accepted, answered = (
                int(metrics.value(f"transformer_{name}_requests_total"))
                for name in ("accepted", "answered")
            )
            _report(f"accepted {accepted} requests, answered {answered}")
        for failure in failures:
            raise failure


def check(options: Options) -> None:
    """Check the options, the installed packages and the kind of model.

    Raises:
      InputError: for a missing package, a model without a source, or an invalid option.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"the service needs {', '.join(missing)}, not installed here; run "
            "pip install -e '.[serve]'"
        )
    model = options.config.model
    if not model.reads_source:
        raise InputError(f"model.family {model.family!r} reads no source to translate")
    if not 0 <= options.port <= 65535:
        raise InputError(f"--port={options.port} is not a port; give 0 to 65535")
    for name in ("queue", "max_bytes", "max_lines", "timeout"):
        if not 0 < getattr(options, name) < math.inf:
            raise InputError(f"--{name}={getattr(options, name)} is not positive and finite")
    if not 0 <= options.window_ms < 1000 * options.timeout:
        raise InputError(
            f"--window_ms={options.window_ms} is not between 0, which does not wait, and "
            f"--timeout={options.timeout} seconds"
        )
    for name in ("token_file", "certificate", "private_key"):
        path = getattr(options, name)
        if path and os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
            raise InputError(f"--{name}={path} is not a regular file")
    if options.max_lines > options.queue:
        raise InputError(
            f"--max_lines={options.max_lines}, but only --queue={options.queue} sentences may wait"
        )


def _warm_up(
    engine: "Engine", url: str, server: "uvicorn.Server", failures: list[BaseException]
) -> None:
    """Compile every program and print the address; a failure stops the server."""
    _report(f"warming up at {url}")
    began = time.monotonic()
    try:
        engine.warm_up()
    except BaseException as error:  # noqa: BLE001 - raised by the main thread
        failures.append(error)
        server.should_exit = True
        return
    allocator.return_unused_pages()
    seconds = round(time.monotonic() - began, 2)
    print(json.dumps({"url": url, "warm_up_seconds": seconds}), flush=True)


def _title(languages: "Languages", options: Options) -> str:
    """Heading of the page."""
    if languages.are_known and not languages.marked:
        return f"{languages.name(languages.source)} to {languages.name(languages.targets[0])}"
    return f"Translate with {options.workdir}"


def _read_token(path: str | None) -> str | None:
    """The token of --token_file, which is not on the command line because others can read that."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            token = file.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--token_file={path} cannot be read: {error}") from None
    if not token or not token.isascii() or len(token.split()) != 1:
        raise InputError(f"--token_file={path}: the first line is not one word of ASCII characters")
    return token


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    command_line.run(run, "workdir", Options)
