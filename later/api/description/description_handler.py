"""`GET /openapi.json`: the description of the routes that an application has."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from aiohttp import hdrs, web

from later.api.authorization import NoScope
from later.api.description.document import DescribedRoute, build_document
from later.api.json_response import SERVER_HEADERS
from later.api.routes import ROUTES, Route
from later.core.api_keys import Scope


class DescriptionHandler:
    """The handler of the description of one application, which is built when somebody first asks for it."""

    def __init__(self, base_path: str = "") -> None:
        self._base_path = base_path
        self._body = b""
        self._etag = ""

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /openapi.json`. A client that has it asks by its entity tag whether it is still the same."""
        if not self._body:
            self._body = _encode(request.app[ROUTES], self._base_path)
            self._etag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'
        headers = {**SERVER_HEADERS, "Cache-Control": "no-cache", "ETag": self._etag}
        known = request.headers.get(hdrs.IF_NONE_MATCH, "")
        if self._etag in known or known.strip() == "*":
            return web.Response(status=304, headers=headers)
        return web.Response(body=self._body, content_type="application/json", headers=headers)


def _encode(routes: Sequence[Route], base_path: str) -> bytes:
    described = {
        (route.method, route.template): DescribedRoute(
            route.query,
            [scope for scope in (route.also, route.scope) if isinstance(scope, Scope)],
            needs_key=route.scope is not NoScope.OPEN,
        )
        for route in routes
        if not route.is_page
    }
    return msgspec.json.encode(build_document(described, base_path))
