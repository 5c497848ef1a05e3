"""Claims that wait for tasks: what wakes them, how tasks are dealt, and what becomes of a claim that goes away.

They run in real time, and wait for what they test: a claim that nothing wakes would be woken by the look each second,
which most tests turn off.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import uvloop

from later.api import claim_queues
from later.api.claim_queues import ClaimQueues
from later.api.claim_requests import WantedTasks
from later.core.api_keys import Scope
from later.core.clock import Clock
from later.core.lease import Lease
from later.core.policy import Deliver, Policy
from later.core.policy_scopes import topic_scope
from later.core.task import Task
from later.store.due_notices import DueNotices
from later.store.key_book import KeyBook
from later.store.keys import Bucket
from later.store.pull_plan import PulledTask, PullResult
from later.store.tasks import Tasks
from later.worker.requeue import Requeuer
from later.worker.shard_selector import ShardSelector
from tests.api.api_fixture import Answer, ApiFixture, ok, serve_api
from tests.api.keyed_api import KeyedApi, Seconds, keyed
from tests.builders import NOW, a_task
from tests.cases import each_case

PULLED = Policy(deliver=Deliver.PULL)
NOTHING = ok(tasks=[], lost=[])
JOB = {"topic": "jobs"}
WAIT = {"topic": "jobs", "max": 10, "wait": 20}


def real_clock() -> Clock:
    return Clock(time.monotonic, time.time)


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiFixture]:
    """The API on an empty store, in which every topic is pulled, in real time."""
    monkeypatch.setattr(claim_queues, "LOOK_EVERY_S", 1000)
    async with serve_api(policy=PULLED, clock=real_clock()) as built:
        yield built


PULLED_TASK = PulledTask(
    a_task(topic="jobs", callback=""), Lease(topic="jobs", id="a", fence=1, due_at=NOW), NOW + 30_000, NOW, 1, None
)


async def find_nothing(topics: Collection[str]) -> list[str]:
    return []


async def hear_nothing(*_: object) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def reach(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # what is waited for is seen from outside only
            await asyncio.sleep(0.001)


async def reach_subscription(api: ApiFixture) -> None:
    """Wait until the API hears the notices of other processes."""
    async with asyncio.timeout(30):
        while True:
            if (await api.client.execute("pubsub", ("PUBSUB", "NUMSUB", api.keys.due_notices)))[1]:
                return
            await asyncio.sleep(0.001)


async def start_waiting(api: ApiFixture, count: int = 1, **fields: Any) -> list[asyncio.Task[Answer]]:
    """Start claims, and return when they wait."""
    before = api.metric("later_claim_waiters")
    claims = [asyncio.create_task(api.post("/claim", {**WAIT, **fields})) for _ in range(count)]
    await reach(lambda: api.metric("later_claim_waiters") == before + count)
    return claims


async def ids_of(claim: Awaitable[Answer]) -> list[str]:
    """Return the ids that a claim gets, which must be soon."""
    async with asyncio.timeout(2):
        status, answer = await claim
    assert status == 200, answer
    return [task["id"] for task in answer["tasks"]]


async def put_unseen(api: ApiFixture, **changes: Any) -> Task:
    """Put a task into the store that is due, as another process would: nothing is signaled here."""
    now = (await api.store.time.now()).low
    task = a_task(topic="jobs", callback="", created_at=now - 1000, **changes)
    assert await api.store.tasks.create([task]) == [True]
    return task


async def test_a_death_elsewhere_wakes_a_claim_that_waits_in_the_dead_letter_topic(api: ApiFixture) -> None:
    await api.store.policies.change(topic_scope("jobs"), lambda before: before.merge({"dead_to": "failed"}))
    task = await put_unseen(api)
    status, answer = await api.post("/claim", JOB)
    assert (status, len(answer["tasks"])) == (200, 1)
    [claim] = await start_waiting(api, topic="failed")
    await api.post("/nack", {"leases": [answer["tasks"][0]["lease"]], "dead": True})
    assert await ids_of(claim) == [task.id]


async def test_a_create_wakes_a_claim_that_waits(api: ApiFixture) -> None:
    [claim] = await start_waiting(api)
    await api.post("/create", {**JOB, "id": "a"})
    assert await ids_of(claim) == ["a"]
    assert api.metric("later_claim_waiters") == 0
    assert api.metric("later_claim_wait_duration_seconds_count") == 1


async def test_a_task_that_is_due_later_wakes_it_then_and_not_before(api: ApiFixture) -> None:
    [claim] = await start_waiting(api)
    await api.post("/create", {**JOB, "id": "a", "delay": 0.2})
    assert await ids_of(claim) == ["a"]
    assert (await api.store.time.now()).high >= (await api.store.lookup.query(["a"]))[0].task.execute_at  # type: ignore[union-attr]


async def test_a_claim_that_comes_before_a_known_task_is_due_gets_it_then(api: ApiFixture) -> None:
    await api.post("/create", {**JOB, "id": "a", "delay": 0.2})
    [claim] = await start_waiting(api)
    assert await ids_of(claim) == ["a"]


async def test_the_time_of_the_store_is_measured_while_a_claim_waits(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer ago it was measured, the longer waits a claim for a task that is due at once."""
    monkeypatch.setattr(claim_queues, "MEASURE_EVERY_S", 0.001)
    measured: list[int] = []
    observe = Clock.observe

    def observe_and_count(clock: Clock, store_time_us: int, *when: float) -> None:
        measured.append(store_time_us)
        observe(clock, store_time_us, *when)

    monkeypatch.setattr(Clock, "observe", observe_and_count)
    [claim] = await start_waiting(api)
    measured.clear()
    await reach(lambda: len(measured) > 2)
    await api.post("/create", {**JOB, "id": "a"})
    assert await ids_of(claim) == ["a"]


