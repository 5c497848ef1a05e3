"""What waits for the store is bounded: beyond that, callers are told to come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.api.frontend import GOOD, Answer, Frontend, serve_frontend

LIMIT = 3
BODIES = {"/create": GOOD, "/update": {"id": "a", "delay": 1}, "/list": {"topic": "order"}, "/explain": {"id": "a"}}
"""Of calls that take more than an id."""
FULL = "3 tasks wait for the store already (--max-pending-writes 3)"


@pytest.fixture
async def frontend() -> AsyncIterator[Frontend]:
    """A frontend whose store is held still."""
    async with serve_frontend(backlog=LIMIT) as frontend:
        frontend.client.held = asyncio.Event()
        yield frontend


def go_on(frontend: Frontend) -> None:
    assert frontend.client.held is not None
    frontend.client.held.set()


async def waiting(frontend: Frontend, path: str, *bodies: object) -> list[asyncio.Task[Answer]]:
    """Requests under way, all of which have come as far as they can."""
    requests = [asyncio.create_task(frontend.post(path, body)) for body in bodies]
    await until(lambda: frontend.figure("later_pending_writes") >= len(bodies))
    return requests


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # a figure sets no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("path", ["/query", "/delete", "/run-now", "/redrive", *BODIES])
async def test_beyond_the_backlog_a_caller_is_sent_away_at_once(frontend: Frontend, path: str) -> None:
    early = await waiting(frontend, "/create", *[GOOD] * LIMIT)
    status, problem = await frontend.post(path, BODIES.get(path, {"id": "a"}))
    assert (status, problem["detail"]) == (503, FULL)
    go_on(frontend)
    assert [status for status, _ in await asyncio.gather(*early)] == [200] * LIMIT


async def test_a_batch_waits_as_all_of_its_tasks(frontend: Frontend) -> None:
    early = await waiting(frontend, "/create/batch", [GOOD] * LIMIT)
    assert (await frontend.post("/create", GOOD))[0] == 503
    assert (await frontend.post("/create/batch", [GOOD]))[0] == 503
    go_on(frontend)
    assert [answer["created"] for _, answer in await asyncio.gather(*early)] == [LIMIT]


async def test_a_batch_larger_than_the_backlog_is_taken_while_there_is_room(frontend: Frontend) -> None:
    go_on(frontend)
    status, answer = await frontend.post("/create/batch", [GOOD] * (5 * LIMIT))
    assert (status, answer["created"]) == (200, 5 * LIMIT)


async def test_who_was_sent_away_left_nothing_in_the_store(frontend: Frontend) -> None:
    early = await waiting(frontend, "/create", *[GOOD] * LIMIT)
    await frontend.post("/create", {**GOOD, "id": "a"})
    go_on(frontend)
    await asyncio.gather(*early)
    assert (await frontend.post("/query", {"id": "a"}))[0] == 404


async def test_when_the_store_goes_on_there_is_room_again(frontend: Frontend) -> None:
    early = await waiting(frontend, "/create", *[GOOD] * LIMIT)
    go_on(frontend)
    await asyncio.gather(*early)
    assert (await frontend.post("/create", GOOD))[0] == 200


async def test_a_caller_that_hangs_up_does_not_keep_its_room(frontend: Frontend) -> None:
    early = await waiting(frontend, "/create", *[GOOD] * LIMIT)
    for request in early:
        request.cancel()
    await asyncio.gather(*early, return_exceptions=True)
    go_on(frontend)
    await until(lambda: frontend.figure("later_pending_writes") == 0)
