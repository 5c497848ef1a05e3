"""A receiver that answers each path with the bytes that a test chose, cut into writes where the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from tests.receivers import DONE, Connection, Receiver

LOOP_PASSES = 3
"""Passes of the event loop after which bytes that were written on loopback have been read."""


class End(Enum):
    """The end of a connection after a reply."""

    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"


class ScriptedReply(NamedTuple):
    """A reply as the bytes of its connection, the places at which they are cut into writes, and what follows them."""

    raw: bytes
    cuts: tuple[int, ...] = ()
    end: End = End.KEEP

    def writes(self) -> list[bytes]:
        """Return the bytes of each write."""
        places = sorted({0, len(self.raw), *(cut for cut in self.cuts if 0 < cut < len(self.raw))})
        return [self.raw[start:end] for start, end in pairwise(places)]


class ScriptedReceiver:
    """A server that answers `DONE` to each path that no reply was set for."""

    def __init__(self) -> None:
        self._replies: dict[str, ScriptedReply] = {}
        self._writing = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._receiver = Receiver(self._answer)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[ScriptedReceiver]:
        async with self._receiver.listen():
            yield self

    def url(self, path: str, reply: ScriptedReply | None = None) -> str:
        """Return the URL that is answered with `reply`."""
        if reply is not None:
            self._replies[path] = reply
        return f"{self._receiver.url}{path}"

    async def wait_idle(self) -> None:
        """Wait until every reply was written, and read by whoever still reads."""
        await self._idle.wait()
        await _let_peer_read()

    async def _answer(self, connection: Connection) -> None:
        while True:
            head, _ = await connection.read_request()
            reply = self._replies.get(head.split(" ")[1], ScriptedReply(DONE))
            await self._write(connection, reply)
            if reply.end is End.CLOSE:
                connection.close()
                await connection.wait_closed()
                return
            if reply.end is End.RESET:
                connection.reset()
                return

    async def _write(self, connection: Connection, reply: ScriptedReply) -> None:
        self._writing += 1
        self._idle.clear()
        try:
            for written in reply.writes():
                await connection.write(written)
                await _let_peer_read()
        finally:
            self._writing -= 1
            if not self._writing:
                self._idle.set()


async def _let_peer_read() -> None:
    for _ in range(LOOP_PASSES):
        await asyncio.sleep(0)
