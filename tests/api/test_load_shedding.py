"""The limit on pending writes: beyond it, callers are refused and may come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.api.frontend import MINIMAL, Answer, Frontend, serve_frontend

LIMIT = 3
BODIES = {"/create": MINIMAL, "/update": {"id": "a", "delay": 1}, "/list": {"topic": "order"}, "/explain": {"id": "a"}}
"""The bodies of calls that take more than an id."""
FULL = "3 tasks wait for the store already (--max-pending-writes 3)"


@pytest.fixture
async def frontend() -> AsyncIterator[Frontend]:
    """A frontend whose store waits until it is resumed."""
    async with serve_frontend(backlog=LIMIT) as frontend:
        frontend.client.resume = asyncio.Event()
        yield frontend


def resume_store(frontend: Frontend) -> None:
    assert frontend.client.resume is not None
    frontend.client.resume.set()


async def start_waiting(frontend: Frontend, path: str, *bodies: object) -> list[asyncio.Task[Answer]]:
    """Start requests, and return them when all of them wait for the store."""
    requests = [asyncio.create_task(frontend.post(path, body)) for body in bodies]
    await wait_until(lambda: frontend.metric("later_pending_writes") >= len(bodies))
    return requests


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # a figure sets no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("path", ["/query", "/delete", "/run-now", "/redrive", *BODIES])
async def test_beyond_the_limit_a_caller_is_refused_at_once(frontend: Frontend, path: str) -> None:
    early = await start_waiting(frontend, "/create", *[MINIMAL] * LIMIT)
    status, problem = await frontend.post(path, BODIES.get(path, {"id": "a"}))
    assert (status, problem["detail"]) == (503, FULL)
    resume_store(frontend)
    assert [status for status, _ in await asyncio.gather(*early)] == [200] * LIMIT


async def test_a_batch_counts_as_all_of_its_tasks(frontend: Frontend) -> None:
    early = await start_waiting(frontend, "/create/batch", [MINIMAL] * LIMIT)
    assert (await frontend.post("/create", MINIMAL))[0] == 503
    assert (await frontend.post("/create/batch", [MINIMAL]))[0] == 503
    resume_store(frontend)
    assert [answer["created"] for _, answer in await asyncio.gather(*early)] == [LIMIT]


async def test_a_batch_over_the_limit_is_accepted_below_the_limit(frontend: Frontend) -> None:
    resume_store(frontend)
    status, answer = await frontend.post("/create/batch", [MINIMAL] * (5 * LIMIT))
    assert (status, answer["created"]) == (200, 5 * LIMIT)


async def test_a_refused_request_stores_nothing(frontend: Frontend) -> None:
    early = await start_waiting(frontend, "/create", *[MINIMAL] * LIMIT)
    await frontend.post("/create", {**MINIMAL, "id": "a"})
    resume_store(frontend)
    await asyncio.gather(*early)
    assert (await frontend.post("/query", {"id": "a"}))[0] == 404


async def test_requests_are_accepted_again_after_the_store_answers(frontend: Frontend) -> None:
    early = await start_waiting(frontend, "/create", *[MINIMAL] * LIMIT)
    resume_store(frontend)
    await asyncio.gather(*early)
    assert (await frontend.post("/create", MINIMAL))[0] == 200


async def test_a_client_that_disconnects_releases_its_reservation(frontend: Frontend) -> None:
    early = await start_waiting(frontend, "/create", *[MINIMAL] * LIMIT)
    for request in early:
        request.cancel()
    await asyncio.gather(*early, return_exceptions=True)
    resume_store(frontend)
    await wait_until(lambda: frontend.metric("later_pending_writes") == 0)
