"""The server below the routes: what is no HTTP at all is answered in the same shape as every other error."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from aiohttp import web

from later.api.problems import INTERNAL_ERROR, ErrorBody, answer_errors, problem_response

log = structlog.get_logger()

_QUOTE = re.compile("[:'\"\n]")
"""Where aiohttp begins to quote what it read: that may be anybody's secret."""


FastHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
FAST_ROUTES = web.AppKey("direct", Mapping[str, FastHandler])
"""Under this an application keeps the POST handlers that are called most, by path. They are routes too."""


class Runner(web.AppRunner):
    """Runs an application as `web.AppRunner` does, on our server."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        doors = _FastRoutes(self.app.get(FAST_ROUTES, {}), server.request_handler)
        return _Server(doors, request_factory=server.request_factory, **self._kwargs)


class _FastRoutes:
    """Passes the calls that are made most past the application, whose routing takes a tenth of a create's time."""

    def __init__(self, direct: Mapping[str, FastHandler], application: FastHandler) -> None:
        self._direct = direct
        self._application = application

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request)  # the application's factory made it
        call = self._direct.get(request.raw_path)
        if call is None or request.method != "POST" or "Expect" in request.headers:
            return await self._application(request)
        return await answer_errors(request, call)


class _Server(web.Server):
    """Makes a protocol for each connection."""

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class _Protocol(web.RequestHandler):
    """One connection."""

    __slots__ = ()

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """A body that breaks off is the client's fault, and was answered: nothing for the log, which it could fill."""
        if not isinstance(sys.exception(), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what no handler could: malformed HTTP (400), or a fault outside all handlers."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is on its way already")
        if status == 400:
            what = _QUOTE.split(message or "", maxsplit=1)[0].strip()
            told = ErrorBody(status=400, detail=f"malformed HTTP: {what}")
        else:
            log.error("request failed", exc_info=exc)
            told = ErrorBody(status=500, detail=INTERNAL_ERROR)
        response = problem_response(told)
        response.force_close()
        return response
