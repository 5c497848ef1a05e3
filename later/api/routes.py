"""The table of routes: where each answers, and what a caller needs and may send. Both ways to a handler read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from later.api.authorization import CALLER, Authorization, NoScope, find_token
from later.api.cross_site import CrossSiteProtection
from later.api.problems import ErrorAnswer
from later.api.requests import check_query
from later.core.api_keys import Scope
from later.core.errors import Denied
from later.metrics.http_requests import RequestMetrics

_PATTERN = re.compile(r":[^{}]*}")
"""The pattern that a part of a path must match, as aiohttp takes it."""


class Route(NamedTuple):
    """A method and a path, the handler that answers there, what it asks of a caller, and its query's parameters.

    Its caller needs the scope `also`, too.
    A fast POST route is answered without the router, if it has no query. A health route is answered whatever its query
    is, and to pages of other sites, too. A route of Zaqar's API reads its query itself, and takes a key in
    `X-Auth-Token`, too. A page's query is read in the browser; it is no part of the API.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope | NoScope
    query: tuple[str, ...] = ()
    is_fast: bool = False
    is_health: bool = False
    is_zaqar: bool = False
    is_page: bool = False
    also: Scope | None = None

    @property
    def template(self) -> str:
        """The path as people write it: `/topics/{topic}`."""
        return _PATTERN.sub("}", self.path)

    def checked_handler(self, authorization: Authorization) -> Handler:
        """Return the handler with the check of the caller, and of the query, before it."""
        handler, scope, query, is_zaqar, also = self.handler, self.scope, self.query, self.is_zaqar, self.also
        checks_query = not (self.is_health or is_zaqar or self.is_page)

        async def answer(request: web.Request) -> web.StreamResponse:
            token = None
            try:
                if is_zaqar:
                    token = find_token(request)
                # to await what does not wait would cost more
                caller = authorization.find_caller(request, scope, token=token)
                request[CALLER] = caller or await authorization.admit(request, scope, token)
                if also is not None:
                    request[CALLER].require(also)
                if checks_query:
                    check_query(request, query)
                return await handler(request)
            except Denied as error:
                authorization.note_denial(request, error, token)
                raise

        return answer


AUTHORIZATION = web.AppKey("authorization", Authorization)
CROSS_SITE_PROTECTION = web.AppKey("cross_site_protection", CrossSiteProtection)
ERROR_ANSWER: web.AppKey[ErrorAnswer] = web.AppKey("error_answer")
REQUESTS = web.AppKey("requests", RequestMetrics)
ROUTES = web.AppKey("routes", Sequence[Route])
"""The key under which an application keeps its table."""
