"""The worker of an application against the API itself: what its handlers may do, and connections that are cut."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from later import Later, Task
from later.client import AsyncClient
from later.core.clock import Clock
from later.core.errors import Conflict, InFlight, NotFound
from later.puller import pull_worker
from later.puller.claim_source import ApiClaims
from tests.client.api_servers import ApiServer, api_server
from tests.puller.cut_proxy import CutProxy


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as server:
        yield server


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_worker, "RETRY_S", 0.02)


class Seen:
    """What handlers have noted, and a wait for it."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        self._changed = asyncio.Event()

    def note(self, what: object) -> None:
        self.noted.append(what)
        self._changed.set()

    async def wait_for(self, number: int) -> None:
        async with asyncio.timeout(60):
            while len(self.noted) < number:
                self._changed.clear()
                await self._changed.wait()


async def pull(api: ApiServer, *topics: str) -> None:
    async with AsyncClient(api.url) as client:
        for topic in topics:
            await client.set_policy(topic, {"deliver": "pull"})


@asynccontextmanager
async def working(tasks: Later, drain: float = 0) -> AsyncIterator[None]:
    async with tasks:
        worker = asyncio.create_task(tasks.work(drain=drain))
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


async def wait_until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.01)


async def wait_until_ended(query: Callable[[str], Awaitable[object]], ids: list[str]) -> None:
    """Wait until there is none of these tasks any more."""

    async def has_ended() -> bool:
        try:
            await query(ids[-1])
        except NotFound:
            ids.pop()
        return not ids

    ids = list(ids)
    await wait_until(has_ended)


async def test_handlers_run_beside_each_other_each_with_all_of_its_runs_and_no_more(api: ApiServer) -> None:
    tasks, seen, all_run = Later(api.url), Seen(), asyncio.Barrier(9)
    running, most = Counter[str](), Counter[str]()

    async def meet(task: Task[Any]) -> None:
        running[task.topic] += 1
        most[task.topic] = max(most[task.topic], running[task.topic])
        await all_run.wait()  # passes only if three runs of each handler overlap
        running[task.topic] -= 1
        seen.note(task.id)

    topics = ["beside-a", "beside-b", "beside-c"]
    for topic in topics:
        tasks.handler(topic, concurrency=3)(meet)
    await pull(api, *topics)
    async with working(tasks):
        for _ in range(6):
            for topic in topics:
                await tasks.enqueue(topic)
        await seen.wait_for(18)
    assert (len(set(seen.noted)), most) == (18, dict.fromkeys(topics, 3))


@dataclass
class Order:
    number: int


async def test_contents_that_cannot_be_read_fail_and_the_others_are_done(api: ApiServer) -> None:
    tasks, seen = Later(api.url), Seen()

    @tasks.handler("garbage", concurrency=1)
    async def work(order: Order) -> None:
        seen.note(order.number)

    await pull(api, "garbage")
    async with working(tasks):
        broken = [(await tasks.enqueue("garbage", content)).id for content in ("{", '{"number": "x"}', "")]
        await work.enqueue(Order(1))
        await seen.wait_for(1)
        errors = [(await tasks.get(id)).last_error for id in broken]
    assert [error.reason for error in errors if error is not None] == ["payload"] * 3
    assert [error.message.partition(":")[0] for error in errors if error is not None] == [
        "DecodeError", "ValidationError", "DecodeError",
    ]  # fmt: skip


async def test_two_workers_share_the_tasks_of_a_topic_and_each_is_done_once(api: ApiServer) -> None:
    seen = Seen()
    workers = [Later(api.url), Later(api.url)]

    async def work(task: Task[Any]) -> None:
        seen.note(task.id)

    for tasks in workers:
        tasks.handler("shared", concurrency=2)(work)
    await pull(api, "shared")
    async with working(workers[0]), working(workers[1]):
        ids = [task.id for task in await asyncio.gather(*(workers[0].enqueue("shared") for _ in range(60)))]
        await seen.wait_for(60)
        await wait_until_ended(workers[0].get, ids)
    assert Counter(seen.noted) == Counter(ids)


