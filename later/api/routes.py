"""The table of routes: where each answers, and what a caller needs and may send. Both ways to a handler read it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from later.api.cross_site import CrossSiteProtection
from later.api.requests import check_query
from later.metrics.http_requests import RequestMetrics


class Scope(StrEnum):
    """The permission that a route needs, by its effect on tasks. An open route needs none."""

    CREATE = "create"
    READ = "read"
    EDIT = "edit"
    ADMIN = "admin"
    METRICS = "metrics"
    OPEN = "open"


class Route(NamedTuple):
    """A method and a path, the handler that answers there, its scope, and the parameters that its query may have.

    A fast POST route is answered without the router, if it has no query. A health route is answered whatever its query
    is, and to pages of other sites, too.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope
    query: tuple[str, ...] = ()
    is_fast: bool = False
    is_health: bool = False

    @property
    def template(self) -> str:
        """The path as people write it: `/topics/{topic}`."""
        return self.path.replace(":[^/]+", "")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Check the query, and return the handler's answer."""
        if not self.is_health:
            check_query(request, self.query)
        return await self.handler(request)


CROSS_SITE_PROTECTION = web.AppKey("cross_site_protection", CrossSiteProtection)
REQUESTS = web.AppKey("requests", RequestMetrics)
ROUTES = web.AppKey("routes", Sequence[Route])
"""The key under which an application keeps its table."""
