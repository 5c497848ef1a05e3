"""A receiver with faults, on every address of this machine: `/busy` is 503 for an hour, another path hangs."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST /busy "):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                writer.write(BUSY)
    writer.close()


async def serve(port: int) -> None:
    async with await asyncio.start_server(answer, "0.0.0.0", port, backlog=4096) as server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    asyncio.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
