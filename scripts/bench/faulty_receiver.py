"""A receiver with faults, on every address of this machine, which depend on the path; one that it does not know hangs.

`/busy` is 503 for an hour. The answers at `/interim`, `/blank-lines` and `/chunks` have no end.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
ENDLESS = {
    b"/interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    b"/blank-lines": (b"", b"\r\n"),
    b"/chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}
"""How these answers begin, and the part that then repeats."""
PART_BYTES = 1 << 16


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1]
            if path == b"/busy":
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                writer.write(BUSY)
            elif path in ENDLESS:
                await write_without_end(writer, *ENDLESS[path])
    writer.close()


async def write_without_end(writer: asyncio.StreamWriter, start: bytes, part: bytes) -> None:
    """Write until the caller has closed the connection. Raises ConnectionError."""
    writer.write(start)
    parts = part * (PART_BYTES // len(part))
    while True:
        writer.write(parts)
        await writer.drain()


async def serve(port: int) -> None:
    async with await asyncio.start_server(answer, "0.0.0.0", port, backlog=4096) as server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    asyncio.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
