"""A receiver that needs little CPU time: it logs when each call arrived and answers that it is done."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import cast

import uvloop

from scripts.bench.load_generator import HEAD_END, content_length

BODY = b'{"code":100}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
WRITE_INTERVAL_S = 0.1
ID, DUE = b"webhook-id:", b"later-due:"


class Connection(asyncio.Protocol):
    """A connection with one call at a time."""

    def __init__(self, arrivals: list[bytes]) -> None:
        self._arrivals = arrivals
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class has the methods but not the base

    def data_received(self, data: bytes) -> None:
        at = time.time()
        self._received += data
        head, end, body = self._received.partition(HEAD_END)
        if end and len(body) >= content_length(head.lower()):
            self._received = b""
            self._arrivals.append(b"%.6f %s %s\n" % (at, header_value(head, ID), header_value(head, DUE)))
            self._transport.write(ANSWER)


def header_value(head: bytes, name: bytes) -> bytes:
    """Return a header's value, `-` if it is missing."""
    at = head.lower().find(b"\r\n" + name)
    if at < 0:
        return b"-"
    return head[at + 2 + len(name) :].split(b"\r\n", 1)[0].strip().replace(b" ", b"") or b"-"


async def receive(address: str, port: int, log: Path) -> None:
    """Receive calls until the process ends."""
    arrivals: list[bytes] = []
    await asyncio.get_running_loop().create_server(lambda: Connection(arrivals), address, port, backlog=4096)
    with log.open("ab", buffering=0) as file:
        while True:
            await asyncio.sleep(WRITE_INTERVAL_S)
            lines, arrivals[:] = b"".join(arrivals), []
            file.write(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("address")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        options = parser.parse_args()
        runner.run(receive(options.address, options.port, Path("arrivals.log")))


if __name__ == "__main__":
    main()
