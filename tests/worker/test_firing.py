"""Schedules fire on a real store, with time as a value: each time once, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from later.core.api_keys import ALL_SCOPES
from later.core.caller import ANYBODY, Caller
from later.core.clock import Interval
from later.core.errors import LaterError, Refused, StoreDown
from later.core.schedule import ScheduleDraft, ScheduleState, build_schedule
from later.core.task import Task
from later.store.due_notices import DueNotices
from later.store.pull_plan import PullRequest, PullResult, PullTopic
from later.store.schedules import LEFT_TO_OTHERS_MS, POSTPONE_MS, ScheduleMove, Schedules
from later.store.scripts import BY_SHA
from later.store.tasks import Tasks
from later.worker.firing import RETRY_MS, SCHEDULES_PER_TICK
from tests.builders import NOW
from tests.cut_connection import CutConnection
from tests.store_fixture import StoreFixture
from tests.worker.workers import MAX_LATE_MS, FakeSender, ManualWorker

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
MAX_ROUND_TRIPS = 20
"""More than a tick has."""


@pytest.fixture
def shards() -> int:
    """Return a few: tests/store shows what depends on their number."""
    return 3


class FiringWorker(ManualWorker):
    """A worker that also fires schedules. `refused` are the callbacks that its guard refuses."""

    def __init__(self, store: StoreFixture, instance: str = "this") -> None:
        self.refused: set[str] = set()
        self.sender = FakeSender()
        super().__init__(store, self.sender, instance=instance)

    def check_callback(self, callback: str) -> None:
        if callback in self.refused:
            raise Refused("callback: expected a receiver's address", "callback")

    async def put(self, id: str = "daily", caller: Caller = ANYBODY, **fields: Any) -> None:
        draft = ScheduleDraft(**{"topic": "report", "callback": "http://127.0.0.1:9/", **fields})
        await self.store.schedules.put(build_schedule(draft, caller.own_schedule(id), caller), self.at)

    async def state(self, id: str = "daily") -> ScheduleState:
        return (await self.store.schedules.get(id)).state

    async def fire(self) -> None:
        """Run ticks until nothing is left to do now."""
        while (result := await self.firer.tick(self.at)).moved and (result.next_due or 0) <= self.at:
            pass

    async def deliver(self) -> None:
        """Deliver what was created now: it is due when now is over, which is known as an interval."""
        now = self.at
        self.at = now + MAX_LATE_MS
        await self.work()
        self.at = now

    async def fire_until(self, at: int, step: int) -> None:
        while self.at < at:
            self.at = min(self.at + step, at)
            await self.fire()
            await self.deliver()

    def fired(self) -> list[str]:
        """Return the ids of all tasks that were delivered."""
        return [call.id for call in self.sender.calls]

    def fired_at(self) -> list[float]:
        """Return the times of the firings that were delivered, in s from NOW."""
        return [int(id.rpartition(":")[2]) - NOW / 1000 for id in self.fired()]


async def pool(store: StoreFixture) -> int:
    return sum([await store.redis.hlen(shard.pool) for shard in store.keys.shards])


# One instance


async def test_a_schedule_makes_a_task_at_each_of_its_times(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    await worker.put(every=10)
    await worker.fire_until(NOW + 35 * SECOND, step=SECOND)
    assert worker.fired_at() == [0, 10, 20, 30]
    assert all(
        0 <= call.at - NOW - n * 10 * SECOND <= SECOND + MAX_LATE_MS for n, call in enumerate(worker.sender.calls)
    )
    state = await worker.state()
    assert (state.next_at, state.last and state.last.task_id) == (NOW + 40 * SECOND, f"s:daily:{NOW // 1000 + 30}")


async def test_a_tick_says_when_the_next_schedule_is_due_and_does_nothing_before(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    await worker.put(every=10, start=NOW / 1000 + 5)
    assert await worker.firer.tick(NOW + 4999) == (0, NOW + 5000)
    assert await worker.firer.tick(NOW + 5000) == (1, NOW + 15_000)
    assert await pool(store) == 1


async def test_jitter_delays_the_call_and_not_the_next_firing(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    await worker.put(every=60, jitter=30)
    await worker.fire_until(NOW + 150 * SECOND, step=3 * SECOND)
    assert worker.fired_at() == [0, 60, 120]
    late = [call.at - NOW - n * MINUTE for n, call in enumerate(worker.sender.calls)]
    assert all(ms <= 33_500 for ms in late)
    assert len(set(late)) > 1


async def test_a_schedule_of_a_bound_key_fires_in_its_namespace(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    team = Caller(key_id="k", namespace="team", scopes=ALL_SCOPES)
    await worker.put("x", team, topic="team/t", every=60)
    await worker.fire()
    await worker.deliver()
    assert worker.fired() == [f"team/s:x:{NOW // 1000}"]


# Missed times


@pytest.mark.parametrize(
    ("catch_up", "fire"),
    [("one", [0, 7200]), ("all", [0, 1800, 3600, 5400, 7200]), ("none", [0])],
)
async def test_times_that_were_missed_fire_late_or_not_at_all(
    store: StoreFixture, catch_up: str, fire: list[float]
) -> None:
    worker = FiringWorker(store)
    await worker.put(every=1800, catch_up=catch_up)
    await worker.fire()
    worker.at = NOW + 2 * HOUR + 2 * MINUTE  # everything was down
    with capture_logs() as logs:
        await worker.fire()
    await worker.deliver()
    assert sorted(worker.fired_at()) == fire
    assert [line["count"] for line in logs if line["event"] == "schedules fire late"] == (
        [len(fire) - 1] if len(fire) > 1 else []
    )
    await worker.fire_until(NOW + 3 * HOUR, step=MINUTE)
    assert sorted(worker.fired_at()) == [*fire, 9000, 10800]


async def test_a_late_task_says_how_late_it_is(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    await worker.put(every=3600)
    worker.at = NOW + 10 * MINUTE
    await worker.fire()
    [record] = await worker.store.lookup.query([f"s:daily:{NOW // 1000}"])
    assert not isinstance(record, LaterError)
    task = record.task
    assert isinstance(task, Task)
    assert task.scheduled_at == NOW
    assert 10 * MINUTE <= task.execute_at - NOW <= 10 * MINUTE + MAX_LATE_MS
    assert worker.metrics.registry.get_sample_value("later_firing_lateness_seconds_bucket", {"le": "600.0"}) == 0
    assert worker.metrics.registry.get_sample_value("later_firing_lateness_seconds_bucket", {"le": "3600.0"}) == 1


async def test_times_that_pass_in_a_pause_count_as_missed(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    await worker.put(every=60, catch_up="all")
    await worker.fire()
    await worker.store.schedules.set_paused("daily", True)
    await worker.fire_until(NOW + 5 * MINUTE, step=MINUTE)
    assert worker.fired_at() == [0]
    await worker.store.schedules.set_paused("daily", False)
    await worker.fire()
    await worker.deliver()
    assert sorted(worker.fired_at()) == [0, 60, 120, 180, 240, 300]


async def test_a_schedule_that_makes_up_for_a_thousand_times_does_it_in_a_tick(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    await worker.put(every=1, catch_up="all", content="x" * 20_000)
    worker.at = NOW + 5000 * SECOND
    assert (await worker.firer.tick(worker.at)).moved == 1
    assert await pool(store) == 1000


# Refusals


async def test_a_refusal_is_kept_and_counted_and_the_schedule_goes_on(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    await worker.put(every=60, jitter=1000)
    await worker.set_policy("report", max_delay=0.001)
    with capture_logs() as logs:
        for n in range(3):
            worker.at = NOW + n * MINUTE
            await worker.fire()
    state = await worker.state()
    assert state.last_error is not None
    assert (state.last_error.at, state.last_error.field) == (NOW + 2 * MINUTE, "execute_time")
    assert "Exceeds max allowed delivery delay of 1 milliseconds" in state.last_error.detail
    assert (state.refused, state.last, state.next_at) == (3, None, NOW + 3 * MINUTE)
    refused = worker.metrics.registry.get_sample_value("later_firings_total", {"result": "refused"})
    assert refused == 3
    reports = [line["log_level"] for line in logs if line["event"].startswith("firing refused")]
    assert reports == ["warning", "debug", "debug"]

    await worker.set_policy("report", max_delay=0)
    await worker.fire_until(NOW + 3 * MINUTE, step=MINUTE)
    after = await worker.state()
    assert after.last is not None
    assert after.refused == 3


async def test_the_address_guard_judges_each_firing(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    await worker.put(every=60)
    worker.refused = {"http://127.0.0.1:9/"}
    await worker.fire()
    state = await worker.state()
    assert (state.last_error and state.last_error.detail) == "callback: expected a receiver's address"
    assert await pool(store) == 0


async def test_a_policy_that_another_process_has_lifted_refuses_nothing(store: StoreFixture) -> None:
    worker = FiringWorker(store)
    await worker.set_policy("report", delays=False)
    await worker.policies.current()
    await worker.put(every=60, jitter=1000)
    other = FiringWorker(store, instance="other")
    await other.set_policy("report", delays=True)
    await worker.fire()
    assert (await worker.state()).refused == 0


async def test_a_schedule_whose_zone_this_machine_does_not_know_is_left_to_others_then_waits_a_minute(
    store: StoreFixture,
) -> None:
    worker, other = FiringWorker(store), FiringWorker(store, instance="other")
    await worker.put("other", every=60)
    await worker.put(cron="* * * * *", zone="Europe/Berlin", catch_up="none")
    stored = await store.schedules.get("daily")
    unknown = msgspec.structs.replace(stored.definition, zone="Europe/Nowhere")
    shard = store.keys.shard_of("daily")

    async def fire_without_the_zone() -> None:
        await store.redis.hset(shard.schedules, "daily", msgspec.json.encode(unknown))
        with capture_logs() as logs:
            await worker.fire()
        postponed.append("schedule postponed" in {line["event"] for line in logs})
        await store.redis.hset(shard.schedules, "daily", msgspec.json.encode(stored.definition))

    postponed: list[bool] = []
    await fire_without_the_zone()
    assert await pool(store) == 1
    await other.fire()
    assert await pool(store) == 2
    worker.at = other.at = NOW + MINUTE + LEFT_TO_OTHERS_MS
    await fire_without_the_zone()
    await other.fire()
    assert (await worker.state()).next_at == NOW + MINUTE
    other.at += POSTPONE_MS
    await other.fire()
    assert (await worker.state()).next_at == NOW + 3 * MINUTE
    assert postponed == [False, True]


# Interruptions


async def test_an_instance_that_dies_between_create_and_move_leaves_a_firing_that_is_not_repeated(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = FiringWorker(store)
    await worker.put(every=60)

    async def die(self: Schedules, moves: Sequence[ScheduleMove]) -> list[bool | LaterError]:
        raise StoreDown("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Schedules, "move_on", die)
        with pytest.raises(StoreDown):
            await worker.firer.tick(NOW)
    await worker.deliver()  # the task is done before the next instance looks
    other = FiringWorker(store, instance="other")
    await other.fire()
    await other.deliver()
    assert (worker.fired_at(), other.fired_at()) == ([0], [])
    state = await worker.state()
    assert (state.next_at, state.last and state.last.at) == (NOW + MINUTE, NOW)


async def test_a_schedule_whose_task_the_store_does_not_take_stays_due_and_holds_up_no_other(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = FiringWorker(store)
    await worker.put("bad", every=60, topic="damaged")
    await worker.put("good", every=60)
    create = Tasks.create

    async def refuse(self: Tasks, tasks: Sequence[Task]) -> Sequence[object]:
        results = await create(self, [task for task in tasks if task.topic != "damaged"])
        return [StoreDown("damaged") if task.topic == "damaged" else results.pop(0) for task in tasks]

    with monkeypatch.context() as patch:
        patch.setattr(Tasks, "create", refuse)
        for _ in range(2):
            with pytest.raises(StoreDown, match="damaged"):
                await worker.firer.tick(worker.at)
            assert await worker.firer.tick(worker.at) == (0, worker.at + RETRY_MS)
            worker.at += RETRY_MS
    assert [(await worker.state(id)).next_at for id in ("bad", "good")] == [NOW, NOW + MINUTE]
    await worker.fire()
    await worker.deliver()
    assert sorted(worker.fired()) == [f"s:{id}:{NOW // 1000}" for id in ("bad", "good")]


async def test_many_instances_fire_each_time_of_each_schedule_once(store: StoreFixture) -> None:
    workers = [FiringWorker(store, instance=str(n)) for n in range(3)]
    for n in range(40):
        await workers[0].put(f"s{n}", every=60, start=NOW / 1000 + n % 7)
    for minute in range(4):
        for worker in workers:
            worker.at = NOW + minute * MINUTE + 10 * SECOND
        await asyncio.gather(*(worker.fire() for worker in workers))
        await asyncio.gather(*(worker.deliver() for worker in workers))
    fired = Counter(id for worker in workers for id in worker.fired())
    assert len(fired) == 160
    assert set(fired.values()) == {1}
    created = sum(
        worker.metrics.registry.get_sample_value("later_firings_total", {"result": "created"}) or 0
        for worker in workers
    )
    assert created == 160


# Clocks that are set


async def test_a_schedule_fires_once_on_each_day_of_a_zone_whose_clocks_are_set(store: StoreFixture) -> None:
    """From 2:00 to 3:00 in March, and back in October: with a worker that looks every ten minutes."""
    for day, expected in (
        ("2026-03-28", ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]),
        ("2026-10-24", ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"]),
    ):
        worker = FiringWorker(store)
        worker.at = start = int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()) * 1000
        await worker.put(cron="30 2 * * *", zone="Europe/Berlin")
        await worker.fire_until(start + 72 * HOUR, step=10 * MINUTE)
        seconds = [int(id.rpartition(":")[2]) for id in worker.fired()]
        assert [datetime.fromtimestamp(at, UTC).isoformat()[:16] for at in seconds] == expected
        await worker.store.schedules.delete("daily")


# Many


async def test_many_schedules_of_one_time_are_created_in_few_commands(store: StoreFixture) -> None:
    worker, count = FiringWorker(store), SCHEDULES_PER_TICK
    for n in range(count):
        await worker.put(f"s{n}", every=60)
    await store.redis.config_resetstat()
    result = await worker.firer.tick(NOW)
    assert result.moved == count
    stats = await store.redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    shards = len(store.keys.shards)
    assert await pool(store) == count
    # reads of what is due and of bodies, and one create, one move for each shard
    assert sum(calls.get(name, 0) for name in ("hset", "zadd", "zrem")) <= 7 * shards
    assert sum(calls.values()) <= 40 * shards + 20, calls


@pytest.mark.parametrize("answer_lost", [False, True], ids=["unsent", "answer-lost"])
async def test_a_kill_at_any_round_trip_leaves_each_firing_to_be_made_once(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, answer_lost: bool
) -> None:
    """Of schedules that fire once, make up for three times, and are refused."""
    await store.client.execute_all("load", [("SCRIPT", "LOAD", script.source) for script in BY_SHA.values()])
    connection = CutConnection(monkeypatch)
    for cut_at in range(MAX_ROUND_TRIPS):
        await store.redis.flushdb()
        killed = FiringWorker(store, instance="killed")
        await killed.put("one", every=60)
        await killed.put("all", every=60, catch_up="all", start=NOW / 1000)
        await killed.put("refused", every=60, topic="later/x")
        killed.at = NOW + 2 * MINUTE
        connection.round_trips, connection.cut_at, connection.answer_lost = 0, cut_at, answer_lost
        try:
            await killed.firer.tick(killed.at)
        except StoreDown:
            was_cut = True
        else:
            was_cut = False
        connection.cut_at = -1
        await killed.deliver()  # the tasks that it had created are done when the other one comes
        other = FiringWorker(store, instance="other")
        other.at = NOW + 2 * MINUTE + SECOND
        await other.fire()
        await other.deliver()
        fired = Counter([*killed.fired(), *other.fired()])
        assert fired == {
            f"s:{id}:{(NOW + n * MINUTE) // 1000}": 1 for id, n in [("one", 2), ("all", 0), ("all", 1), ("all", 2)]
        }, cut_at
        assert [(await other.state(id)).next_at for id in ("one", "all", "refused")] == [NOW + 3 * MINUTE] * 3
        assert (await other.state("refused")).refused == 1
        if not was_cut:
            assert cut_at > 4, "the tick has more steps"
            return
    pytest.fail("a tick has more round trips than were cut")


async def test_a_firing_in_a_pulled_topic_tells_the_claims_that_wait(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = FiringWorker(store)
    await worker.set_policy("report", deliver="pull")
    await worker.put(every=60, callback=None)
    notices: list[tuple[set[str], int]] = []

    async def send(self: DueNotices, topics: set[str], due_at: int) -> None:
        notices.append((topics, due_at))

    monkeypatch.setattr(DueNotices, "send", send)
    await worker.fire()
    [(topics, due_at)] = notices
    assert topics == {"report"}
    assert NOW <= due_at <= NOW + MAX_LATE_MS
    request = PullRequest([PullTopic("report", 5, 30_000)], 5)
    [result] = await store.pulls.claim([request], Interval(NOW + SECOND, NOW + SECOND))
    assert isinstance(result, PullResult)
    assert [task.task.id for task in result.tasks] == [f"s:daily:{NOW // 1000}"]
