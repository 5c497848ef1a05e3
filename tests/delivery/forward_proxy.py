"""A forward proxy: it passes on calls in absolute form, and opens tunnels."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.receivers import parse_headers

REFUSED = b"HTTP/1.1 502 Bad Gateway\r\nProxy-Status: test; error=connection_refused\r\nContent-Length: 0\r\n\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class ForwardProxy:
    """A proxy that takes each name for 127.0.0.1. `heads` are the heads of the requests that it got.

    It answers CONNECT with `connect_answer`.
    """

    def __init__(self, connect_answer: bytes = ESTABLISHED) -> None:
        self._connect_answer = connect_answer
        self.heads: list[str] = []
        self.connections = 0
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listen(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[ForwardProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while not writer.is_closing():
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the sender has closed the connection, or the test is over
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")
        self.heads.append(head)
        method, target, _ = head.split("\r\n")[0].split(" ")
        authority = target if method == "CONNECT" else urlsplit(target).netloc
        port = authority.rpartition(":")[2] if ":" in authority.rpartition("]")[2] else "80"
        try:
            origin = await asyncio.open_connection("127.0.0.1", int(port))
        except OSError:
            writer.write(REFUSED)
            writer.close()
            return
        try:
            if method == "CONNECT":
                writer.write(self._connect_answer)
                await _tunnel(reader, writer, *origin)
            else:
                await _forward(head, target.partition(authority)[2], reader, writer, *origin)
        finally:
            origin[1].transport.abort()


async def _forward(
    head: str,
    path: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    from_origin: asyncio.StreamReader,
    to_origin: asyncio.StreamWriter,
) -> None:
    """Pass on one request, in the form in which an origin takes it, and its reply."""
    lines = [line for line in head.split("\r\n")[1:] if not line.lower().startswith("proxy-")]
    to_origin.write("\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode())
    to_origin.write(await reader.readexactly(int(parse_headers(head)["content-length"])))
    reply_head = await from_origin.readuntil(b"\r\n\r\n")
    length = int(parse_headers(reply_head.decode().removesuffix("\r\n\r\n"))["content-length"])
    writer.write(reply_head + await from_origin.readexactly(length))


async def _tunnel(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    from_origin: asyncio.StreamReader,
    to_origin: asyncio.StreamWriter,
) -> None:
    await asyncio.gather(_pump(reader, to_origin), _pump(from_origin, writer))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        target.write(data)
    with suppress(OSError):
        target.close()
