"""Tasks put into a store by later's own verbs, without the API between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

import uvloop

from later.core.clock import Clock
from later.core.errors import LaterError
from later.core.task import Task, new_id
from later.store.client import Client, connect
from later.store.keys import Keys
from later.store.tasks import Tasks

PATIENCE_S = 60.0
AT_ONCE = 5_000
"""Tasks created in one round trip."""
FILLED_PER_S = 20_000
"""How fast a store is filled at least, beside whatever else goes on."""

Answer = TypeVar("Answer")
Result = TypeVar("Result")


def a_task(
    due_at: int,
    *,
    callback: str = "http://127.0.0.1:8888/success",
    topic: str = "order",
    own_id: str = "",
) -> Task:
    """A task as the bench's creates make them, due at `due_at` (ms)."""
    return Task(
        id=own_id or new_id(),
        own_id=bool(own_id),
        topic=topic,
        callback=callback,
        content="hello",
        headers={},
        max_retry=3,
        created_at=due_at - 15_000,
        execute_at=due_at,
        expires_at=None,
    )


def fill(url: str, tasks: Iterable[Task]) -> None:
    """Create the tasks."""
    using(url, lambda store: create_all(store, tasks))


async def create_all(store: Tasks, tasks: Iterable[Task]) -> None:
    left = iter(tasks)
    while some := list(islice(left, AT_ONCE)):
        good(await store.create(some))


def using(url: str, use: Callable[[Tasks], Awaitable[Result]]) -> Result:
    """What comes of using the store, in a loop of its own."""

    async def run() -> Result:
        clock = Clock(time.monotonic, time.time)
        client = Client(
            connect(url, clock, PATIENCE_S),
            clock,
            timeout_s=PATIENCE_S,
        )
        try:
            return await use(Tasks(client, Keys("later", 1)))
        finally:
            await client.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def good(answers: Sequence[Answer | LaterError]) -> list[Answer]:
    """The answers, none of which is an error; raised where one is."""
    for answer in answers:
        if isinstance(answer, LaterError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, LaterError)]