async def test_a_task_in_flight_is_not_changed_and_its_id_makes_a_new_life_after_its_end(api: ApiServer) -> None:
    tasks, seen, end = Later(api.url), Seen(), asyncio.Event()

    @tasks.handler
    async def again(order: int, task: Task[Any]) -> None:
        if order == 1:
            with pytest.raises(InFlight):
                await tasks.update(task.id, delay=60)
            with pytest.raises(Conflict):
                await again.enqueue(2, key="again", if_exists="update")
        seen.note((order, task.id))
        await end.wait()

    await pull(api, "again")
    async with working(tasks, drain=60):
        id = (await again.enqueue(1, key="again", remember=0)).id
        await seen.wait_for(1)
        end.set()
        await wait_until_ended(tasks.get, [id])
        assert (await again.enqueue(3, key="again", if_exists="update")).id == id
        await seen.wait_for(2)
    assert seen.noted == [(1, id), (3, id)]


async def test_connections_that_are_cut_cost_no_task_and_no_run(api: ApiServer) -> None:
    async with CutProxy(api.url).running() as proxy, AsyncClient(api.url) as client:
        tasks, seen, ends = Later(proxy.url, patience=0.2), Seen(), asyncio.Event()

        @tasks.handler("cut", concurrency=4)
        async def work(task: Task[Any]) -> None:
            seen.note(task.id)
            if len(seen.noted) <= 4:
                await ends.wait()

        tasks.handler("cut-2")(lambda: None)
        tasks.handler("cut-3")(lambda: None)
        await pull(api, "cut", "cut-2", "cut-3")
        async with working(tasks):
            await proxy.wait_for(3)  # a waiting claim for each handler
            for _ in range(3):
                proxy.cut()
                await proxy.wait_for(0)
                await proxy.wait_for(3)
            ids = [(await client.create("cut")).id for _ in range(4)]
            await seen.wait_for(4)
            proxy.refuses = True
            proxy.cut()
            ends.set()  # what runs ends while nobody can be told
            await asyncio.sleep(0.5)
            assert {(await client.query(id)).state for id in ids} == {"unack"}
            proxy.refuses = False
            ids += [(await client.create("cut")).id for _ in range(20)]
            await wait_until_ended(client.query, ids)
    assert Counter(seen.noted) == Counter(ids)


async def test_a_claim_waits_for_less_than_a_second_if_it_is_told_to(api: ApiServer) -> None:
    async with AsyncClient(api.url) as client:
        await client.set_policy("short", {"deliver": "pull"})
        claims = ApiClaims(client, lambda: None)
        assert await claims.claim(["short"], 1, 0.05) == []
        id = (await client.create("short")).id
        [claim] = await claims.claim(["short"], 1, 0.05) or await claims.claim(["short"], 1, 20)
        assert claim.task.id == id


def fail() -> None:
    raise KeyError("amount")


ENDS: dict[str, tuple[Callable[[], object], str, str]] = {
    "true": (lambda: True, "", ""),
    "false": (lambda: False, "", "returned False"),
    "none": (lambda: None, "", "returned None"),
    "empty": (lambda: "", "", "returned ''"),
    "raised": (fail, "KeyError: 'amount'", "KeyError: 'amount'"),
}
"""What a handler does, and the message of its failure without and with `strict`; none if it is done."""


async def has_failed(tasks: Later, id: str) -> bool:
    return (await tasks.get(id)).last_error is not None


def make_async(function: Callable[[], object]) -> Callable[[], Any]:
    async def call() -> object:
        return function()

    return call


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
async def test_only_exceptions_fail_and_strictly_all_but_true(api: ApiServer, is_async: bool) -> None:
    tasks, expected = Later(api.url), dict[str, str]()
    for name, (end, message, strict_message) in ENDS.items():
        for strict in (False, True):
            topic = f"end-{is_async}-{name}-{strict}"
            tasks.handler(topic, strict=strict)(make_async(end) if is_async else end)
            expected[topic] = strict_message if strict else message
    await pull(api, *expected)
    async with working(tasks), asyncio.timeout(60):
        for topic, message in expected.items():
            id = (await tasks.enqueue(topic)).id
            if not message:
                await wait_until_ended(tasks.get, [id])
                continue
            await wait_until(partial(has_failed, tasks, id))
            last_error = (await tasks.get(id)).last_error
            assert last_error is not None
            assert last_error.message == message, topic
