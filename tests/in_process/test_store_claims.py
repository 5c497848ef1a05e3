"""An application with an embedded later, over a real store: no daemon runs beside it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from later import Later, StoreClaims, Task, current
from later.core.errors import ConfigError, Exists, NotConfigured
from later.core.retry import Outcome, OutcomeKind
from later.core.task import pack_id
from later.in_process.local_claims import LocalClaims
from later.puller import pull_worker
from later.store.keys import Bucket
from tests.cases import each_case
from tests.handlers.test_dispatch import ENDS, ending
from tests.in_process.embedded import claims_of, info, new_prefix, socket_of, until, until_true, working
from tests.store.store_proxy import Proxy


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_worker, "RETRY_S", 0.01)
    monkeypatch.setattr(pull_worker, "POLL_S", 0.2)


def this_task() -> Task[Any]:
    task = current()
    assert task is not None
    return task


STATES = {OutcomeKind.FAILED: "error", OutcomeKind.BUSY: "error", OutcomeKind.GONE: "dead"}


async def test_every_end_of_a_handler_is_what_becomes_of_its_task(server_url: str) -> None:
    tasks = Later(claims_of(server_url))

    @tasks.handler
    async def on_the_loop(end: int) -> object:
        return ending(ENDS[end][0])

    @tasks.handler
    def in_a_thread(end: int) -> object:
        return ending(ENDS[end][0])

    @tasks.handler(timeout=0.01)
    async def too_long() -> None:
        await asyncio.Event().wait()

    outcomes: dict[str, Outcome] = {}
    async with tasks:
        for number, (_, outcome) in enumerate(ENDS):
            for handler in (on_the_loop, in_a_thread):
                outcomes[(await handler.enqueue(number)).id] = outcome
        unreadable = await tasks.enqueue("on_the_loop", '"no number"')
        message = "ValidationError: Expected `int`, got `str`"
        outcomes[unreadable.id] = Outcome(kind=OutcomeKind.FAILED, reason="payload", message=message)
        message = "not done within 0.01 s"
        outcomes[(await too_long.enqueue(None)).id] = Outcome(
            kind=OutcomeKind.FAILED, reason="timeout", message=message
        )
        async with working(tasks):
            for id, outcome in outcomes.items():

                async def is_settled(id: str = id) -> bool:
                    found = await info(tasks, id)
                    return found is None or found.state in ("error", "dead")

                await until_true(is_settled)
                found = await info(tasks, id)
                if outcome.kind is OutcomeKind.DONE:
                    assert found is None
                    continue
                assert found is not None
                assert found.last_error is not None
                assert found.state == STATES[outcome.kind], outcome
                assert found.last_error.message.startswith(outcome.message[:12]), outcome
                assert found.last_error.reason == ("rejected" if found.state == "dead" else outcome.reason)
                assert found.retries_used == (outcome.kind is not OutcomeKind.BUSY), outcome


async def test_three_handlers_run_three_tasks_each_in_parallel(server_url: str) -> None:
    tasks, begun, go = Later(claims_of(server_url)), Counter[str](), asyncio.Event()

    async def run() -> None:
        begun[this_task().topic] += 1
        await go.wait()

    handlers = [tasks.handler(name, concurrency=3)(run) for name in ("a", "b", "c")]
    async with working(tasks):
        for handler in handlers * 5:
            await handler.enqueue(None)
        await until(lambda: begun == {"a": 3, "b": 3, "c": 3})
        go.set()
        await until(lambda: begun == {"a": 5, "b": 5, "c": 5})


async def test_a_stuck_handler_holds_one_task_and_thirty_of_another_topic_get_done(server_url: str) -> None:
    tasks, done, held = Later(claims_of(server_url)), Counter[str](), asyncio.Event()

    @tasks.handler(concurrency=1)
    async def stuck() -> None:
        held.set()
        await asyncio.Event().wait()

    @tasks.handler
    async def well() -> None:
        done["well"] += 1

    async with tasks:
        await tasks.enqueue_many([stuck.item(None) for _ in range(10)] + [well.item(None) for _ in range(30)])
        async with working(tasks):
            await until(lambda: held.is_set() and done["well"] == 30)
            states = [task.state async for task in tasks.list(stuck, state="delay")]
            assert len(states) == 9


async def test_four_thousand_tasks_due_at_once_run_once_each(server_url: str) -> None:
    tasks, runs = Later(claims_of(server_url)), Counter[int]()

    @tasks.handler(concurrency=500)
    async def count(number: int) -> None:
        runs[number] += 1

    async with working(tasks):
        await tasks.enqueue_many([count.item(number) for number in range(4000)])
        await until(lambda: len(runs) == 4000)
    assert runs.total() == 4000


async def test_two_workers_on_one_store_run_each_task_once(server_url: str) -> None:
    prefix, runs = new_prefix(), Counter[int]()
    workers = [Later(StoreClaims(server_url, prefix=prefix)) for _ in range(2)]

    async def count(number: int) -> None:
        runs[number] += 1
        await asyncio.sleep(0)

    handler, _ = [tasks.handler("count")(count) for tasks in workers]
    async with AsyncExitStack() as stack:
        for tasks in workers:
            await stack.enter_async_context(working(tasks))
        await workers[0].enqueue_many([handler.item(number) for number in range(500)])
        await until(lambda: len(runs) == 500)
    assert runs.total() == 500


@asynccontextmanager
async def cuttable(server_url: str) -> AsyncIterator[tuple[StoreClaims, Proxy]]:
    async with Proxy(socket_of(server_url)).open() as proxy:
        yield claims_of(f"redis://127.0.0.1:{proxy.port}"), proxy


async def test_a_worker_goes_on_when_its_store_is_back_and_a_bad_record_stops_nobody(
    server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Counter[int]()
    async with cuttable(server_url) as (claims, proxy):
        tasks = Later(claims)

        @tasks.handler
        async def count(number: int) -> None:
            runs[number] += 1

        async with working(tasks):
            await count.enqueue(1)
            await until(lambda: runs[1] == 1)
            proxy.cut()
            await until(lambda: "does not answer" in caplog.text)
            proxy.restore()
            bad = await count.enqueue(2, delay="1h")
            store = (await claims._opened()).store
            [shard] = store.keys.shards
            await store.client.execute("test", ("HSET", shard.pool, pack_id(bad.id), b"no task"))
            await store.client.execute("test", ("ZADD", shard.bucket(Bucket.DELAY, b"count"), 1, pack_id(bad.id)))
            await count.enqueue(3)
            await until(lambda: runs[3] == 1)
            counts = (await store.stats.counts_for(["count"], 0))["count"]
            assert (counts.delay, counts.dead) == (0, 1)
        assert runs == {1: 1, 3: 1}


async def test_an_outcome_is_told_until_the_store_takes_it_and_its_slot_stays_taken(
    server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[int] = []
    async with cuttable(server_url) as (claims, proxy):
        tasks = Later(claims)

        @tasks.handler(concurrency=1)
        async def work(number: int) -> None:
            begun.append(number)
            if number == 1:
                proxy.cut()

        async with tasks:
            first = await work.enqueue(1)
            await work.enqueue(2)
            async with working(tasks):
                await until(lambda: "does not answer" in caplog.text)
                proxy.restore()
                await until(lambda: begun == [1, 2])
                assert await info(tasks, first.id) is None
        assert begun == [1, 2]


async def test_what_a_dead_process_had_claimed_comes_again_and_no_retry_is_spent(server_url: str) -> None:
    claims = claims_of(server_url)
    tasks, attempts = Later(claims), list[tuple[int, int | None]]()

    @tasks.handler
    async def work() -> None:
        attempts.append((this_task().attempt, this_task().failures))

    async with tasks:
        await work.enqueue(None)
        [claim] = await claims.claim(["work"], 1, 20)  # and its process dies
        short = LocalClaims(claims._opened, claims.pull, lambda: None, lease_s=0.001)
        assert await short.extend([claim.lease]) == []
        async with working(tasks):
            await until(lambda: bool(attempts))
    assert attempts == [(2, 0)]


async def test_a_stop_lets_what_runs_end_and_leaves_the_store_of_its_caller_open(server_url: str) -> None:
    store, begun, end = claims_of(server_url), asyncio.Event(), asyncio.Event()
    tasks, ended = Later(), list[str]()

    @tasks.handler
    async def work(name: str) -> None:
        begun.set()
        await end.wait()
        ended.append(name)

    async with store:
        worker = asyncio.create_task(tasks.work(claims=store))
        other = Later(store)
        async with other:
            await other.client.set_policy("work", {"deliver": "pull"})
            await other.enqueue("work", '"first"')
            await begun.wait()
            worker.cancel()
            await asyncio.sleep(0)
            second = await other.enqueue("work", '"second"')
            end.set()
            await asyncio.gather(worker, return_exceptions=True)
            waiting = await other.get(second.id)
            assert (ended, waiting.state, waiting.attempts) == (["first"], "delay", 0)


async def test_a_stop_gives_back_what_does_not_end_and_does_not_count_the_attempt(server_url: str) -> None:
    prefix, begun = new_prefix(), asyncio.Event()
    tasks = Later(StoreClaims(server_url, prefix=prefix))

    @tasks.handler
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with tasks:
        async with working(tasks):
            id = (await work.enqueue(None)).id
            await begun.wait()
        found = await tasks.get(id)
        assert (found.state, found.attempts) == ("delay", 0)


async def test_calls_go_to_the_store_of_another_worker_when_the_one_that_took_them_stops(server_url: str) -> None:
    tasks, prefix, runs = Later(), new_prefix(), list[int]()

    @tasks.handler
    async def first() -> None: ...

    @tasks.handler
    async def second(number: int) -> None:
        runs.append(number)

    def start(handler: Any) -> asyncio.Task[None]:
        claims = claims_of(server_url, prefix=prefix)
        return asyncio.create_task(tasks.work(claims=claims, only=[handler], drain=0))

    async def is_pulled() -> bool:
        return (await tasks.policy(second)).values["deliver"] == "pull"

    async def stop(worker: asyncio.Task[None]) -> None:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    async with tasks:
        one = start(first)
        await until(lambda: tasks.url is not None)
        other = start(second)
        await until_true(is_pulled)
        await second.enqueue(1)
        await until(lambda: runs == [1])
        await stop(one)
        await second.enqueue(2)
        await until(lambda: runs == [1, 2])
        await stop(other)
        with pytest.raises(NotConfigured):
            await second.enqueue(3)


async def test_an_id_that_is_not_remembered_is_free_again_once_its_task_is_done(server_url: str) -> None:
    tasks, runs = Later(claims_of(server_url)), Counter[str]()

    @tasks.handler
    async def work(name: str) -> None:
        runs[name] += 1

    async with working(tasks):
        for expected in (1, 2):
            assert (await work.enqueue("again", id="order-1", remember=0)).created

            async def is_done() -> bool:
                return await info(tasks, "order-1") is None

            await until_true(is_done)
            assert runs["again"] == expected
        assert (await work.enqueue("once", id="order-2")).created
        await until(lambda: runs["once"] == 1)
        assert not (await work.enqueue("once", id="order-2")).created
        with pytest.raises(Exists):
            await work.enqueue("once", id="order-2", if_exists="error")


@each_case("skew_s", [-60, 60])
async def test_due_times_are_those_of_the_store_whatever_this_machines_clock_says(
    server_url: str, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    tasks, runs, wall = Later(claims_of(server_url)), list[Task[Any]](), time.time
    monkeypatch.setattr("later.client.machine_clock.time.time", lambda: wall() + skew_s)

    @tasks.handler
    async def work() -> None:
        runs.append(this_task())

    async with working(tasks):
        now = datetime.fromtimestamp(wall(), UTC)
        await work.enqueue(None, delay=0.05)
        await work.enqueue(None, at=now + timedelta(seconds=0.1))
        await until(lambda: len(runs) == 2)
        monkeypatch.undo()
        assert [abs((task.due_at - now).total_seconds()) < 30 for task in runs] == [True, True]


async def test_schedules_fire_without_a_daemon(server_url: str) -> None:
    tasks, fired = Later(claims_of(server_url)), list[str]()

    @tasks.handler
    async def report() -> None:
        fired.append(this_task().id)

    async with working(tasks):
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        await tasks.client.put_schedule("daily", "report", every="24h", start=long_ago, catch_up="one")
        await tasks.client.run_schedule_now("daily")
        await tasks.client.put_schedule("often", "report", every=1)
        await until(lambda: any(id.startswith("s:often:") for id in fired))
    assert len(set(fired)) == len(fired)


async def test_calls_come_from_other_threads_and_event_loops_too(server_url: str) -> None:
    tasks, got, done = Later(claims_of(server_url)), list[str](), asyncio.Event()
    loop = asyncio.get_running_loop()

    @tasks.handler
    async def work(name: str) -> None:
        got.append(name)
        if len(got) == 3:
            done.set()

    @tasks.handler
    def in_a_thread() -> None:
        work.enqueue_sync("of a handler")

    def run_loop() -> None:
        work.enqueue_sync("of a thread")
        asyncio.run(enqueue())

    async def enqueue() -> None:
        assert asyncio.get_running_loop() is not loop
        await work.enqueue("of a loop")

    async with working(tasks):
        thread = threading.Thread(target=run_loop)
        thread.start()
        await in_a_thread.enqueue(None)
        async with asyncio.timeout(60):
            await done.wait()
        thread.join()
    assert sorted(got) == ["of a handler", "of a loop", "of a thread"]


async def test_without_its_store_open_a_call_says_what_to_do(server_url: str) -> None:
    tasks = Later(claims_of(server_url))

    @tasks.handler
    async def work() -> None: ...

    with pytest.raises(NotConfigured, match=r"within `async with tasks:`, or while `tasks.work\(\)` runs"):
        await work.enqueue(None)
    async with tasks:
        assert (await work.enqueue(None)).created
    with pytest.raises(NotConfigured):
        await work.enqueue(None)


@each_case(
    "store, message",
    [
        (
            "http://127.0.0.1:8080",
            r"expected a data directory, or a redis://, rediss://, redis\+sentinel://, redis\+cluster:// or unix",
        ),
        ("redis://127.0.0.1:6379/x", "expected a data directory, or redis://HOST:PORT/DATABASE"),
    ],
)
def test_what_is_no_store_is_refused(store: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StoreClaims(store)


def test_a_lease_lasts_a_second_at_least() -> None:
    with pytest.raises(ConfigError, match=r"lease: expected 1 s at least, got 0.5 s"):
        StoreClaims("data", lease="500ms")
