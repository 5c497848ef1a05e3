"""The table of routes: where each answers, and what a caller needs and may send. Both ways to a handler read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from later.api.authorization import CALLER, Authorization, NoScope
from later.api.cross_site import CrossSiteProtection
from later.api.requests import check_query
from later.core.api_keys import Scope
from later.core.errors import Denied
from later.metrics.http_requests import RequestMetrics


class Route(NamedTuple):
    """A method and a path, the handler that answers there, what it asks of a caller, and its query's parameters.

    A fast POST route is answered without the router, if it has no query. A health route is answered whatever its query
    is, and to pages of other sites, too.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope | NoScope
    query: tuple[str, ...] = ()
    is_fast: bool = False
    is_health: bool = False

    @property
    def template(self) -> str:
        """The path as people write it: `/topics/{topic}`."""
        return self.path.replace(":[^/]+", "")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Check the caller and the query, and return the handler's answer."""
        authorization = request.app[AUTHORIZATION]
        try:
            request[CALLER] = await authorization.admit(request, self.scope)
            if not self.is_health:
                check_query(request, self.query)
            return await self.handler(request)
        except Denied as error:
            authorization.note_denial(request, error)
            raise


AUTHORIZATION = web.AppKey("authorization", Authorization)
CROSS_SITE_PROTECTION = web.AppKey("cross_site_protection", CrossSiteProtection)
REQUESTS = web.AppKey("requests", RequestMetrics)
ROUTES = web.AppKey("routes", Sequence[Route])
"""The key under which an application keeps its table."""
