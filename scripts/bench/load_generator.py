"""Load generator for machines without wrk. It sends the load in `load.json` and `bodies` of the working directory."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length:"


class LoadState:
    """The requests to send, and the counts of those answered."""

    def __init__(self, requests: list[bytes], seconds: float, limit: int) -> None:
        self._requests = requests
        self._limit = limit
        self._sent = 0
        self.seconds = seconds
        self.answered = 0
        self.errors = 0
        self.ended = asyncio.Event()

    def next_request(self) -> bytes:
        self._sent += 1
        return self._requests[self._sent % len(self._requests)]

    def count_answer(self, good: bool) -> None:
        self.answered += 1
        self.errors += not good
        if self.answered == self._limit:
            self.ended.set()


class Connection(asyncio.Protocol):
    """A connection that sends a request as soon as the previous one is answered."""

    def __init__(self, state: LoadState) -> None:
        self._state = state
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class has the methods but not the base
        self._transport.write(self._state.next_request())

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(HEAD_END)
        if end < 0:
            return
        head = self._received[:end].lower()
        if len(self._received) >= end + len(HEAD_END) + content_length(head):
            self._received = b""
            self._state.count_answer(head.startswith(b"http/1.1 2"))
            self._transport.write(self._state.next_request())

    def connection_lost(self, error: Exception | None) -> None:
        self._state.errors += not self._state.ended.is_set()


def content_length(head: bytes) -> int:
    """Return the length of the body that follows a head in lower case."""
    at = head.find(LENGTH)
    return int(head[at + len(LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0


def build_request(url: str, body: bytes, key: str = "") -> bytes:
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def generate(load: dict[str, Any], bodies: list[bytes]) -> dict[str, float]:
    """Send requests until the time is over or the requested number is answered."""
    requests = [build_request(load["url"], body, load["key"]) for body in bodies]
    state = LoadState(requests, load["seconds"], load["requests"])
    parts, loop = urlsplit(load["url"]), asyncio.get_running_loop()
    started = time.perf_counter()
    for _ in range(load["connections"]):
        await loop.create_connection(lambda: Connection(state), parts.hostname, parts.port)
    loop.call_later(state.seconds, state.ended.set)
    await state.ended.wait()
    seconds = time.perf_counter() - started
    return {"requests": state.answered, "seconds": seconds, "errors": state.errors}


def main() -> None:
    load = json.loads(Path("load.json").read_text())
    bodies = Path("bodies").read_bytes().splitlines()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(generate(load, bodies))))


if __name__ == "__main__":
    main()
