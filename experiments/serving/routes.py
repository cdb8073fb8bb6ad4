# SPDX-License-Identifier: Apache-2.0
"""The HTTP routes: LibreTranslate's, DeepL's, the page, health checks and metrics.

Every error is JSON. A request waits for the batching core without a thread, and is dropped from
the queue when its client disconnects or its time is over.
"""

import asyncio
import contextlib
import dataclasses
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from experiments.serving import request_formats, translation_page
from experiments.serving.batcher import BatcherClosed, Future, QueueFull
from experiments.serving.engine import Engine
from experiments.serving.languages import Languages
from experiments.serving.request_formats import RequestError, TranslationRequest
from experiments.serving.service_metrics import ServiceMetrics
from transformer.errors import InputError

logger = logging.getLogger(__name__)

_OPEN = ("/", "/health", "/ready")
"""Routes that need no token."""
_DRAINED_BYTES = 2**24
"""Most bytes that are read of a body that is too large, so that the client can read the reply."""
_CLIENT_CLOSED = 499
"""Status in the metrics of a request whose client disconnected."""
_POLICY = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""Directives that a policy in a page cannot contain; the page has the others."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    body_bytes: int = 2**17
    lines: int = 256
    """Lines of all texts that are not blank."""
    seconds: float = 30.0
    """From the first byte of the body to the reply."""
    body_seconds: float = 10.0
    """For the client to send the body."""


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
          languages: of the model.
          metrics: updated by every request.
          limits: of a request.
          title: of the page.
          token: that every request must carry, except for the page, /health and /ready.
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
        routes = [
            Route("/", self._timed(self.show_page), methods=["GET"]),
            Route("/translate", self._timed(self.translate), methods=["POST"]),
            Route("/v2/translate", self._timed(self.translate_deepl), methods=["POST"]),
            Route("/attention", self._timed(self.attention), methods=["POST"]),
            Route("/languages", self._timed(self.list_languages), methods=["GET"]),
            Route("/health", self._timed(self.health), methods=["GET"]),
            Route("/ready", self._timed(self.ready), methods=["GET"]),
            Route("/metrics", self._timed(self.show_metrics), methods=["GET"]),
        ]
        self.app = Starlette(
            routes=routes,
            exception_handlers={HTTPException: _refuse_route},
            lifespan=self._lifespan,
        )

    # Routes.

    async def translate(self, request: Request) -> Response:
        """LibreTranslate's ``POST /translate``."""
        fields = await self._fields(request)
        self._authorize(request, fields.get("api_key"))
        parsed = request_formats.libretranslate_request(
            fields, self.languages, self.engine.most_results
        )
        nbest = await self._translations(request, parsed)
        return _json(request_formats.libretranslate_reply(parsed, nbest, self.languages))

    async def translate_deepl(self, request: Request) -> Response:
        """DeepL's ``POST /v2/translate``."""
        fields = await self._fields(request)
        self._authorize(request)
        parsed = request_formats.deepl_request(fields, self.languages)
        nbest = await self._translations(request, parsed)
        return _json(request_formats.deepl_reply(parsed, nbest, self.languages))

    async def attention(self, request: Request) -> Response:
        """The attention of every word of a translation over its source."""
        fields = await self._fields(request)
        self._authorize(request)
        source, target, language = request_formats.attention_request(fields, self.languages)
        self._require_ready()
        prefix = self.languages.prefix(language)
        words = await self._result(request, lambda: self.engine.attention(prefix + source, target))
        # Positions in the line that was sent; the language's code has no characters there.
        spans = [[max(at - len(prefix), 0) for at in span] for span in words["source"]]
        return _json(words | {"source": spans})

    async def list_languages(self, request: Request) -> Response:
        """LibreTranslate's ``GET /languages``."""
        self._authorize(request)
        return _json(self.languages.listed())

    async def health(self, request: Request) -> Response:
        """Whether the process answers."""
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Whether every program is compiled."""
        self._require_ready()
        return _json({"status": "ready"})

    async def show_metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        self._authorize(request)
        media_type = "text/plain; version=0.0.4; charset=utf-8"
        return Response(self.metrics.text(), media_type=media_type, headers=_HEADERS)

    async def show_page(self, request: Request) -> Response:
        """The translation page."""
        return HTMLResponse(self._page, headers=_HEADERS | {"Content-Security-Policy": _POLICY})

    # What the routes share.

    def _timed(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable:
        """A route that counts its requests and answers errors as JSON."""

        async def timed(request: Request) -> Response:
            began = time.perf_counter()
            status = _CLIENT_CLOSED
            try:
                response = await self._answered(handle, request)
                status = response.status_code
                return response
            finally:
                route = request.scope["path"]
                self.metrics.requests.labels(route, str(status)).inc()
                self.metrics.latency.labels(route).observe(time.perf_counter() - began)

        return timed

    async def _answered(
        self, handle: Callable[[Request], Awaitable[Response]], request: Request
    ) -> Response:
        path = request.scope["path"]
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await handle(request)
        except RequestError as error:
            return _error(path, error.status, error.message, error.headers)
        except InputError as error:
            return _error(path, 422, str(error))
        except QueueFull as error:
            return _error(path, 503, str(error), {"Retry-After": str(error.retry_after)})
        except BatcherClosed as error:
            return _error(path, 503, str(error), {"Retry-After": "5"})
        except TimeoutError:
            seconds = f"{self.limits.seconds:g}"
            return _error(path, 504, f"no translation within {seconds} seconds; retry later")
        except ClientDisconnect:
            return _error(path, _CLIENT_CLOSED, "the client disconnected")
        except Exception:
            logger.exception("request to %s failed", path)
            return _error(path, 500, "internal error; the log of the service describes it")

    async def _fields(self, request: Request) -> dict[str, Any]:
        """The fields of the body, within the limits of size and time."""
        self._authorize_early(request)
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await self._body(request)
        except TimeoutError:
            raise RequestError(
                408,
                f"the body did not arrive within {self.limits.body_seconds:g} seconds",
                Connection="close",
            ) from None
        return request_formats.parse_body(body, request.headers.get("content-type", ""))

    async def _body(self, request: Request) -> bytes:
        body, size = bytearray(), 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= self.limits.body_bytes:
                body += chunk
            elif size > _DRAINED_BYTES:
                break
        if size > self.limits.body_bytes:
            raise RequestError(
                413,
                f"the body has more than {self.limits.body_bytes} bytes; send fewer texts at once",
                Connection="close",
            )
        return bytes(body)

    async def _translations(self, request: Request, parsed: TranslationRequest) -> list:
        """Translations of the lines that are not blank."""
        self._require_ready()
        lines = [line for text in parsed.lines() for line in text]
        count = sum(bool(line.strip()) for line in lines)
        if count > self.limits.lines:
            raise RequestError(
                400, f"{count} lines of text, but a request may have {self.limits.lines}"
            )
        prefix = self.languages.prefix(parsed.target)
        lines = [prefix + line if line.strip() else "" for line in lines]
        num_results = parsed.alternatives + 1
        nbest = await self._result(request, lambda: self.engine.translate(lines, num_results))
        if self._logs_text:
            logger.info("%r -> %r", parsed.texts, [best.text for best, *_ in nbest])
        return nbest

    async def _result(self, request: Request, submit: Callable[[], Future]) -> Any:
        """The result of a future, which is cancelled if the client disconnects."""
        future = submit()
        result = asyncio.wrap_future(future)
        self.metrics.accepted.inc()
        disconnected = asyncio.ensure_future(_disconnected(request))
        disconnected.add_done_callback(lambda _: result.cancel())
        try:
            value = await result
            self.metrics.answered.inc()
            return value
        except asyncio.CancelledError:
            if disconnected.done():
                raise ClientDisconnect from None
            raise  # the request's time is over
        finally:
            # Cancelling `result` alone reaches `future` only after the reply has been sent.
            future.cancel()
            result.cancel()
            disconnected.cancel()

    def _require_ready(self) -> None:
        if not self.engine.ready:
            raise RequestError(503, "the model is warming up", Retry_After="5")

    def _authorize_early(self, request: Request) -> None:
        """Authorize before the body is read; on ``/translate`` the body may have the token."""
        if request.scope["path"] != "/translate":
            self._authorize(request)

    def _authorize(self, request: Request, api_key: object = None) -> None:
        """Require the token as ``Bearer``, as DeepL's key, or as LibreTranslate's ``api_key``."""
        if self._token is None or request.scope["path"] in _OPEN:
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
    """Unknown routes and methods."""
    return _error(request.scope["path"], error.status_code, error.detail, error.headers)


def _error(
    path: str, status: int, message: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error in the shape of the API of the path."""
    name = "message" if path.startswith("/v2/") else "error"
    return JSONResponse({name: message}, status, headers=_HEADERS | dict(headers or {}))


def _json(value: Any) -> JSONResponse:
    return JSONResponse(value, headers=_HEADERS)
