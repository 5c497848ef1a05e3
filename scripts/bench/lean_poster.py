"""The limit of a delivery in Python: requests written in one piece on kept connections, answers parsed by httptools."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import cast
from urllib.parse import urlsplit

import httptools

from scripts.bench.bare_poster import HEADERS, build_calls, run_poster

TIMEOUT_S = 15.0


class Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class has the methods but not the base
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[int] | None = None

    async def post(self, request: bytes) -> int:
        """Send a request and return the status of its answer."""
        async with asyncio.timeout(TIMEOUT_S):
            self._answer = asyncio.get_running_loop().create_future()
            self._transport.write(request)
            return await self._answer

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        assert self._answer is not None
        self._answer.set_result(self._parser.get_status_code())
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the receiver closed the connection"))


async def post_all(url: str, count: int, at: float, connections: int) -> None:
    """Post `count` calls from `at` (Unix seconds) on, each in a task of its own, over connections opened before."""
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    host, port = str(parts.hostname), int(parts.port or 80)
    opened = [await loop.create_connection(Connection, host, port) for _ in range(connections)]
    remaining = iter([*build_requests(url, count, at)])
    await asyncio.sleep(at - time.time())

    async def post_until_empty(connection: Connection) -> None:
        for request in remaining:
            assert await loop.create_task(connection.post(request)) == 200

    await asyncio.gather(*(post_until_empty(connection) for _, connection in opened))
    for transport, _ in opened:
        transport.close()


def build_requests(url: str, count: int, at: float) -> Iterator[bytes]:
    parts = urlsplit(url)
    for body, headers in build_calls(count, at):
        fields = {"Host": parts.netloc, **HEADERS, **headers, "Content-Length": len(body)}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        yield f"POST {parts.path} HTTP/1.1\r\n{head}\r\n".encode() + body


if __name__ == "__main__":
    run_poster(post_all)
