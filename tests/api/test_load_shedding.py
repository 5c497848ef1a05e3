"""What waits for the store is bounded: beyond that, callers are told to come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.api.front import GOOD, Answer, Front, a_front

LIMIT = 3
BODIES = {"/create": GOOD, "/update": {"id": "a", "delay": 1}, "/list": {"topic": "order"}, "/explain": {"id": "a"}}
"""Of calls that take more than an id."""
FULL = "3 tasks wait for the store already (--max-pending-writes 3)"


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    """A frontend whose store is held still."""
    async with a_front(backlog=LIMIT) as front:
        front.client.held = asyncio.Event()
        yield front


def go_on(front: Front) -> None:
    assert front.client.held is not None
    front.client.held.set()


async def waiting(front: Front, path: str, *bodies: object) -> list[asyncio.Task[Answer]]:
    """Requests under way, all of which have come as far as they can."""
    requests = [asyncio.create_task(front.post(path, body)) for body in bodies]
    await until(lambda: front.figure("later_pending_writes") >= len(bodies))
    return requests


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # a figure sets no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("path", ["/query", "/delete", "/run-now", "/redrive", *BODIES])
async def test_beyond_the_backlog_a_caller_is_sent_away_at_once(front: Front, path: str) -> None:
    early = await waiting(front, "/create", *[GOOD] * LIMIT)
    status, problem = await front.post(path, BODIES.get(path, {"id": "a"}))
    assert (status, problem["detail"]) == (503, FULL)
    go_on(front)
    assert [status for status, _ in await asyncio.gather(*early)] == [200] * LIMIT


async def test_a_batch_waits_as_all_of_its_tasks(front: Front) -> None:
    early = await waiting(front, "/create/batch", [GOOD] * LIMIT)
    assert (await front.post("/create", GOOD))[0] == 503
    assert (await front.post("/create/batch", [GOOD]))[0] == 503
    go_on(front)
    assert [answer["created"] for _, answer in await asyncio.gather(*early)] == [LIMIT]


async def test_a_batch_larger_than_the_backlog_is_taken_while_there_is_room(front: Front) -> None:
    go_on(front)
    status, answer = await front.post("/create/batch", [GOOD] * (5 * LIMIT))
    assert (status, answer["created"]) == (200, 5 * LIMIT)


async def test_who_was_sent_away_left_nothing_in_the_store(front: Front) -> None:
    early = await waiting(front, "/create", *[GOOD] * LIMIT)
    await front.post("/create", {**GOOD, "id": "a"})
    go_on(front)
    await asyncio.gather(*early)
    assert (await front.post("/query", {"id": "a"}))[0] == 404


async def test_when_the_store_goes_on_there_is_room_again(front: Front) -> None:
    early = await waiting(front, "/create", *[GOOD] * LIMIT)
    go_on(front)
    await asyncio.gather(*early)
    assert (await front.post("/create", GOOD))[0] == 200


async def test_a_caller_that_hangs_up_does_not_keep_its_room(front: Front) -> None:
    early = await waiting(front, "/create", *[GOOD] * LIMIT)
    for request in early:
        request.cancel()
    await asyncio.gather(*early, return_exceptions=True)
    go_on(front)
    await until(lambda: front.figure("later_pending_writes") == 0)
