"""The addresses of the console: one page for all of them, which reads from its address what to show."""

from __future__ import annotations

import re

from aiohttp import web

from later.console.static_files import HEADERS, INDEX, read_static_files

PATH = "/console/"
"""The path of the first page. All others are below it."""
_STATIC = "static/"
_PAGES = re.compile(r"|topics(/[^/]+)?|tasks(/[^/]+)?|dead|workers|jobs(/[^/]+)?|schedules|api|sign-in")
"""The paths of pages below `PATH`, as they are sent: a `/` in a topic comes percent-encoded."""


class ConsolePages:
    """Handlers of the console's addresses.

    `base_path` is what a proxy puts in front of every path: `/later`, or empty. `mode` is `on` or `readonly`.
    """

    def __init__(self, base_path: str, mode: str) -> None:
        self._base_path = base_path
        placeholders = {"base": base_path, "static": f"{base_path}{PATH}static", "mode": mode}
        self._files = read_static_files(placeholders)
        self._page = self._files.pop(INDEX)

    async def redirect(self, request: web.Request) -> web.StreamResponse:
        """`GET /console`."""
        return web.Response(status=308, headers={**HEADERS, "Location": self._base_path + PATH})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /console/{path}`: a page, or one of the files that it loads.

        Raises:
            HTTPNotFound: there is neither.
        """
        path = request.rel_url.raw_path.removeprefix(PATH)
        file = self._page if _PAGES.fullmatch(path) else None
        if path.startswith(_STATIC):
            file = self._files.get(path.removeprefix(_STATIC))
        if file is None:
            raise web.HTTPNotFound
        return file.answer(request)
