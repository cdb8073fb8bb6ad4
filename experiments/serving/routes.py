# SPDX-License-Identifier: Apache-2.0
"""The HTTP routes: LibreTranslate's, DeepL's, the page, health checks and metrics.

Every error is JSON. A request waits for the batching core without a thread. Its sentences leave the
queue when its client disconnects or its time is over.
"""

import asyncio
import contextlib
import dataclasses
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from experiments.serving import request_formats, translation_page
from experiments.serving.batcher import BatcherClosed, QueueFull
from experiments.serving.engine import Engine
from experiments.serving.languages import Languages
from experiments.serving.request_formats import RequestError, TranslationRequest
from experiments.serving.service_metrics import ServiceMetrics
from transformer.errors import InputError

logger = logging.getLogger(__name__)

_DRAINED_BYTES = 2**24
"""Bytes of a body that is too large that are read at most, so that the client gets the reply."""
_CLIENT_CLOSED = 499
"""Status in the metrics of a request whose client disconnected."""
_RETRY_SECONDS = "5"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_PAGE_HEADERS = _HEADERS | {
    # A policy in a page cannot contain these directives; the page has the others.
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    body_bytes: int = 2**17
    lines: int = 256
    """Number of lines in all texts; blank lines do not count."""
    seconds: float = 30.0
    """Time from the first byte of the body to the reply."""
    body_seconds: float = 10.0
    """Time for the client to send the body."""


class Service:
    """The routes of one engine, as a Starlette application in `app`."""

    def __init__(
        self,
        engine: Engine,
        languages: Languages,
        metrics: ServiceMetrics,
        limits: Limits = Limits(),
        *,
        title: str = "Translate",
        token: str | None = None,
        logs_text: bool = False,
    ):
        """Create the application.

        Args:
          engine: warmed up by the caller; the routes refuse work until it is. It is closed when the
            server has sent its last reply.
          languages: languages of the model.
          metrics: updated by every request.
          limits: limits of one request.
          title: title of the page.
          token: required by every route except for the page, /health and /ready.
          logs_text: whether texts and translations are logged.
        """
        self.engine, self.languages, self.metrics, self.limits = engine, languages, metrics, limits
        self._token, self._logs_text = token, logs_text
        self._page = translation_page.build(
            title,
            languages,
            alternatives=min(engine.most_results - 1, translation_page.MOST_ALTERNATIVES),
            attention=engine.shows_attention,
        )
        handlers = {
            ("GET", "/"): self.page,
            ("POST", "/translate"): self.translate,
            ("POST", "/v2/translate"): self.translate_deepl,
            ("POST", "/attention"): self.attention,
            ("GET", "/languages"): self.list_languages,
            ("GET", "/health"): self.health,
            ("GET", "/ready"): self.is_ready,
            ("GET", "/metrics"): self.show_metrics,
        }
        self.app = Starlette(
            routes=[
                Route(path, self._route(handler), methods=[method])
                for (method, path), handler in handlers.items()
            ],
            exception_handlers={HTTPException: _refuse_route},
            lifespan=self._lifespan,
        )

    async def page(self, request: Request) -> Response:
        """Answer with the translation page."""
        return HTMLResponse(self._page, headers=_PAGE_HEADERS)

    async def translate(self, request: Request) -> Response:
        """Answer LibreTranslate's ``POST /translate``."""
        fields = await self._fields(request)
        parsed = request_formats.libretranslate_request(
            fields, self.languages, self.engine.most_results
        )
        nbest = await self._translations(request, parsed)
        return _json(request_formats.libretranslate_reply(parsed, nbest, self.languages))

    async def translate_deepl(self, request: Request) -> Response:
        """Answer DeepL's ``POST /v2/translate``."""
        parsed = request_formats.deepl_request(await self._fields(request), self.languages)
        nbest = await self._translations(request, parsed)
        return _json(request_formats.deepl_reply(parsed, nbest, self.languages))

    async def attention(self, request: Request) -> Response:
        """Answer with the attention of every word of a translation over its source."""
        fields = await self._fields(request)
        source, target, language = request_formats.attention_request(fields, self.languages)
        self._require_ready()
        prefix = self.languages.prefix(language)
        [words] = await self._results(request, [self.engine.attention(prefix + source, target)])
        # Offsets in the line that was sent, which does not contain the prefix.
        spans = [[max(offset - len(prefix), 0) for offset in span] for span in words["source"]]
        return _json(words | {"source": spans})

    async def list_languages(self, request: Request) -> Response:
        """Answer LibreTranslate's ``GET /languages``."""
        self._authorize(request)
        return _json(self.languages.listed())

    async def health(self, request: Request) -> Response:
        """Answer that the process runs."""
        return _json({"status": "ok"})

    async def is_ready(self, request: Request) -> Response:
        """Answer whether every program is compiled."""
        self._require_ready()
        return _json({"status": "ready"})

    async def show_metrics(self, request: Request) -> Response:
        """Answer with the metrics, for Prometheus."""
        self._authorize(request)
        media_type = "text/plain; version=0.0.4; charset=utf-8"
        return Response(self.metrics.text(), media_type=media_type, headers=_HEADERS)

    def _route(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable:
        """Count the requests of a handler, and turn its exceptions into replies."""

        async def route(request: Request) -> Response:
            began, path, status = time.perf_counter(), request.scope["path"], _CLIENT_CLOSED
            try:
                try:
                    async with asyncio.timeout(self.limits.seconds):
                        response = await handle(request)
                except Exception as error:  # noqa: BLE001 - every error has a reply
                    response = self._refusal(path, error)
                status = response.status_code
                return response
            finally:
                self.metrics.requests.labels(path, str(status)).inc()
                self.metrics.latency.labels(path).observe(time.perf_counter() - began)

        return route

    def _refusal(self, path: str, error: Exception) -> Response:
        match error:
            case RequestError():
                return _error(path, error.status, str(error), error.headers)
            case InputError():
                return _error(path, 422, str(error))
            case QueueFull() | BatcherClosed():
                return _error(path, 503, str(error), {"Retry-After": _RETRY_SECONDS})
            case TimeoutError():
                seconds = f"{self.limits.seconds:g}"
                return _error(path, 504, f"no translation within {seconds} seconds; retry later")
            case ClientDisconnect():
                return _error(path, _CLIENT_CLOSED, "the client disconnected")
        logger.error("request to %s failed", path, exc_info=error)
        return _error(path, 500, "internal error; the log of the service describes it")

    async def _fields(self, request: Request) -> dict[str, Any]:
        """The fields of the body of an authorized request, within the limits of size and time."""
        may_have_key = request.scope["path"] == "/translate"
        if not may_have_key:
            self._authorize(request)
        body, size, limit = bytearray(), 0, self.limits.body_bytes
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= limit:
                        body += chunk
                    elif size > _DRAINED_BYTES:
                        break
        except TimeoutError:
            message = f"the body did not arrive within {self.limits.body_seconds:g} seconds"
            raise RequestError(408, message, Connection="close") from None
        if size > limit:
            message = f"the body has more than {limit} bytes; send fewer texts at once"
            raise RequestError(413, message, Connection="close")
        fields = request_formats.parse_body(bytes(body), request.headers.get("content-type", ""))
        if may_have_key:
            self._authorize(request, fields.get("api_key"))
        return fields

    async def _translations(self, request: Request, parsed: TranslationRequest) -> list:
        """Translations of the lines that are not blank."""
        self._require_ready()
        prefix = self.languages.prefix(parsed.target)
        every = [line for text in parsed.lines() for line in text]
        lines = [prefix + line if line.strip() else "" for line in every]
        count = sum(map(bool, lines))
        if count > self.limits.lines:
            raise RequestError(
                400, f"{count} lines of text, but a request may have {self.limits.lines}"
            )
        futures = self.engine.translate(lines, parsed.alternatives + 1)
        nbest = await self._results(request, futures)
        if self._logs_text:
            logger.info("%r -> %r", parsed.texts, [best.text for best, *_ in nbest])
        return nbest

    async def _results(self, request: Request, futures: Sequence[Future]) -> list:
        """Wait for futures; cancel them if the client disconnects or the time is over."""
        self.metrics.accepted.inc()
        results = asyncio.gather(*map(asyncio.wrap_future, futures))
        disconnected = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({results, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not results.done():
                raise ClientDisconnect
            values = results.result()
            self.metrics.answered.inc()
            return values
        finally:
            disconnected.cancel()
            results.cancel()
            for future in futures:  # before the reply, which cancelling `results` alone is not
                future.cancel()

    def _require_ready(self) -> None:
        if not self.engine.ready.is_set():
            raise RequestError(503, "the model is warming up", Retry_After=_RETRY_SECONDS)

    def _authorize(self, request: Request, api_key: object = None) -> None:
        """Require the token as ``Bearer``, as DeepL's key, or as LibreTranslate's ``api_key``."""
        if self._token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() not in ("bearer", "deepl-auth-key"):
            given = api_key if isinstance(api_key, str) else ""
        if not given:
            raise RequestError(
                401, "a token is required: Authorization: Bearer TOKEN", WWW_Authenticate="Bearer"
            )
        if not hmac.compare_digest(given.encode(errors="replace"), self._token.encode()):
            raise RequestError(403, "the token is not valid")

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(self.engine.close)


async def _disconnected(request: Request) -> None:
    """Wait until the client closes its side."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refuse_route(request: Request, error: HTTPException) -> Response:
    """Refuse unknown routes and methods."""
    return _error(request.scope["path"], error.status_code, error.detail, error.headers)


def _error(
    path: str, status: int, message: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error in the shape of the API of the path."""
    name = "message" if path.startswith("/v2/") else "error"
    return JSONResponse({name: message}, status, headers=_HEADERS | dict(headers or {}))


def _json(value: Any) -> JSONResponse:
    return JSONResponse(value, headers=_HEADERS)
