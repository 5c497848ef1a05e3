"""How a good answer goes out: in one piece, its head made here."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE, HttpVersion11

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %%d\r\nDate: %%s\r\nServer: %s\r\n\r\n"
    % SERVER_SOFTWARE.encode()
)


class JsonResponse(web.StreamResponse):
    """200, with JSON.

    `web.Response` says the same, in a quarter of the time that a create takes: it keeps its headers in a dictionary,
    asks for each whether it belongs there, and puts them together again. It is left to answer whoever wants something
    else than the body on a connection that stays open. So of `StreamResponse` nothing is used but its type, and its
    constructor is not called: it makes headers that nobody would read.
    """

    def __init__(self, body: bytes) -> None:
        self._json = body
        self._fallback: web.Response | None = None

    @property
    def keep_alive(self) -> bool | None:
        return True if self._fallback is None else self._fallback.keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write all of it. Raises ConnectionError: the caller has gone."""
        if request.version == HttpVersion11 and request.keep_alive and request.method != hdrs.METH_HEAD:
            await request.writer.write(_HEAD % (len(self._json), _date(int(time.time()))) + self._json)
            return None
        self._fallback = web.Response(body=self._json, content_type="application/json")
        return await self._fallback.prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to be written, but by the book."""
        if self._fallback is not None:
            await self._fallback.write_eof()


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
