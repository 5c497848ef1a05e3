"""Fill a store with tasks through later's own store package, without the API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

import uvloop

from later.core.clock import Clock
from later.core.errors import LaterError
from later.core.policy import DEFAULT_POLICY
from later.core.task import Task, new_id
from later.store.client import StoreClient
from later.store.connections import connect
from later.store.keys import Keys
from later.store.open import build_store
from later.store.tasks import Tasks

STORE_TIMEOUT_S = 60.0
TASKS_PER_CALL = 5_000
"""Number of tasks created in one round trip."""
SEEDED_PER_S = 20_000
"""A rate at which a store can be filled even on a busy machine, in tasks per second."""

Answer = TypeVar("Answer")
Result = TypeVar("Result")


def build_task(
    due_at: int,
    *,
    callback: str = "http://127.0.0.1:8888/success",
    topic: str = "order",
    own_id: str = "",
) -> Task:
    """Return a task like those that the benchmark creates, due at `due_at` (ms)."""
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


def seed_store(url: str, tasks: Iterable[Task], *, shards: int = 1) -> None:
    """Create the tasks in the store at `url`."""
    run_with_tasks(url, lambda store: create_all(store, tasks), shards=shards)


async def create_all(store: Tasks, tasks: Iterable[Task]) -> None:
    remaining = iter(tasks)
    while chunk := list(islice(remaining, TASKS_PER_CALL)):
        raise_errors(await store.create(chunk))


def run_with_tasks(url: str, call: Callable[[Tasks], Awaitable[Result]], *, shards: int = 1) -> Result:
    """Connect to the store at `url`, run `call` on its tasks in a new event loop, and return the result."""

    async def run() -> Result:
        keys, clock = Keys("later", shards), Clock(time.monotonic, time.time)
        client = StoreClient(connect(url, clock, STORE_TIMEOUT_S), clock, timeout_s=STORE_TIMEOUT_S)
        try:
            return await call(build_store(client, clock, keys, DEFAULT_POLICY).tasks)
        finally:
            await client.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def raise_errors(answers: Sequence[Answer | LaterError]) -> list[Answer]:
    """Return the answers; raise the first that is an error."""
    for answer in answers:
        if isinstance(answer, LaterError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, LaterError)]
