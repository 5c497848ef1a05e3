"""Health and figures: does the process answer, does the store, and what has been done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from later.api.problems import ErrorBody, problem_response
from later.api.schemas import json_response
from later.core.errors import LaterError

PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HealthHandlers:
    """Handlers for whoever watches.

    `why_not_ready` answers one line, or None where nothing is amiss; `exposition` all figures as Prometheus reads them.
    """

    def __init__(
        self, *, why_not_ready: Callable[[], Awaitable[str | None]], exposition: Callable[[], Awaitable[bytes]]
    ) -> None:
        self._why_not_ready = why_not_ready
        self._exposition = exposition

    async def live(self, request: web.Request) -> web.StreamResponse:
        """`GET /livez`."""
        return json_response({"status": "alive"})

    async def ready(self, request: web.Request) -> web.StreamResponse:
        """`GET /readyz`."""
        reason = await self._why_not_ready()
        return (
            json_response({"status": "ready"})
            if reason is None
            else problem_response(ErrorBody(status=503, detail=reason))
        )

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """`GET /metrics`. Half the figures would look like counters that were reset: all of them or none."""
        try:
            body = await self._exposition()
        except LaterError as error:
            return problem_response(ErrorBody(status=503, detail=str(error)))
        return web.Response(body=body, headers={"Content-Type": PROMETHEUS_CONTENT_TYPE})
