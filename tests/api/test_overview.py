"""`GET /overview`: what is wrong, in one sentence, the numbers of the whole store, and the worst topics."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from later.api.overview import MAX_KEPT, OverviewHandler
from later.core.clock import rfc3339
from later.core.history import SHORT
from later.core.policy import Policy
from later.core.snapshot import MAX_ROWS
from later.store.holds import hold_entry
from later.store.keys import Bucket
from tests.api.api_fixture import ApiFixture, bad_request, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.api.test_workers import BEAT
from tests.builders import NOW, a_task
from tests.round_trips import count_round_trips

LOW = NOW - 2
"""The low end of the store's time, which decides whether a task is due."""


SLOT: dict[Any, Any] = {"p": 1, "c": 20, "d": 10, "xe": 3}
"""A slot of the history: its presence, 20 creates, 10 deliveries, 3 deaths."""


async def show(api: ApiFixture, query: str = "") -> dict[str, Any]:
    status, answer = await api.get(f"/overview{query}")
    assert status == 200, answer
    overview: dict[str, Any] = answer
    return overview


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an overview for each call."""
    monkeypatch.setattr("later.api.overview.KEPT_S", 0.0)


async def test_an_empty_store_without_workers(api: ApiFixture) -> None:
    overview = await show(api)
    server = overview.pop("store")
    assert (server["up"], server["max_memory"]) == (True, 0)
    assert server["memory"] > 0
    assert overview == {
        "at": rfc3339(LOW),
        "counted_at": rfc3339(LOW),
        "level": "warn",
        "sentence": "No worker is running: nothing is delivered",
        "topic": None,
        "workers": {"count": 0, "slots": 0, "slots_in_use": 0, "last_heartbeat_at": None},
        "tasks": {"delay": 0, "unack": 0, "error": 0, "dead": 0},
        "due": 0,
        "oldest_lateness_s": None,
        "oldest_held_lateness_s": None,
        "topics_total": 0,
        "topics_paused": 0,
        "rates": None,
        "lateness": None,
        "topics": [],
    }


async def test_workers_are_counted_with_their_slots(api: ApiFixture) -> None:
    await api.store.instances.send("alpha:1", BEAT, delivers=True)
    await api.store.instances.send("alpha:2", msgspec.structs.replace(BEAT, role="serve"), delivers=False)
    await api.store.stats.heartbeat("beta:1", NOW - 60_000)
    overview = await show(api)
    assert overview["level"] == "ok"
    assert overview["workers"] == {
        "count": 1, "slots": 256, "slots_in_use": 3, "last_heartbeat_at": rfc3339(NOW - 1000)
    }  # fmt: skip


async def test_the_sentence_is_about_the_worst_topic_and_it_comes_first(api: ApiFixture) -> None:
    await api.store.instances.send("alpha:1", BEAT, delivers=True)
    await api.post("/topics/parked/pause", {})
    await api.store.tasks.create([
        a_task(id="a", topic="calm", delay=600, created_at=NOW),
        a_task(id="b", topic="parked", delay=0, created_at=NOW - 700_000),
        a_task(id="c", topic="late", delay=0, created_at=NOW - 90_000),
    ])  # fmt: skip
    overview = await show(api)
    assert (overview["level"], overview["topic"]) == ("bad", "late")
    assert overview["sentence"].startswith("late: 1 task is due, the oldest for 90 s")
    assert [(row["topic"], row["held"], row["paused"]) for row in overview["topics"]] == [
        ("late", "no", False), ("parked", "pause", True), ("calm", "no", False),
    ]  # fmt: skip
    assert (overview["due"], overview["topics_total"], overview["topics_paused"]) == (2, 3, 1)
    assert overview["oldest_lateness_s"] == (90_000 - 2) / 1000
    assert overview["oldest_held_lateness_s"] == (700_000 - 2) / 1000


async def test_without_the_late_topic_the_paused_one_is_told(api: ApiFixture) -> None:
    await api.store.instances.send("alpha:1", BEAT, delivers=True)
    await api.post("/topics/parked/pause", {})
    await api.store.tasks.create([a_task(id="b", topic="parked", delay=0, created_at=NOW - 130_000)])
    overview = await show(api)
    assert overview["level"] == "warn"
    assert overview["sentence"] == "parked: its topic is paused; 1 task is due, the oldest for 2 min"


async def test_a_topic_shows_its_limits() -> None:
    async with serve_api(policy=Policy(concurrency=1)) as api:
        await api.request("PUT", "/topics/order/policy", {"rate": 2})
        await api.request("PUT", "/topics/jobs/policy", {"deliver": "pull", "concurrency": 0})
        await api.store.tasks.create([a_task(id="a", topic="order"), a_task(id="b", topic="jobs")])
        rows = {row["topic"]: row for row in (await show(api))["topics"]}
    assert (rows["order"]["rate"], rows["order"]["concurrency"], rows["order"]["deliver"]) == (2.0, 1, "push")
    assert (rows["jobs"]["rate"], rows["jobs"]["concurrency"], rows["jobs"]["deliver"]) == (None, None, "pull")


@pytest.mark.usefixtures("nothing_kept")
async def test_a_topic_whose_rate_lets_it_go_for_a_moment_still_counts_as_held(api: ApiFixture) -> None:
    await api.request("PUT", "/topics/order/policy", {"rate": 2})
    await api.store.tasks.create([a_task(id="a", delay=0, created_at=NOW - 90_000)])
    wakes = api.keys.shards[0].wakes[Bucket.DELAY]
    await api.redis.zadd(wakes, {"order": hold_entry(NOW + 500, for_rate=True)})
    assert [row["held"] for row in (await show(api))["topics"]] == ["rate"]
    await api.redis.zadd(wakes, {"order": hold_entry(NOW - 100, for_rate=True)})
    [row] = (await show(api))["topics"]
    assert row["held"] == "rate"


@pytest.mark.usefixtures("nothing_kept")
async def test_the_numbers_are_those_of_now_although_the_census_is_older(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="a", delay=600)])
    assert (await show(api))["tasks"]["delay"] == 1
    await api.store.tasks.create([a_task(id="b", delay=600)])
    [row] = (await show(api))["topics"]
    assert row["delay"] == 2


async def test_rates_and_lateness_are_those_of_the_last_full_slot(api: ApiFixture) -> None:
    slot = SHORT.last_full(LOW)
    await api.redis.hset(api.keys.history(SHORT.length_ms, slot), mapping=SLOT)
    overview = await show(api)
    assert overview["rates"] == {
        "slot_at": rfc3339(slot), "step_s": 10, "created": 2.0, "done": 1.0, "failed": 0.0, "busy": 0.0, "gone": 0.0,
        "dead": 0.3, "retries": 0.0,
    }  # fmt: skip
    assert overview["lateness"] is None


async def test_however_many_look_an_overview_is_made_once(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="a", delay=600)])
    await api.get("/overview?topics=0")
    async with count_round_trips(api.store) as round_trips:
        await asyncio.gather(*(show(api, f"?topics={number}") for number in range(20)))
    assert round_trips == []


@pytest.mark.usefixtures("nothing_kept")
async def test_an_overview_takes_four_round_trips_even_if_policies_must_be_read(api: ApiFixture) -> None:
    policy = {"concurrency": 1}
    await api.request("PUT", "/topics/order/policy", policy)
    await api.store.tasks.create([a_task(id="a", delay=0, created_at=NOW - 90_000)])
    await show(api)
    api.store.policies._read_at = float("-inf")
    async with count_round_trips(api.store) as round_trips:
        await show(api)
    assert len(round_trips) == 4


@pytest.mark.usefixtures("nothing_kept")
async def test_a_failed_overview_is_not_kept(api: ApiFixture) -> None:
    await api.store.tasks.create([a_task(id="a", delay=600)])
    await show(api)
    api.client.shards_down = [0]
    assert (await api.get("/overview"))[0] == 503
    api.client.shards_down = []
    await show(api)


async def test_a_wrong_number_of_topics_is_refused(api: ApiFixture) -> None:
    for wrong in ("-1", "201", "x", "", "0001", "٣"):
        detail = f"topics: expected an integer from 0 to 200, got {wrong!r}".replace("'", '"')
        assert await api.get(f"/overview?topics={wrong}") == bad_request(detail, "topics")
    assert (await show(api, "?topics=0"))["topics"] == []


async def test_a_key_of_a_namespace_sees_its_topics_and_nothing_of_the_store() -> None:
    async with serve_api(authorization=NamedCallers()) as api:
        await api.store.instances.send("alpha:1", BEAT, delivers=True)
        mine, before = Tenant(api, "alpha"), Tenant(api, "beta")
        await api.store.tasks.create([a_task(id="a", topic="alpha/x", delay=600)])
        await api.store.tasks.create([
            a_task(id=f"b{number}", topic=f"gamma/{number}", delay=0, created_at=NOW - 90_000) for number in range(3)
        ])  # fmt: skip
        await api.redis.hset(api.keys.history(SHORT.length_ms, SHORT.last_full(LOW)), mapping=SLOT)
        _, empty = await before.get("/overview")
        _, answer = await mine.get("/overview")
        _, all_ = await Tenant(api, "operator").get("/overview")
    assert (empty["topics"], empty["topics_total"], empty["level"]) == ([], 0, "ok")
    assert [row["topic"] for row in answer["topics"]] == ["alpha/x"]
    assert (answer["level"], answer["due"], answer["topics_total"]) == ("ok", 0, 1)
    assert answer["tasks"] == {"delay": 1, "unack": 0, "error": 0, "dead": 0}
    assert [answer[name] for name in ("store", "workers", "rates", "lateness")] == [None] * 4
    assert (all_["level"], all_["topics_total"]) == ("bad", 4)
    assert all_["rates"] is not None


async def test_a_tenant_is_told_of_its_late_tasks_although_the_topics_of_others_are_worse() -> None:
    async with serve_api(authorization=NamedCallers()) as api:
        await api.store.instances.send("w", BEAT, delivers=True)
        names = [f"b/{number}" for number in range(MAX_ROWS)]
        api.metrics.topics.refresh(names)
        await api.store.tasks.create([
            a_task(id=f"{name}/{n}", topic=name, delay=0, created_at=NOW - 200_000) for name in names for n in (1, 2)
        ])  # fmt: skip
        await api.store.tasks.create([a_task(id="a", topic="alpha/x", delay=0, created_at=NOW - 120_000)])
        _, answer = await Tenant(api, "alpha").get("/overview")
    assert (answer["topics"], answer["topics_total"]) == ([], 1)
    assert (answer["level"], answer["sentence"]) == ("bad", "1 task is due, the oldest for 120 s")


async def test_overviews_of_many_namespaces_are_not_all_kept(api: ApiFixture) -> None:
    handler = OverviewHandler(api.store, lambda: asyncio.sleep(0, None))
    await asyncio.gather(*(handler._share(f"n{number}") for number in range(MAX_KEPT + 5)))
    assert len(handler._kept) == MAX_KEPT


async def test_the_commands_of_an_overview_do_not_grow_with_the_topics() -> None:
    """Of 10,000 topics in 16 shards, those are counted again that one round trip takes."""
    async with serve_api(shards=16) as api:
        for start in range(0, 10_000, 1000):
            await api.store.tasks.create(
                [a_task(id=f"t{n}", own_id=True, topic=f"topic{n}", delay=60) for n in range(start, start + 1000)]
            )
        await api.get("/overview")
        snapshot = await api.store.snapshots.read(None)
        assert snapshot is not None
        assert snapshot.total.topics == 10_000
        async with count_round_trips(api.store) as round_trips:
            await OverviewHandler(api.store, lambda: asyncio.sleep(0, snapshot))._make(None)
    assert len(round_trips) <= 4
    assert sum(len(commands) for commands in round_trips) <= 2 * 16 + 4
