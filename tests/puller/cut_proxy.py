"""A proxy between a worker and the API whose connections a test cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class CutProxy:
    """Passes connections on to the server at `url`. While `refuses` is true, new ones are closed at once."""

    def __init__(self, url: str) -> None:
        self._server_port = urlsplit(url).port
        self._writers: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Event()
        self.open = 0
        self.refuses = False
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CutProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await self.wait_for(0)

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def wait_for(self, number: int) -> None:
        """Wait until so many connections are open."""
        async with asyncio.timeout(60):
            while self.open != number:
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        pair = {writer, onward_writer}
        self._writers |= pair
        self._count(1)
        try:
            await asyncio.gather(_pass(reader, onward_writer), _pass(onward_reader, writer))
        finally:
            self._writers -= pair
            self._count(-1)

    def _count(self, change: int) -> None:
        self.open += change
        self._changed.set()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until their end, which is then that of the other side."""
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
