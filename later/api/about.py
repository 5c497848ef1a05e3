"""The routes that describe the API: its routes, its version, and a page for each type of problem."""

from __future__ import annotations

from aiohttp import web

from later import __version__
from later.api.authorization import CALLER
from later.api.batch_body import MAX_ITEMS
from later.api.json_response import SERVER_HEADERS, json_response
from later.api.problem_types import PROBLEM_TYPES
from later.api.requests import MAX_PAGE_SIZE
from later.api.routes import ROUTES
from later.core.api_keys import READING_SCOPES, Scope


class WhoAmIHandler:
    """The handler of `/whoami`. `max_body` is in bytes."""

    def __init__(self, max_body: int) -> None:
        self._limits = {"max_body": max_body, "batch": MAX_ITEMS, "page": MAX_PAGE_SIZE}

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /whoami`: what the caller's key may do, and how much one request may hold."""
        caller = request[CALLER]
        answer = {
            "version": __version__,
            "key": caller.key_id,
            "scopes": [scope.value for scope in Scope if scope in caller.scopes],
            "namespace": caller.namespace,
            "read_only": caller.scopes <= READING_SCOPES,
            "limits": self._limits,
        }
        return json_response(answer)


class AboutHandlers:
    """Handlers of the list of routes, the version and the pages."""

    async def list_routes(self, request: web.Request) -> web.StreamResponse:
        """`GET /`: each route, and the parameters that its query may have."""
        routes = [
            {"method": route.method, "path": route.template, "query": route.query}
            for route in request.app[ROUTES]
            if not route.is_page
        ]
        return json_response({"name": "later", "version": __version__, "routes": routes})

    async def version(self, request: web.Request) -> web.StreamResponse:
        """`GET /version`."""
        return json_response({"version": __version__})

    async def problem(self, request: web.Request) -> web.StreamResponse:
        """`GET /problems/{name}`: plain text, for people who follow the `type` of a problem."""
        type = PROBLEM_TYPES.get(request.match_info["name"])
        if type is None:
            raise web.HTTPNotFound
        headers = {**SERVER_HEADERS, "X-Content-Type-Options": "nosniff"}
        return web.Response(text=type.page, content_type="text/plain", charset="utf-8", headers=headers)
