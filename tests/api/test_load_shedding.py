"""The limit on pending writes: beyond it, requests are refused and may be sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.api.api_fixture import MINIMAL, Answer, ApiFixture, serve_api

LIMIT = 3
BODIES = {"/create": MINIMAL, "/update": {"id": "a", "delay": 1}, "/list": {"topic": "order"}, "/explain": {"id": "a"}}
"""The bodies of calls that take more than an id."""
FULL = "3 tasks wait for the store already (--max-pending-writes 3)"


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    """The API on a store that does not answer until it is resumed."""
    async with serve_api(max_pending_writes=LIMIT) as built:
        built.client.resume = asyncio.Event()
        yield built


def resume_store(api: ApiFixture) -> None:
    assert api.client.resume is not None
    api.client.resume.set()


async def start_waiting(api: ApiFixture, path: str, *bodies: object) -> list[asyncio.Task[Answer]]:
    """Start requests, and return them when all of them wait for the store."""
    requests = [asyncio.create_task(api.post(path, body)) for body in bodies]
    await wait_until(lambda: api.metric("later_pending_writes") >= len(bodies))
    return requests


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # a metric sets no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("path", ["/query", "/delete", "/run-now", "/redrive", *BODIES])
async def test_beyond_the_limit_a_caller_is_refused_at_once(api: ApiFixture, path: str) -> None:
    waiting = await start_waiting(api, "/create", *[MINIMAL] * LIMIT)
    status, problem = await api.post(path, BODIES.get(path, {"id": "a"}))
    assert (status, problem["detail"]) == (503, FULL)
    resume_store(api)
    assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * LIMIT


async def test_a_batch_counts_as_all_of_its_tasks(api: ApiFixture) -> None:
    waiting = await start_waiting(api, "/create/batch", [MINIMAL] * LIMIT)
    assert (await api.post("/create", MINIMAL))[0] == 503
    assert (await api.post("/create/batch", [MINIMAL]))[0] == 503
    resume_store(api)
    assert [answer["created"] for _, answer in await asyncio.gather(*waiting)] == [LIMIT]


async def test_a_batch_over_the_limit_is_accepted_below_the_limit(api: ApiFixture) -> None:
    resume_store(api)
    status, answer = await api.post("/create/batch", [MINIMAL] * (5 * LIMIT))
    assert (status, answer["created"]) == (200, 5 * LIMIT)


async def test_a_refused_request_stores_nothing(api: ApiFixture) -> None:
    waiting = await start_waiting(api, "/create", *[MINIMAL] * LIMIT)
    await api.post("/create", {**MINIMAL, "id": "a"})
    resume_store(api)
    await asyncio.gather(*waiting)
    assert (await api.post("/query", {"id": "a"}))[0] == 404


async def test_requests_are_accepted_again_after_the_store_answers(api: ApiFixture) -> None:
    waiting = await start_waiting(api, "/create", *[MINIMAL] * LIMIT)
    resume_store(api)
    await asyncio.gather(*waiting)
    assert (await api.post("/create", MINIMAL))[0] == 200


async def test_a_client_that_disconnects_releases_its_reservation(api: ApiFixture) -> None:
    waiting = await start_waiting(api, "/create", *[MINIMAL] * LIMIT)
    for request in waiting:
        request.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    resume_store(api)
    await wait_until(lambda: api.metric("later_pending_writes") == 0)
