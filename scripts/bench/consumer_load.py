"""Consumers of `later`'s API, which claim and ack tasks. The arguments are what to do, and its settings as JSON."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import uvloop

from scripts.bench.load_generator import HEAD_END, build_request, content_length

CREATED_AT_ONCE = 5_000
LEASE = re.compile(rb'"lease":("[^"]*")')
SETTLE_S = 0.01
"""How long a claim that waits is given to begin, before its task is created."""


class Caller:
    """One connection to the API."""

    def __init__(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._url, self._reader, self._writer = url, reader, writer

    async def post(self, path: str, body: bytes) -> bytes:
        self._writer.write(build_request(self._url + path, body))
        head = (await self._reader.readuntil(HEAD_END)).lower()
        answer = await self._reader.readexactly(content_length(head))
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"{path}: {answer.decode()}")
        return answer


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Caller]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
    yield Caller(url, reader, writer)
    writer.close()


async def create(caller: Caller, tasks: int) -> None:
    for start in range(0, tasks, CREATED_AT_ONCE):
        items = b",".join([b'{"topic":"jobs","content":"hello"}'] * min(CREATED_AT_ONCE, tasks - start))
        await caller.post("/create/batch", b"[" + items + b"]")


async def consume(url: str, at_a_time: int) -> int:
    """Claim until nothing is due: one task and then its ack, or many with the leases of those before."""
    done, count = b"", 0
    async with connect(url) as caller:
        while True:
            with_done = b"" if at_a_time == 1 else b',"done":[%s]' % done
            answer = await caller.post("/claim", b'{"topic":"jobs","max":%d%s}' % (at_a_time, with_done))
            leases = LEASE.findall(answer)
            if not leases:
                return count
            count += len(leases)
            done = b",".join(leases)
            if at_a_time == 1:
                await caller.post("/ack", b'{"leases":[%s]}' % done)


async def create_tasks(url: str, tasks: int) -> dict[str, float]:
    async with connect(url) as caller:
        await create(caller, tasks)
    return {}


async def measure_rate(url: str, connections: int, at_a_time: int) -> dict[str, float]:
    started = time.perf_counter()
    counts = await asyncio.gather(*(consume(url, at_a_time) for _ in range(connections)))
    return {"tasks": sum(counts), "seconds": time.perf_counter() - started}


async def measure_waits(url: str, tasks: int) -> dict[str, Any]:
    """Return how long after its create's answer each task was in the answer to a claim that waited for it (ms)."""
    waits: list[float] = []
    async with connect(url) as creator, connect(url) as consumer:
        for _ in range(tasks):
            claim = asyncio.ensure_future(consumer.post("/claim", b'{"topic":"jobs","wait":10}'))
            await asyncio.sleep(SETTLE_S)
            await create(creator, 1)
            started = time.perf_counter()
            leases = LEASE.findall(await claim)
            waits.append((time.perf_counter() - started) * 1000)
            await consumer.post("/ack", b'{"leases":[%s]}' % b",".join(leases))
    return {"waits": waits}


MEASUREMENTS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "create": create_tasks,
    "rate": measure_rate,
    "waits": measure_waits,
}


def main() -> None:
    measure, settings = MEASUREMENTS[sys.argv[1]], json.loads(sys.argv[2])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(**settings))))


if __name__ == "__main__":
    main()
