"""The link of a process of `later run` with its supervisor: one says that it works, the other that it is to stop."""

from __future__ import annotations

import asyncio
import socket

WORKING = b"\n"
"""The only message: this process works. The supervisor sends none: it closes the link to let the process stop."""


class SupervisorLink:
    """A process's end of the link. Make it where its event loop runs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, descriptor: int) -> SupervisorLink:
        """Return the link at a descriptor that the process has inherited."""
        end = socket.socket(fileno=descriptor)
        end.set_inheritable(False)
        return cls(*await asyncio.open_connection(sock=end))

    def report_working(self) -> None:
        """Say that this process works."""
        self._writer.write(WORKING)

    async def wait_closed(self) -> None:
        """Wait until the supervisor lets this process stop, or has ended."""
        await self._reader.read()

    def close(self) -> None:
        self._writer.close()
