"""The calls for monitoring: liveness, readiness and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from later.api.json_response import DATA_HEADERS, json_response
from later.api.problem_types import FAULT, NOT_ALIVE, NOT_READY, STORE_AWAY, problem_type
from later.api.problems import ErrorBody, problem_response
from later.core.clock import Clock, warn_of_clock
from later.core.errors import LaterError
from later.metrics import Exposition

REASON_NEEDS_KEY = "not ready: a key that may read the metrics is told why"


async def is_alive() -> None:
    """Return no reason for a restart: a process that answers is alive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthSource:
    """The health of a whole daemon, whose processes each serve it.

    `why_not_ready` returns the error that keeps the daemon from its work, or None if it is ready. `exposition` returns
    all metrics in the format that the header `Accept` asks for. `why_not_alive` returns the error that a restart ends,
    and `count_away` how many shards are away.
    """

    why_not_ready: Callable[[], Awaitable[LaterError | None]]
    exposition: Callable[[str], Awaitable[Exposition]]
    why_not_alive: Callable[[], Awaitable[LaterError | None]] = is_alive
    count_away: Callable[[], int] = lambda: 0


class HealthHandlers:
    """Handlers of liveness, readiness and metrics.

    `may_see_why` returns True for callers that are told why the daemon is not ready, that the store's `clock` is wrong,
    or how many shards are away.
    """

    def __init__(
        self,
        source: HealthSource,
        *,
        may_see_why: Callable[[web.BaseRequest], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        self._may_see_why = may_see_why
        self._source = source
        self._clock = clock

    async def live(self, request: web.Request) -> web.StreamResponse:
        """`GET /livez`. It says to everybody what hangs: the name of a ticker is no secret."""
        error = await self._source.why_not_alive()
        if error is None:
            return json_response({"status": "alive"})
        return problem_response(ErrorBody(status=503, detail=str(error)), NOT_ALIVE)

    async def ready(self, request: web.Request) -> web.StreamResponse:
        """`GET /readyz`. A store that answers what it never should is away, too: the daemon is not at fault."""
        error = await self._source.why_not_ready()
        if error is None:
            details = self._details()
            if details and not await self._may_see_why(request):
                details = {}
            return json_response({"status": "ready", **details})
        if not await self._may_see_why(request):
            return problem_response(ErrorBody(status=503, detail=REASON_NEEDS_KEY), NOT_READY)
        type = problem_type(error)
        return problem_response(ErrorBody(status=503, detail=str(error)), STORE_AWAY if type is FAULT else type)

    def _details(self) -> dict[str, object]:
        """Return what is wrong while the daemon does its work."""
        warning, away = warn_of_clock(self._clock), self._source.count_away()
        return {**({"warning": warning} if warning is not None else {}), **({"shards_away": away} if away else {})}

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """`GET /metrics`: all metrics or none, because missing ones would look like counters that were reset."""
        try:
            text, content_type = await self._source.exposition(request.headers.get("Accept", ""))
        except LaterError as error:
            return problem_response(ErrorBody(status=503, detail=str(error)), NOT_READY)
        return web.Response(body=text.encode(), headers={**DATA_HEADERS, "Content-Type": content_type})
