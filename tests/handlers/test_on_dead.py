"""The handler of another one's dead tasks, by each carrier of tasks: a call over HTTP, a claim, the virtual clock."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from later import Dead, Later, Task
from later.client import Info
from later.core.clock import Clock
from later.testing import virtual_clock
from tests.client.api_servers import ApiServer, api_server
from tests.frameworks.requests import over_asgi
from tests.receiver.calls import build_call


@dataclass
class Remind:
    order: int


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as api:
        yield api


class Shop:
    """An application that gives its tasks up, and what it learns of them then."""

    def __init__(self, url: str | None) -> None:
        self.tasks = tasks = Later(url, callback="http://app.example/later")
        self.learned = asyncio.Queue[tuple[Remind, str, str, str]]()

        @tasks.handler("shop/remind", policy={"retry": 0})
        async def remind(reminder: Remind) -> None:
            raise Dead("no such order")

        @remind.on_dead
        async def gave_up(dead: Info, task: Task[None]) -> None:
            assert dead.last_error is not None
            learned = remind.payload_of(dead), dead.state, dead.last_error.message, task.topic
            await self.learned.put(learned)

        self.remind = remind
        self.gave_up = gave_up


DEAD_TASK = {
    "id": "t1", "topic": "shop/remind", "execute_time": 1, "max_retry": 0, "has_retry": 0, "content": '{"order":17}',
    "creat_time": 1, "state": "dead", "died_at": "2026-11-23T06:12:20.613Z", "attempts": 1,
    "last_error": {
        "reason": "gone", "status": 410, "message": "no such order", "at": "2026-11-23T06:12:20.613Z",
    },
}  # fmt: skip
LEARNED = (Remind(17), "dead", "no such order", "shop/remind.on_dead")


async def test_on_the_virtual_clock_a_dead_task_is_told_once_the_wishes_are_applied() -> None:
    shop = Shop(None)
    with virtual_clock(shop.tasks) as clock:
        await shop.remind.enqueue(Remind(1))
        await clock.advance("1s")
        assert shop.learned.empty()
        assert len(await shop.tasks.apply_policies()) == 3
        await shop.remind.enqueue(Remind(17))
        await clock.advance("1s")
    assert shop.learned.get_nowait() == LEARNED
    assert [dead.order for dead in clock.dead(shop.remind)] == [1, 17]
    assert [info.topic for info in clock.done(shop.gave_up)] == ["shop/remind"]


async def test_over_http_it_is_called_with_the_answer_of_a_query() -> None:
    shop, content = Shop(None), json.dumps(DEAD_TASK)
    headers, body = build_call("shop/remind.on_dead", content)
    assert (await over_asgi(shop.tasks.asgi())("POST", "/later", headers, body))[0] == 200
    assert shop.learned.get_nowait() == LEARNED


async def test_a_worker_that_claims_gets_both_the_task_and_its_death(api: ApiServer) -> None:
    shop = Shop(api.url)
    async with shop.tasks:
        await shop.tasks.client.set_policy("shop/remind", {"deliver": "pull"})
        await shop.tasks.apply_policies()
        worker = asyncio.create_task(shop.tasks.work())
        await shop.remind.enqueue(Remind(17))
        async with asyncio.timeout(60):
            assert await shop.learned.get() == LEARNED
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
