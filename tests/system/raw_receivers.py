"""A receiver of bytes in a thread of the test's process, on every address of this machine."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class RawReceiver:
    """A receiver that answers 200, or without an end: `endless` maps a path to a beginning and what then repeats."""

    def __init__(self, endless: dict[str, tuple[bytes, bytes]] | None = None) -> None:
        self._endless = endless or {}
        self.calls: Counter[str] = Counter()
        """The calls by path."""
        self.port = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                path = (await reader.readuntil(b"\r\n")).split(b" ")[1].decode()
                length = 0
                while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                await reader.readexactly(length)
                self.calls[path] += 1
                if path not in self._endless:
                    writer.write(ANSWER)
                    continue
                beginning, repeated = self._endless[path]
                writer.write(beginning)
                while True:
                    writer.write(repeated * (1 + 65_536 // len(repeated)))
                    await writer.drain()
        writer.transport.abort()


@contextmanager
def run_raw_receiver(endless: dict[str, tuple[bytes, bytes]] | None = None) -> Iterator[RawReceiver]:
    """Run a receiver on a free port."""
    receiver, up = RawReceiver(endless), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(receiver.answer, "0.0.0.0", 0, backlog=1024)
        receiver.port = server.sockets[0].getsockname()[1]
        up.set()
        await stop.wait()
        server.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    up.wait()
    try:
        yield receiver
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
