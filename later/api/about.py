"""What the API says of itself: its routes, its version, and a page for each kind of problem."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from later import __version__
from later.api.json_response import SERVER_HEADERS, json_response
from later.api.problem_types import PROBLEM_TYPES


class AboutHandlers:
    """Handlers of the list of routes, the version and the pages. `routes` are methods and paths of the table."""

    def __init__(self, routes: Sequence[tuple[str, str]]) -> None:
        self._routes = [{"method": method, "path": path} for method, path in routes]

    async def list_routes(self, request: web.Request) -> web.StreamResponse:
        """`GET /`."""
        return json_response({"name": "later", "version": __version__, "routes": self._routes})

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
