"""Health and figures: does the process answer, does the store, and what has been done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from later.api.problems import Fault, problem
from later.api.wire import reply
from later.metrics import Metrics

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class HealthCalls:
    """Handlers for whoever watches. `why_not_ready` answers one line, or None where nothing is amiss."""

    def __init__(self, *, metrics: Metrics, why_not_ready: Callable[[], Awaitable[str | None]]) -> None:
        self._metrics = metrics
        self._why_not_ready = why_not_ready

    async def live(self, request: web.Request) -> web.Response:
        """`GET /livez`."""
        return reply({"status": "alive"})

    async def ready(self, request: web.Request) -> web.Response:
        """`GET /readyz`."""
        reason = await self._why_not_ready()
        return reply({"status": "ready"}) if reason is None else problem(Fault(status=503, detail=reason))

    async def figures(self, request: web.Request) -> web.Response:
        """`GET /metrics`."""
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": PROMETHEUS})
