"""Calls of this process to its own API, without a connection.

They take the same way as any other: routes, checks, handlers, answers to errors. So nothing is there twice.
"""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11, RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from later.api.server import Runner
from later.client.http import ApiReply
from later.core.errors import Unavailable


class InProcessCalls:
    """Calls to an application that does not listen. It is opened, called and closed in one event loop."""

    def __init__(self, app: web.Application) -> None:
        self._runner = Runner(app)

    async def open(self) -> None:
        """Start the application."""
        await self._runner.setup()

    async def exchange(
        self, method: str, path: str, body: bytes | None, content_type: str, timeout_s: float
    ) -> ApiReply:
        """Carry out a call, and return whatever is answered within `timeout_s`.

        Raises:
            Unavailable: no answer came. It is unknown whether the call was carried out.
        """
        content = body or b""
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._runner.answer(_request_head(method, path, len(content), content_type), content)
        except TimeoutError:
            raise Unavailable(f"the store did not answer within {timeout_s:g} s", unknown=True) from None
        answer = getattr(response, "body", None)
        retry_after = None if response.status == 200 else response.headers.get(hdrs.RETRY_AFTER)
        return ApiReply(response.status, "", retry_after, answer if isinstance(answer, bytes) else b"")

    async def close(self) -> None:
        """End the calls that wait, and stop the application."""
        await self._runner.cleanup()


def _request_head(method: str, path: str, length: int, content_type: str) -> RawRequestMessage:
    """Return the head of a request, as aiohttp reads it from a connection."""
    headers = CIMultiDict({hdrs.CONTENT_TYPE: content_type, hdrs.CONTENT_LENGTH: str(length)})
    return RawRequestMessage(
        method=method,
        path=path,
        version=HttpVersion11,
        headers=CIMultiDictProxy(headers),
        raw_headers=(),
        should_close=False,
        compression=None,
        upgrade=False,
        chunked=False,
        url=URL(path, encoded=True),
    )