def test_a_claim_does_not_look_again_before_the_task_that_it_waits_for_is_due() -> None:
    """The clock of uvloop's timers has whole ms, and stands still while its loop works."""
    looks: list[tuple[float, int]] = []

    def now() -> float:
        return time.monotonic() * 1000

    def pull(wanted: WantedTasks) -> asyncio.Future[PullResult]:
        result: asyncio.Future[PullResult] = asyncio.get_running_loop().create_future()
        due_at = int(now()) + 3 if len(looks) % 2 == 0 else looks[-1][1]
        looks.append((now(), due_at))
        tasks = [PULLED_TASK] if len(looks) % 2 == 0 else []
        result.set_result(PullResult(tasks, due_at, []))
        return result

    async def claim_often() -> None:
        queues = ClaimQueues(
            pull=pull, reserve=nullcontext, give_back=lambda tasks: None, find_due=find_nothing, listen=hear_nothing,
            now=now, measure=hear_nothing, most=1,
        )  # fmt: skip
        for _ in range(20):
            await queues.claim(WantedTasks({"jobs": 1}, 1, None, 20))
        await queues.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(claim_often())
    assert [at for at, due_at in looks[1::2] if at < due_at] == []


def test_a_claim_waits_for_its_task_where_the_clock_of_the_loop_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS, the clock of uvloop goes on while the machine sleeps, and `monotonic` does not."""
    monkeypatch.setattr(claim_queues, "time", SimpleNamespace(monotonic=lambda: time.monotonic() - 3600))
    looks: list[float] = []
    due_at = math.inf

    def now() -> float:
        return time.monotonic() * 1000

    def pull(wanted: WantedTasks) -> asyncio.Future[PullResult]:
        result: asyncio.Future[PullResult] = asyncio.get_running_loop().create_future()
        looks.append(now())
        result.set_result(PullResult([PULLED_TASK] if now() >= due_at else [], None, []))
        return result

    async def claim() -> None:
        nonlocal due_at
        queues = ClaimQueues(
            pull=pull, reserve=nullcontext, give_back=lambda tasks: None, find_due=find_nothing, listen=hear_nothing,
            now=now, measure=hear_nothing, most=1,
        )  # fmt: skip
        claiming = asyncio.create_task(queues.claim(WantedTasks({"jobs": 1}, 1, None, 20)))
        await reach(lambda: queues.waiters == 1)
        due_at = int(now()) + 100
        for _ in range(3):
            queues.signal("jobs", due_at)
        assert await claiming == [PULLED_TASK]
        await queues.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(claim())
    assert len(looks) <= 3


async def test_all_that_runs_beside_claims_ends_with_them_also_if_a_part_ignores_that_it_is_cancelled() -> None:
    may_end, seen = asyncio.Event(), list[str]()

    async def listen(*_: object) -> NoReturn:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()
        raise asyncio.CancelledError

    async def measure() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    def pull(wanted: WantedTasks) -> asyncio.Future[PullResult]:
        result: asyncio.Future[PullResult] = asyncio.get_running_loop().create_future()
        result.set_result(PullResult([], None, []))
        return result

    queues = ClaimQueues(
        pull=pull, reserve=nullcontext, give_back=lambda tasks: None, find_due=find_nothing, listen=listen,
        now=lambda: 0.0, measure=measure, most=1,
    )  # fmt: skip
    claiming = asyncio.create_task(queues.claim(WantedTasks({"jobs": 1}, 1, None, 20)))
    await reach(lambda: seen == ["begun"])
    await queues.close()
    may_end.set()
    assert (await claiming, seen) == ((), ["begun", "ended"])


@each_case("found", [[PULLED_TASK], []])
async def test_a_claim_that_is_left_while_it_looks_ends_with_what_it_finds(found: list[PulledTask]) -> None:
    looks: list[asyncio.Future[PullResult]] = []
    given_back: list[object] = []
    ends: list[Callable[[], None]] = []

    def pull(wanted: WantedTasks) -> asyncio.Future[PullResult]:
        looks.append(asyncio.get_running_loop().create_future())
        return looks[-1]

    @contextmanager
    def watch(end: Callable[[], None]) -> Iterator[None]:
        ends.append(end)
        yield

    queues = ClaimQueues(
        pull=pull, reserve=nullcontext, give_back=given_back.append, find_due=find_nothing, listen=hear_nothing,
        now=lambda: 0.0, measure=hear_nothing, most=1,
    )  # fmt: skip
    claiming = asyncio.create_task(queues.claim(WantedTasks({"jobs": 1}, 1, None, 20), watch))
    await reach(lambda: len(looks) == 1)
    looks[0].set_result(PullResult([], None, []))
    await reach(lambda: queues.waiters == 1)
    queues.signal("jobs")
    ends[0]()
    looks[1].set_result(PullResult(found, None, []))
    assert [*await claiming] == found
    assert (given_back, len(looks)) == ([], 2)
    await queues.close()


async def test_whatever_makes_a_task_due_wakes_a_claim(api: ApiFixture) -> None:
    far = {**JOB, "delay": 600}
    await api.post("/create/batch", [{**far, "id": id} for id in ("ran", "updated", "redriven", "put-off")])
    await api.post("/create", {**JOB, "id": "released"})
    [held] = (await api.post("/claim", WAIT))[1]["tasks"]

    async def kill() -> None:
        await api.post("/run-now", {"id": "redriven"})
        [task] = (await api.post("/claim", WAIT))[1]["tasks"]
        await api.post("/nack", {"leases": [task["lease"]], "dead": True})

    await kill()
    for path, body, id in (
        ("/run-now", {"id": "ran"}, "ran"),
        ("/update", {"id": "updated", "delay": 0}, "updated"),
        ("/redrive", {"topic": "jobs"}, "redriven"),
        ("/release", {"leases": [held["lease"]]}, "released"),
        ("/create/batch", [{**JOB, "id": "new"}], "new"),
        ("/create", {**JOB, "id": "put-off", "delay": 0, "if_exists": "update"}, "put-off"),
        ("/create", {**JOB, "id": "also-new", "if_exists": "update"}, "also-new"),
    ):
        [claim] = await start_waiting(api)
        assert (await api.post(path, body))[0] == 200
        assert await ids_of(claim) == [id], path


async def test_ninety_claims_get_one_each_of_ninety_tasks(api: ApiFixture) -> None:
    claims = await start_waiting(api, 90)  # the client of these tests has a hundred connections
    for batch in ([{**JOB, "id": f"t{n}"} for n in range(start, start + 18)] for start in range(0, 90, 18)):
        await api.post("/create/batch", batch)
    got = [await ids_of(claim) for claim in claims]
    assert [len(ids) for ids in got] == [1] * 90
    assert len({id for ids in got for id in ids}) == 90


async def test_tasks_that_become_due_together_are_dealt_evenly(api: ApiFixture) -> None:
    claims = await start_waiting(api, 4)
    now = (await api.store.time.now()).high
    at = (now + 300) / 1000
    await api.post("/create/batch", [{**JOB, "execute_time": at} for _ in range(8)])
    assert [len(await ids_of(claim)) for claim in claims] == [2] * 4


async def test_a_claim_of_many_topics_is_woken_by_each_of_them(api: ApiFixture) -> None:
    [claim] = await start_waiting(api, topic=None, topics=["mail", "jobs"])
    await api.post("/create", {**JOB, "id": "a"})
    assert await ids_of(claim) == ["a"]
    [claim] = await start_waiting(api, topic=None, max=None, topics={"jobs": 1, "mail": 2})
    await api.post("/create", {"topic": "mail", "id": "b"})
    assert await ids_of(claim) == ["b"]


async def test_a_wait_ends_with_nothing(api: ApiFixture) -> None:
    assert await api.post("/claim", {**JOB, "wait": 0.05}) == NOTHING
    assert api.metric("later_claim_wait_duration_seconds_count") == 0


async def test_a_task_that_no_ring_has_told_of_is_found_by_the_look_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_queues, "LOOK_EVERY_S", 0.05)
    async with serve_api(policy=PULLED, clock=real_clock()) as api:
        [claim, other] = await start_waiting(api, 2)
        task = await put_unseen(api)
        assert sorted([len(await ids_of(claim))]) == [1]
        await api.store.policies.change(topic_scope("jobs"), lambda settings: settings.merge({"deliver": "push"}))
        assert (await other)[0] == 409
        assert task.id


async def test_a_task_that_another_process_makes_due_wakes_a_claim(api: ApiFixture) -> None:
    """The notice of another process comes through the store; the one that this process sends is not its own."""
    other = DueNotices(api.client, api.keys, api.store.policies)
    [claim] = await start_waiting(api)
    await reach_subscription(api)
    task = a_task(topic="jobs", callback="", created_at=(await api.store.time.now()).low - 1000)
    create = Tasks(api.client, api.keys, other).create
    assert await create([task]) == [True]
    assert await ids_of(claim) == [task.id]


async def test_a_task_that_a_worker_requeues_wakes_a_claim(api: ApiFixture) -> None:
    await put_unseen(api, id="a")
    [task] = (await api.post("/claim", JOB))[1]["tasks"]
    [claim] = await start_waiting(api)
    await reach_subscription(api)
    await api.post("/nack", {"leases": [task["lease"]], "delay": 0})
    requeuer = Requeuer(
        Bucket.ERROR,
        store=api.store,
        metrics=api.metrics,
        on_requeued=lambda: None,
        shard_selector=ShardSelector(len(api.store.keys.shards)),
    )
    await requeuer.tick((await api.store.time.now()).low + 1000)
    assert await ids_of(claim) == ["a"]


async def hang_up(api: ApiFixture, *, ends_side_only: bool) -> None:
    """Start a claim that waits, and hang up."""
    url = api.http.make_url("/")
    reader, writer = await asyncio.open_connection(url.host, url.port)
    body = json.dumps(WAIT).encode()
    writer.write(b"POST /claim HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await reach(lambda: api.metric("later_claim_waiters") == 1)
    if ends_side_only:
        writer.write_eof()
        assert (await reader.read()).endswith(b'{"tasks":[],"lost":[]}')
    writer.close()
    await reach(lambda: api.metric("later_claim_waiters") == 0)


@pytest.mark.parametrize("ends_side_only", [False, True])
async def test_a_claim_that_hangs_up_gets_nothing_and_loses_nothing(api: ApiFixture, ends_side_only: bool) -> None:
    await hang_up(api, ends_side_only=ends_side_only)
    await api.post("/create", {**JOB, "id": "a"})
    assert (await api.post("/query", {"id": "a"}))[1]["state"] == "delay"
    status, answer = await api.post("/claim", {**JOB, "wait": 1})
    assert (status, answer["tasks"][0]["attempt"]) == (200, 1)


async def test_what_was_claimed_for_a_client_that_is_gone_is_given_back(api: ApiFixture) -> None:
    url = api.http.make_url("/")
    _, writer = await asyncio.open_connection(url.host, url.port)
    body = json.dumps(WAIT).encode()
    writer.write(b"POST /claim HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await reach(lambda: api.metric("later_claim_waiters") == 1)
    api.client.resume = asyncio.Event()  # the store does not answer until it is set
    create = asyncio.create_task(api.post("/create", {**JOB, "id": "a"}))
    await asyncio.sleep(0.01)
    writer.transport.abort()
    await reach(lambda: api.metric("later_claim_waiters") == 0)
    api.client.resume.set()
    await create
    assert await ids_of(api.post("/claim", {**JOB, "wait": 1})) == ["a"]


async def test_a_stop_answers_claims_that_wait_at_once(api: ApiFixture) -> None:
    claims = await start_waiting(api, 3)
    await api.http.app.shutdown()
    async with asyncio.timeout(1):
        assert [await claim for claim in claims] == [NOTHING] * 3
        assert await api.post("/claim", WAIT) == NOTHING


async def test_more_claims_than_may_wait_are_answered_503() -> None:
    async with serve_api(policy=PULLED, clock=real_clock(), max_waiters=2) as api:
        await start_waiting(api, 2)
        async with api.http.post("/claim", json=WAIT) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            problem = await response.json(content_type=None)
            assert problem["type"] == "/problems/too-many-waiters"
            assert problem["detail"] == "2 claims wait already (--waiters 2)"
        assert await api.post("/claim", JOB) == NOTHING
        await api.http.app.shutdown()


async def test_a_key_that_is_revoked_while_its_claim_waits_gets_nothing() -> None:
    seconds = Seconds()
    async with keyed("", seconds, policy=PULLED, clock=real_clock()) as api:
        keys = KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), "", seconds)
        key = await keys.add_key(Scope.CLAIM)
        other = await keys.add_key(*Scope)
        claim = asyncio.create_task(keys.call("POST", "/claim", key, WAIT))
        await reach(lambda: api.metric("later_claim_waiters") == 1)
        await keys.revoke(key)
        await keys.call("POST", "/create", other, {**JOB, "id": "a"})
        status, problem, _ = await claim
        assert (status, problem["type"]) == (401, "/problems/no-key")
        _, answer, _ = await keys.call("POST", "/claim", other, {**JOB, "wait": 1})
        assert [task["attempt"] for task in answer["tasks"]] == [1]


async def test_claimed_tasks_count_against_the_rate_of_a_key() -> None:
    seconds = Seconds()
    async with keyed("", seconds, policy=PULLED, clock=real_clock()) as api:
        keys = KeyedApi(api, KeyBook(api.store.client, api.store.keys, seconds), "", seconds)
        key = await keys.add_key(Scope.CLAIM, rate=4)
        for _ in range(10):
            await put_unseen(api)
        _, answer, _ = await keys.call("POST", "/claim", key, {**JOB, "max": 10})
        assert len(answer["tasks"]) == 10
        status, _, headers = await keys.call("POST", "/claim", key, JOB)
        assert (status, headers["Retry-After"]) == (429, "2")
        leases = [task["lease"] for task in answer["tasks"]]
        seconds.at += 10
        assert (await keys.call("POST", "/extend", key, {"leases": leases}))[0] == 200
        assert (await keys.call("POST", "/ack", key, {"leases": leases}))[0] == 429
        seconds.at += 10
        _, answer, _ = await keys.call("POST", "/ack", key, {"leases": leases})
        assert answer == {"acked": 10, "lost": []}
        status, _, headers = await keys.call("POST", "/claim", key, JOB)
        assert (status, headers["Retry-After"]) == (429, "2")
