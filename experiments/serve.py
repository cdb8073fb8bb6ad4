# SPDX-License-Identifier: Apache-2.0
"""Serve translations over HTTP, with a page for people.

python -m experiments.serve --workdir=runs/de

The page is at http://127.0.0.1:8080. POST /translate takes the requests of LibreTranslate, POST
/v2/translate those of DeepL. GET /languages, /health, /ready and /metrics (Prometheus) describe
the service. Requests of all clients share batches; /ready answers 200 when every program is
compiled. SIGTERM and SIGINT stop the service after every accepted request is answered.

When it is ready, one JSON object with the address is printed. See docs/serving.md.
"""

import importlib.util
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags

from experiments.cli import checkpoint_flags
from experiments.cli.command_line import run
from experiments.cli.workdir_flag import WORKDIR
from experiments.training import allocator
from transformer.config import Config
from transformer.errors import InputError

if TYPE_CHECKING:
    from experiments.serving.engine import Engine
    from experiments.serving.http_server import Server
    from experiments.serving.languages import Languages

HOST = flags.DEFINE_string(
    "host", "127.0.0.1", "Address to listen on; 0.0.0.0 makes the service public."
)
PORT = flags.DEFINE_integer(
    "port", 8080, "Port to listen on; 0 for any free one.", lower_bound=0, upper_bound=65535
)
WINDOW = flags.DEFINE_float(
    "window_ms", 5.0, "Milliseconds that a sentence waits for others, to share a batch with them."
)
QUEUE = flags.DEFINE_integer(
    "queue", 1024, "Sentences that may wait; further requests get status 503 and Retry-After."
)
TIMEOUT = flags.DEFINE_float(
    "timeout", 30.0, "Seconds after which a request gets status 504, and its sentences are dropped."
)
MAX_BYTES = flags.DEFINE_integer("max_bytes", 2**17, "Largest body of a request.")
MAX_LINES = flags.DEFINE_integer("max_lines", 256, "Most lines of text in a request.")
TOKEN_FILE = flags.DEFINE_string(
    "token_file",
    None,
    "File whose first line every request must carry as 'Authorization: Bearer TOKEN'.",
)
CERTIFICATE = flags.DEFINE_string("certificate", None, "PEM file of the certificate, for HTTPS.")
PRIVATE_KEY = flags.DEFINE_string("private_key", None, "PEM file of the private key, for HTTPS.")
SOURCE_LANGUAGE = flags.DEFINE_string(
    "source_language", None, "Code such as en; inferred from the names of the data by default."
)
TARGET_LANGUAGE = flags.DEFINE_string(
    "target_language", None, "Code such as de; inferred from the names of the data by default."
)
LOG_REQUESTS = flags.DEFINE_boolean("log_requests", False, "Log address, path and status.")
LOG_TEXT = flags.DEFINE_boolean("log_text", False, "Log texts and their translations.")
SWITCH_SECONDS = 5e-4
"""Python's default is ten times as long, during which the cores that compute would be idle."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PACKAGES = ("httptools", "prometheus_client", "starlette", "uvicorn")


def main(config: Config) -> None:
    """Load the model and serve it."""
    check_flags(config)
    serve(config, lambda **options: _engine(config, **options))


def check_flags(config: Config) -> None:
    """Check the flags, the installed packages and the kind of model.

    Raises:
      InputError: for a missing package, a model without a source, or an invalid flag.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"the service needs {', '.join(missing)}, not installed here; run "
            "pip install -e '.[serve]'"
        )
    if not config.model.reads_source:
        raise InputError(f"model.family {config.model.family!r} reads no source to translate")
    for flag in (QUEUE, MAX_BYTES, MAX_LINES, TIMEOUT):
        if flag.value <= 0:
            raise InputError(f"--{flag.name}={flag.value} is not positive")
    if WINDOW.value < 0:
        raise InputError(f"--window_ms={WINDOW.value} is negative; 0 does not wait")
    if MAX_LINES.value > QUEUE.value:
        raise InputError(
            f"--max_lines={MAX_LINES.value}, but only --queue={QUEUE.value} sentences may wait"
        )


def serve(config: Config, make_engine: Callable[..., "Engine"]) -> None:
    """Listen, load, warm up, and serve until a signal.

    Args:
      config: of the workdir.
      make_engine: called with the options of `Engine` that the flags set.
    """
    from experiments.serving import http_server
    from experiments.serving.languages import Languages, target_codes
    from experiments.serving.routes import Limits, Service
    from experiments.serving.service_metrics import ServiceMetrics

    token = _read_token()
    http_server.check_certificate(CERTIFICATE.value, PRIVATE_KEY.value)
    logging.getLogger("experiments.serving").setLevel(logging.INFO)
    with http_server.listen(HOST.value, PORT.value) as listener, ServiceMetrics() as metrics:
        if HOST.value not in _LOOPBACK and token is None:
            _report(
                f"warning: everyone who reaches {HOST.value} can use the service; give --token_file"
            )
        # The threads that search must not wait long for the interpreter lock.
        sys.setswitchinterval(SWITCH_SECONDS)
        engine = make_engine(
            window=WINDOW.value / 1000, capacity=QUEUE.value, observe=metrics.record_batch
        )
        metrics.watch_queue(lambda: engine.batcher.waiting)
        codes = target_codes(engine.translator.vocabularies)
        languages = Languages.of(config, SOURCE_LANGUAGE.value, TARGET_LANGUAGE.value, codes)
        service = Service(
            engine,
            languages,
            metrics,
            Limits(MAX_BYTES.value, MAX_LINES.value, TIMEOUT.value),
            title=_title(languages),
            token=token,
            logs_text=LOG_TEXT.value,
        )
        address, port = listener.getsockname()[:2]
        address = f"[{address}]" if ":" in address else address
        url = f"http{'s' if CERTIFICATE.value else ''}://{address}:{port}"
        failures: list[BaseException] = []
        server = http_server.build(
            service.app,
            grace=TIMEOUT.value + 5,
            certificate=CERTIFICATE.value,
            private_key=PRIVATE_KEY.value,
            logs_requests=LOG_REQUESTS.value,
            on_start=lambda: threading.Thread(
                target=_warm_up, args=(engine, url, server, failures), daemon=True
            ).start(),
        )
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


def _engine(config: Config, **options: Any) -> "Engine":
    from experiments.serving.engine import Engine

    return Engine(checkpoint_flags.translator(config), **options)


def _warm_up(engine: "Engine", url: str, server: "Server", failures: list[BaseException]) -> None:
    """Compile every program and print the address; a failure stops the server."""
    from experiments.serving.batcher import BatcherClosed

    _report(f"warming up at {url}")
    began = time.monotonic()
    try:
        engine.warm_up()
        allocator.return_unused_pages()
    except BatcherClosed:  # stopped meanwhile
        return
    except BaseException as error:  # noqa: BLE001 - raised by the main thread
        failures.append(error)
        server.should_exit = True
        return
    seconds = round(time.monotonic() - began, 2)
    print(json.dumps({"url": url, "warm_up_seconds": seconds}), flush=True)


def _title(languages: "Languages") -> str:
    """Heading of the page."""
    if languages.are_known and not languages.marked:
        return f"{languages.name(languages.source)} to {languages.name(languages.target)}"
    return f"Translate with {WORKDIR.value}"


def _read_token() -> str | None:
    """The token of --token_file, which is not on the command line because others can read that."""
    path = TOKEN_FILE.value
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
    run(main, config_from="workdir")
