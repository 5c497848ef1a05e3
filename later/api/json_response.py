"""JSON answers of status 200: status line, headers and body are written in one piece."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache

import msgspec
from aiohttp import ClientConnectionResetError, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

from later import __version__

SERVER_HEADERS = {"Server": f"later/{__version__}"}
"""Headers of every answer."""
DATA_HEADERS = {**SERVER_HEADERS, "Cache-Control": "no-store"}
"""Headers of answers that hold data: what is read a second time may have changed."""

_HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nDate: %s\r\n"
    + "".join(f"{name}: {value}\r\n" for name, value in DATA_HEADERS.items())
    + "\r\n"
).encode()
MAX_JOINED_BYTES = 65_536
"""A larger body is written apart from the head: joining would copy it once more."""
_encode = msgspec.json.Encoder().encode


class JsonResponse(web.StreamResponse):
    """An answer of status 200 with a JSON body.

    `web.Response` would take a quarter of a create's time: it keeps its headers in a dictionary, checks each and joins
    them again. It serves as the fallback for everything but HTTP/1.1 with keep-alive.

    Subclasses `StreamResponse` only so that aiohttp accepts it; `__init__` is skipped because it builds headers that
    are never sent. So `_headers` and most other attributes of `StreamResponse` are unset.
    """

    status = 200  # a plain attribute, because a property takes ten times as long to read
    keep_alive: bool | None = True
    _is_sent = False

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._fallback: web.Response | None = None

    def write_small(self, request: web.BaseRequest) -> bool:
        """Write a small answer, which takes no waiting; return False, and do nothing, if it is no small one.

        Raises:
            ConnectionError: the client has disconnected.
        """
        if len(self.body) > MAX_JOINED_BYTES or not _is_kept_alive(request):
            return False
        # straight to the transport: aiohttp's writer would look for compression, chunks and hooks
        transport = request.transport
        self._is_sent = True
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError
        transport.write(_HEAD % (len(self.body), _date(int(time.time()))) + self.body)
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write the whole answer, unless that was done. Raises ConnectionError: the client has disconnected."""
        if self._is_sent or self.write_small(request):
            return None
        self._is_sent = True
        if _is_kept_alive(request):
            await request.writer.write(_HEAD % (len(self.body), _date(int(time.time()))))
            await request.writer.write(self.body)
            return None
        self._fallback = web.Response(body=self.body, content_type="application/json", headers=DATA_HEADERS)
        writer = await self._fallback.prepare(request)
        self.keep_alive = self._fallback.keep_alive
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Finish the answer. Only the fallback has anything left to write."""
        if self._fallback is not None:
            await self._fallback.write_eof()


def _is_kept_alive(request: web.BaseRequest) -> bool:
    return request.version == HttpVersion11 and request.keep_alive and request.method != hdrs.METH_HEAD


def json_response(answer: object) -> JsonResponse:
    """Return an answer of status 200 with `answer` as JSON."""
    return JsonResponse(_encode(answer))


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
