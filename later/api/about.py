"""The routes that describe the API: its routes, its version, and a page for each type of problem."""

from __future__ import annotations

from aiohttp import web

from later import __version__
from later.api.json_response import SERVER_HEADERS, json_response
from later.api.problem_types import PROBLEM_TYPES
from later.api.routes import ROUTES


class AboutHandlers:
    """Handlers of the list of routes, the version and the pages."""

    async def list_routes(self, request: web.Request) -> web.StreamResponse:
        """`GET /`: each route, and the parameters that its query may have."""
        routes = [
            {"method": route.method, "path": route.template, "query": route.query} for route in request.app[ROUTES]
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
