"""A receiver in a thread of the test's process: it records calls and answers by the rule of the path."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from aiohttp import web


class Call(NamedTuple):
    """A received call. `due` and `arrived` are Unix seconds of this machine's clock."""

    id: str
    attempt: int
    due: float
    arrived: float
    path: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> Mapping[str, Any]:
        return dict(json.loads(self.content))

    @property
    def lateness(self) -> float:
        return self.arrived - self.due


Rule = Callable[[Call], Awaitable[web.Response]]


def status(number: int, retry_after: str | None = None, headers: Mapping[str, str] | None = None) -> Rule:
    """Return a rule: this status with these headers, no body."""
    sent = {} if retry_after is None else {"Retry-After": retry_after}
    sent |= headers or {}

    async def answer(call: Call) -> web.Response:
        return web.Response(status=number, headers=sent)

    return answer


def code(number: int) -> Rule:
    """Return a rule: 200 with this code."""

    async def answer(call: Call) -> web.Response:
        return web.json_response({"code": number})

    return answer


done = status(200)


def delayed(seconds: float, then: Rule = done) -> Rule:
    """Return a rule: the answer of another rule, `seconds` later."""

    async def answer(call: Call) -> web.Response:
        await asyncio.sleep(seconds)
        return await then(call)

    return answer


hang = delayed(3600)


def once_set(event: threading.Event) -> Rule:
    """Return a rule: done, but not before the test sets the event."""

    async def answer(call: Call) -> web.Response:
        while not event.is_set():  # noqa: ASYNC110 - a thread's event cannot be awaited
            await asyncio.sleep(0.02)
        return await done(call)

    return answer


def in_sequence(*rules: Rule) -> Rule:
    """Return a rule that applies the rules one after another for each id; the last one repeats."""
    seen: dict[str, int] = defaultdict(int)

    async def answer(call: Call) -> web.Response:
        nth = min(seen[call.id], len(rules) - 1)
        seen[call.id] += 1
        return await rules[nth](call)

    return answer


class Receiver:
    """A receiver that records calls. `rules` maps a path to the rule of its answers; other paths are answered 200."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self.calls: list[Call] = []
        self.answered: set[str] = set()
        """Ids of answered calls, without calls that were cut off."""
        self.port = 0
        self._by_id: dict[str, list[Call]] = {}

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    @property
    def ids(self) -> set[str]:
        """The ids of all calls."""
        return set(self._by_id.copy())

    def calls_of(self, id: str) -> list[Call]:
        """Return the calls of one id, in order."""
        return list(self._by_id.get(id, ()))

    def attempts(self, id: str) -> list[int]:
        return [call.attempt for call in self.calls_of(id)]

    def repeated_calls(self) -> list[tuple[Call, Call]]:
        """Return the pairs of successive calls with the same id."""
        lists = [self.calls_of(id) for id in self.ids]
        return [pair for calls in lists for pair in pairwise(calls)]

    async def handle(self, request: web.BaseRequest) -> web.Response:
        arrived = time.time()
        call = Call(
            id=request.headers["webhook-id"],
            attempt=int(request.headers["later-attempt"]),
            due=datetime.fromisoformat(request.headers["later-due"]).timestamp(),
            arrived=arrived,
            path=request.path,
            headers=request.headers,
            content=await request.read(),
        )
        self.calls.append(call)
        self._by_id.setdefault(call.id, []).append(call)
        response = await self.rules.get(call.path, done)(call)
        self.answered.add(call.id)
        return response


@contextmanager
def run_receiver() -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    receiver, up, loop = Receiver(), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(_serve(receiver, up, stop)))
    thread.start()
    try:
        assert up.wait(10), "the receiver does not start"
        yield receiver
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _serve(receiver: Receiver, up: threading.Event, stop: asyncio.Event) -> None:
    server = web.Server(receiver.handle, access_log=None, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0, backlog=1024)
    await site.start()
    receiver.port = runner.addresses[0][1]
    up.set()
    try:
        await stop.wait()
    finally:
        await runner.cleanup()
