"""Clients of `later`'s API that claim and ack tasks, or query one. Arguments: what to do, and its settings as JSON."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from scripts.bench.load_generator import HEAD_END, build_request, content_length

CREATED_AT_ONCE = 5_000
LEASE = re.compile(rb'"lease":("[^"]*")')
NONE_LOST = b'"lost":[]'
SETTLE_S = 0.01
"""How long a claim that waits is given to begin, before its task is created."""
WAIT_S = 30
"""How long a claim waits where no task comes."""
QUERY_PAUSE_S = 0.001
CONNECTIONS_EACH = 8
"""Connections of those that create, and of those that wait: some of them meet in one process, others do not."""


# One call after another


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


async def create(caller: Caller, tasks: int, topic: str = "jobs") -> None:
    item = json.dumps({"topic": topic, "content": "hello"}).encode()
    for start in range(0, tasks, CREATED_AT_ONCE):
        items = b",".join([item] * min(CREATED_AT_ONCE, tasks - start))
        await caller.post("/create/batch", b"[" + items + b"]")


async def create_tasks(url: str, tasks: int) -> dict[str, Any]:
    async with connect(url) as caller:
        await create(caller, tasks)
    return {}


async def measure_waits(url: str, tasks: int, topics: Sequence[str] = ("jobs",)) -> dict[str, Any]:
    """Return how long after its create's answer each task was in the answer to a claim that waited for it (ms).

    Each claim names all of these topics. The tasks are created in the last one.
    """
    waits: list[float] = []
    body = json.dumps({"topics": topics, "wait": 10}).encode()
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(connect(url)) for _ in range(2 * CONNECTIONS_EACH)]
        for number in range(tasks):
            creator = callers[number % CONNECTIONS_EACH]
            consumer = callers[CONNECTIONS_EACH + number // CONNECTIONS_EACH % CONNECTIONS_EACH]
            claim = asyncio.ensure_future(consumer.post("/claim", body))
            await asyncio.sleep(SETTLE_S)
            await create(creator, 1, topics[-1])
            started = time.perf_counter()
            leases = LEASE.findall(await claim)
            waits.append((time.perf_counter() - started) * 1000)
            await consumer.post("/ack", b'{"leases":[%s]}' % b",".join(leases))
    return {"waits": waits}


async def wait_for_nothing(url: str, waiters: int, topics_each: int) -> dict[str, Any]:
    """Let claims wait, each on so many topics of its own, until the process is ended.

    The first waits are of different lengths, so that the claims do not all end and begin at the same time.
    """

    async def wait(caller: Caller, number: int) -> None:
        topics = [f"bench/{topic}" for topic in range(number * topics_each, (number + 1) * topics_each)]
        wait_s = 1 + number % WAIT_S
        while True:
            await caller.post("/claim", json.dumps({"topics": topics, "wait": wait_s}).encode())
            wait_s = WAIT_S

    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(connect(url)) for _ in range(waiters)]
        await asyncio.gather(*(wait(caller, number) for number, caller in enumerate(callers)))
    return {}


async def measure_queries(url: str, id: str, seconds: float) -> dict[str, Any]:
    """Query one task again and again, and return how long each answer took (ms)."""
    times: list[float] = []
    body = json.dumps({"id": id}).encode()
    async with connect(url) as caller:
        ends_at = time.perf_counter() + seconds
        while (started := time.perf_counter()) < ends_at:
            await caller.post("/query", body)
            times.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(QUERY_PAUSE_S)
    return {"times": times}


# As fast as the API answers


class Work:
    """The number of tasks to claim, `at_a_time` in a call, and of those claimed and finished by all connections.

    Tasks that are claimed are the `done` of the next claim, or else they are acked by a call of their own.
    """

    def __init__(self, url: str, tasks: int, at_a_time: int, connections: int, *, is_done_by_claim: bool) -> None:
        self.url = url
        self.at_a_time = at_a_time
        self.is_done_by_claim = is_done_by_claim
        self.claimed = 0
        self.finished = 0
        self.failure = ""
        self.ended = asyncio.Event()
        self._tasks = tasks
        self._open = connections

    @property
    def is_claimed(self) -> bool:
        return self.claimed >= self._tasks

    def close_one(self) -> None:
        self._open -= 1
        if not self._open:
            self.ended.set()

    def fail(self, failure: str) -> None:
        if not self.ended.is_set():
            self.failure = failure
            self.ended.set()


class Consumer(asyncio.Protocol):
    """A connection that claims and finishes tasks until all are claimed, or nothing is due."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._received = b""
        self._is_claiming = True
        self._finishing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class has the methods but not the base
        self._send("/claim", b'{"topic":"jobs","max":%d}' % self._work.at_a_time)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(HEAD_END)
        if end and len(body) >= content_length(head.lower()):
            self._received = b""
            if head.startswith(b"HTTP/1.1 200") and NONE_LOST in body:
                self._continue(LEASE.findall(body) if self._is_claiming else [])
            else:
                self._work.fail(body.decode())

    def _continue(self, leases: list[bytes]) -> None:
        """Count what the answer says, and send the next call, if there is one."""
        work, tokens = self._work, b",".join(leases)
        work.finished += self._finishing
        work.claimed += len(leases)
        is_empty = self._is_claiming and not leases
        self._finishing = len(leases)
        self._is_claiming = not leases or (work.is_done_by_claim and not work.is_claimed)
        if is_empty or (work.is_claimed and not leases):
            work.close_one()
        elif not self._is_claiming:
            self._send("/ack", b'{"leases":[%s]}' % tokens)
        elif not leases:
            self._send("/claim", b'{"topic":"jobs","max":%d}' % work.at_a_time)
        else:
            self._send("/claim", b'{"topic":"jobs","max":%d,"done":[%s]}' % (work.at_a_time, tokens))

    def _send(self, path: str, body: bytes) -> None:
        self._transport.write(build_request(self._work.url + path, body))

    def connection_lost(self, error: Exception | None) -> None:
        self._work.fail("the API closed a connection")


async def measure_rate(
    url: str, connections: int, at_a_time: int, tasks: int, is_done_by_claim: bool
) -> dict[str, Any]:
    """Let consumers claim and finish so many tasks; return the number finished, and the time and CPU time taken."""
    work = Work(url, tasks, at_a_time, connections, is_done_by_claim=is_done_by_claim)
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    started, cpu_before_s = time.perf_counter(), time.process_time()
    for _ in range(connections):
        await loop.create_connection(lambda: Consumer(work), str(parts.hostname), int(parts.port or 80))
    await work.ended.wait()
    if work.failure:
        raise SystemExit(work.failure)
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_before_s
    return {"tasks": work.finished, "seconds": seconds, "cpu_s": cpu_s}


MEASUREMENTS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "create": create_tasks,
    "rate": measure_rate,
    "waits": measure_waits,
    "idle": wait_for_nothing,
    "queries": measure_queries,
}


def main() -> None:
    measure, settings = MEASUREMENTS[sys.argv[1]], json.loads(sys.argv[2])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(**settings))))


if __name__ == "__main__":
    main()
