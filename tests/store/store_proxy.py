"""A proxy between a client and its store, which breaks connections."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """A proxy to a store that can silence or reset all open connections. It forwards new ones, unless it is cut."""

    def __init__(self, store: str) -> None:
        self.port = 0
        self._store = store
        self._client_writers: list[asyncio.StreamWriter] = []
        self._is_cut = False
        self._silenced: set[asyncio.StreamWriter] = set()
        self._copies: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1")
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for copy in self._copies:
                copy.cancel()

    def stop_forwarding(self) -> None:
        """Let nothing through the open connections any more, as a middlebox that has lost its state."""
        self._silenced.update(self._client_writers)

    def reset(self) -> None:
        """Reset the open connections: RST, not FIN."""
        for writer in self._client_writers:
            if writer.transport.is_closing():
                continue
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def cut(self) -> None:
        """Reset all connections, also new ones: the store is away."""
        self._is_cut = True
        self.reset()

    def restore(self) -> None:
        """Forward new connections again."""
        self._is_cut = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        self._client_writers.append(writer)
        from_store, to_store = await asyncio.open_unix_connection(self._store)
        for source, target in ((reader, to_store), (from_store, writer)):
            copy = asyncio.create_task(self._copy(source, target, writer))
            self._copies.add(copy)
            copy.add_done_callback(self._copies.discard)

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, client_writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await source.read(65_536):
                if client_writer not in self._silenced:
                    target.write(data)
        except OSError:
            pass
        finally:
            target.close()
