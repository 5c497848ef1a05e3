"""An application as a queue in its process: over a daemon's claims, and over a store without a daemon."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

pytest.importorskip("redis", reason="a store is needed")

from later import Busy, Dead, Hold, Later, Retry, Task  # after it is known that the tests can run
from later.client.answers import Info
from later.core.clock import Clock
from later.core.errors import Conflict, NotFound, Refused
from later.core.policy_scopes import namespace_scope
from later.handlers.context import variables
from later.handlers.payload_codec import TextCodec
from later.in_process.store_claims import StoreClaims
from later.puller.claim_source import ApiClaims, ClaimSource
from tests.cases import each_case
from tests.client.api_servers import ApiServer, api_server
from tests.servers import shared_server

NUMBERS = count()
REQUEST: ContextVar[str] = ContextVar("request")

on_both = each_case("carrier", ["daemon", "store"])


@dataclass
class Remind:
    order: int


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as api:
        yield api


async def build(carrier: str, api: ApiServer, **options: Any) -> Later:
    """Return an application with a namespace of its own, whose tasks are pulled."""
    namespace = f"queue{next(NUMBERS)}"
    if carrier == "store":
        return Later(StoreClaims(shared_server(), prefix=namespace), namespace=namespace, **options)
    tasks = Later(api.url, namespace=namespace, **options)
    await tasks.client.set_policy(namespace_scope(namespace), {"deliver": "pull", "retry_base": 0.01})
    return tasks


@asynccontextmanager
async def working(tasks: Later, drain: float = 20) -> AsyncIterator[None]:
    async with tasks:
        worker = asyncio.create_task(tasks.work(drain=drain))
        try:
            async with asyncio.timeout(60):
                yield
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


async def wait_for_end(tasks: Later, id: str) -> None:
    """Wait until a task is done: then there is none."""
    while True:
        try:
            await tasks.get(id)
        except NotFound:
            return
        await asyncio.sleep(0.01)


@on_both
async def test_three_handlers_run_three_tasks_each_at_a_time(carrier: str, api: ApiServer) -> None:
    tasks, all_run = await build(carrier, api), asyncio.Barrier(9)

    async def work(number: int) -> None:
        await all_run.wait()

    handlers = [tasks.handler(f"kind-{kind}", concurrency=3)(work) for kind in range(3)]
    async with working(tasks):
        ids = [(await handler.enqueue(number)).id for handler in handlers for number in range(3)]
        for id in ids:
            await wait_for_end(tasks, id)


@on_both
async def test_twenty_long_handlers_run_ten_at_a_time(carrier: str, api: ApiServer) -> None:
    tasks, ten_run, running, most = await build(carrier, api), asyncio.Barrier(10), 0, 0

    @tasks.handler(concurrency=10)
    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ten_run.wait()
        running -= 1

    async with working(tasks):
        enqueued = await tasks.enqueue_many(work.item(number) for number in range(20))
        for each in enqueued:
            await wait_for_end(tasks, each.id)  # type: ignore[union-attr]  # created
    assert most == 10


@on_both
async def test_fifty_tasks_that_are_enqueued_at_once_have_fifty_ids_and_run_once_each(
    carrier: str, api: ApiServer
) -> None:
    tasks, runs = await build(carrier, api), Counter[int]()

    @tasks.handler
    async def work(number: int) -> None:
        runs[number] += 1

    async with working(tasks):
        enqueued = await asyncio.gather(*(work.enqueue(number) for number in range(50)))
        for each in enqueued:
            await wait_for_end(tasks, each.id)
    assert len({each.id for each in enqueued}) == 50
    assert runs == dict.fromkeys(range(50), 1)


@on_both
async def test_a_backlog_of_n_gives_n_runs_by_two_workers_together(carrier: str, api: ApiServer) -> None:
    tasks, runs = await build(carrier, api), Counter[int]()

    @tasks.handler
    async def work(number: int) -> None:
        runs[number] += 1

    async with tasks:
        enqueued = await tasks.enqueue_many(work.item(number) for number in range(100))
        async with working(tasks), working(tasks):
            for each in enqueued:
                await wait_for_end(tasks, each.id)  # type: ignore[union-attr]  # created
    assert runs == dict.fromkeys(range(100), 1)


@on_both
async def test_a_payload_that_is_no_json_fails_with_the_reason_and_the_others_run(carrier: str, api: ApiServer) -> None:
    tasks, done = await build(carrier, api), asyncio.Event()

    @tasks.handler(concurrency=1)
    async def work(number: int) -> None:
        done.set()

    async with working(tasks):
        garbage = await tasks.enqueue("work", "garbage", retry=0)
        await work.enqueue(7)
        await done.wait()
        while True:
            info = await tasks.get(garbage.id)
            if info.state == "dead":
                break
            await asyncio.sleep(0.01)
    assert info.last_error is not None
    assert "JSON is malformed" in info.last_error.message


@on_both
async def test_each_end_of_a_handler_decides_on_its_task(carrier: str, api: ApiServer) -> None:
    tasks = await build(carrier, api)
    ends: dict[str, Exception] = {
        "error": KeyError("amount"),
        "retry": Retry("locked", after="1h"),
        "busy": Busy("full", after="1h"),
        "hold": Hold("1h", "rate limit"),
        "dead": Dead("no such order"),
    }

    def work(end: str) -> object:
        if end in ends:
            raise ends[end]
        return False

    handler = tasks.handler(work)
    strict: Any = tasks.handler("strict", strict=True)(work)
    async with working(tasks):
        ids = {end: (await handler.enqueue(end)).id for end in ("done", *ends)}
        ids["strict"] = (await strict.enqueue("done", retry=0)).id
        ids["payload"] = (await tasks.enqueue("work", "garbage", retry=0)).id
        await wait_for_end(tasks, ids.pop("done"))
        found: dict[str, Info] = {}
        while len(found) < len(ids):
            for end, id in ids.items():
                info = await tasks.get(id)
                if info.last_error is not None and info.state != "unack":
                    found[end] = info
            await asyncio.sleep(0.01)
    told = {end: (info.state, info.retries_used, info.last_error.message) for end, info in found.items()  # type: ignore[union-attr]  # see above
            if end not in ("error", "payload")}  # fmt: skip
    assert told == {
        "retry": ("error", 1, "locked"),
        "busy": ("error", 0, "full"),
        "hold": ("error", 0, "rate limit"),
        "dead": ("dead", 1, "no such order"),
        "strict": ("dead", 0, "1 failure: returned False"),
    }
    assert "KeyError: 'amount'" in str(found["error"].last_error)
    assert (found["payload"].state, "malformed" in str(found["payload"].last_error)) == ("dead", True)


@on_both
async def test_a_task_that_runs_is_in_flight_until_the_end_of_its_lease(carrier: str, api: ApiServer) -> None:
    tasks, seen = await build(carrier, api), asyncio.Queue[Info]()

    @tasks.handler
    async def work(number: int, task: Task[None]) -> None:
        await seen.put(await tasks.get(task.id))

    async with working(tasks):
        await work.enqueue(1)
        info = await seen.get()
    assert (info.state, info.attempts) == ("unack", 1)
    assert info.due_at is not None
    assert timedelta(seconds=-10) < info.due_at - datetime.now(UTC) <= timedelta(seconds=60)


@on_both
async def test_payload_attempt_and_context_arrive_as_they_were_enqueued(carrier: str, api: ApiServer) -> None:
    tasks = await build(carrier, api, context=[variables(request=REQUEST)])
    seen = asyncio.Queue[tuple[Any, ...]]()

    async def typed(reminder: Remind, task: Task[None]) -> None:
        await seen.put((reminder, task.attempt, task.context, REQUEST.get()))

    def in_a_thread(text: str, task: Task[None]) -> None:
        loop.call_soon_threadsafe(seen.put_nowait, (text, task.attempt, task.context, REQUEST.get()))

    loop = asyncio.get_running_loop()
    json, text = tasks.handler(typed), tasks.handler("text", codec=TextCodec())(in_a_thread)
    REQUEST.set("r-1")
    async with working(tasks):
        REQUEST.set("r-2")
        await json.enqueue(Remind(17), context={"tenant": "t"})
        assert await seen.get() == (Remind(17), 1, {"request": "r-2", "tenant": "t"}, "r-2")
        REQUEST.set("r-3")
        await text.enqueue("größe")
        assert await seen.get() == ("größe", 1, {"request": "r-3"}, "r-3")
    assert REQUEST.get() == "r-3"


@on_both
async def test_a_task_in_flight_is_not_changed_and_its_id_gets_a_new_task_after_the_end(
    carrier: str, api: ApiServer
) -> None:
    tasks, begun, end = await build(carrier, api), asyncio.Queue[int](), asyncio.Semaphore(0)

    @tasks.handler
    async def work(number: int) -> None:
        await begun.put(number)
        await end.acquire()

    async with working(tasks):
        first = await work.enqueue(1, key="k")
        assert await begun.get() == 1
        with pytest.raises(Conflict):
            await tasks.update(first.id, payload=2)
        with pytest.raises(Conflict):
            await work.enqueue(2, key="k", if_exists="update")
        assert not (await work.enqueue(2, key="k")).created
        end.release()
        await wait_for_end(tasks, first.id)
        assert not (await work.enqueue(3, key="k")).created  # its id is remembered
        await work.enqueue(4, key="k", if_exists="update")
        assert await begun.get() == 4
        end.release()
        await wait_for_end(tasks, first.id)


@on_both
async def test_an_id_that_is_not_remembered_runs_again_after_its_end(carrier: str, api: ApiServer) -> None:
    tasks, runs = await build(carrier, api), list[int]()

    @tasks.handler
    async def work(number: int) -> None:
        runs.append(number)

    async with working(tasks):
        for number in range(3):
            enqueued = await work.enqueue(number, key="k", remember=0)
            assert enqueued.created
            await wait_for_end(tasks, enqueued.id)
    assert runs == [0, 1, 2]


@on_both
async def test_the_last_attempt_that_a_stop_cuts_comes_again_and_costs_no_retry(carrier: str, api: ApiServer) -> None:
    tasks, attempts = await build(carrier, api), asyncio.Queue[tuple[int, int | None]]()
    is_cut = True

    @tasks.handler
    async def work(number: int, task: Task[None]) -> None:
        await attempts.put((task.attempt, task.failures))
        if is_cut:
            await asyncio.Event().wait()

    async with tasks:
        async with working(tasks, drain=0):
            id = (await work.enqueue(1, retry=0)).id
            assert await attempts.get() == (1, 0)
        is_cut = False
        async with working(tasks):
            assert await attempts.get() == (1, 0)
            await wait_for_end(tasks, id)


@on_both
async def test_a_handler_that_is_added_late_runs_what_has_waited_once(carrier: str, api: ApiServer) -> None:
    tasks, runs = await build(carrier, api), list[str]()
    async with tasks:
        await tasks.client.set_policy(f"{tasks.namespace}/late", {"deliver": "pull"})
        enqueued = await tasks.enqueue("late", '"waited"')

        @tasks.handler
        async def late(text: str) -> None:
            runs.append(text)

        async with working(tasks):
            await wait_for_end(tasks, enqueued.id)
    assert runs == ["waited"]


@on_both
async def test_a_claim_may_wait_for_less_than_a_second(carrier: str, api: ApiServer) -> None:
    tasks = await build(carrier, api)
    work = tasks.handler("work")(lambda: None)
    claims: ClaimSource
    async with tasks:
        if isinstance(tasks._embedded, StoreClaims):
            claims = tasks._embedded.claims(lambda: None)
        else:
            claims = ApiClaims(tasks.client, lambda: None)
        assert await claims.claim([work.topic], 1, 0.05) == []


@on_both
async def test_times_that_cannot_be_are_refused_where_they_are_enqueued(carrier: str, api: ApiServer) -> None:
    tasks = await build(carrier, api)

    @tasks.handler
    async def work(number: int) -> None: ...

    naive = datetime(2030, 1, 1)  # that is what is refused
    async with tasks:
        with pytest.raises(Refused, match="at: expected a time with its zone"):
            await work.enqueue(1, at=naive)
        with pytest.raises(Refused, match="expected either delay or at, got both"):
            await work.enqueue(1, delay=1, at=naive.replace(tzinfo=UTC))
        with pytest.raises(Refused, match="delay"):
            await work.enqueue(1, delay="soon")
        with pytest.raises(TypeError, match="cannot read this payload"):
            await work.enqueue(None)  # type: ignore[arg-type]  # that is what is refused
        with pytest.raises(Refused, match="context"):
            await work.enqueue(1, context={"tenant": "x" * 5000})
