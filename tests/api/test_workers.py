"""`GET /workers`: what the processes of all daemons told with their heartbeats."""

from __future__ import annotations

import msgspec

from later.core.clock import rfc3339
from later.core.heartbeat import Heartbeat
from later.store.instances import TRIM_EVERY_MS
from later.store.stats import FORGET_WORKER_MS
from tests.api.api_fixture import ApiFixture, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.builders import NOW

BEAT = Heartbeat(
    role="up", version="1.2.3", host="alpha", processes=2, slots=256, slots_in_use=3,
    since=NOW - 60_000, at=NOW - 1000, clock_offset_ms=-250,
)  # fmt: skip


async def names(api: ApiFixture) -> list[str]:
    _, answer = await api.get("/workers")
    return [worker["name"] for worker in answer["workers"]]


async def test_a_process_is_shown_as_it_told(api: ApiFixture) -> None:
    await api.store.instances.send("alpha:1", BEAT, delivers=True)
    _, answer = await api.get("/workers")
    assert answer["workers"] == [
        {
            "name": "alpha:1", "role": "up", "version": "1.2.3", "host": "alpha", "processes": 2, "slots": 256,
            "slots_in_use": 3, "since": rfc3339(NOW - 60_000), "last_heartbeat_at": rfc3339(NOW - 1000),
            "clock_offset_s": -0.25, "alive": True,
        }
    ]  # fmt: skip


async def test_a_process_that_only_answers_calls_is_shown_but_is_no_worker(api: ApiFixture) -> None:
    await api.store.instances.send("alpha:1", msgspec.structs.replace(BEAT, role="serve"), delivers=False)
    assert await names(api) == ["alpha:1"]
    assert await api.store.stats.workers() == {}


async def test_a_worker_of_another_version_is_shown_by_its_heartbeat(api: ApiFixture) -> None:
    await api.store.stats.heartbeat("beta:7:ab", NOW - 20_000)
    await api.redis.hset(api.keys.instances, "odd", b"{}")
    _, answer = await api.get("/workers")
    [worker] = answer["workers"]
    assert (worker["host"], worker["role"], worker["alive"]) == ("beta", None, False)


async def test_a_process_that_stopped_is_gone(api: ApiFixture) -> None:
    await api.store.instances.send("alpha:1", BEAT, delivers=True)
    await api.store.instances.remove("alpha:1")
    assert await names(api) == []


async def test_one_that_was_killed_long_ago_is_removed_from_the_store(api: ApiFixture) -> None:
    await api.store.instances.send("killed", BEAT, delivers=False)
    later = msgspec.structs.replace(BEAT, at=BEAT.at + max(FORGET_WORKER_MS, TRIM_EVERY_MS))
    await api.store.instances.send("alpha:1", later, delivers=False)
    assert [*await api.redis.hgetall(api.keys.instances)] == [b"alpha:1"]


async def test_one_that_was_killed_before_the_clock_was_set_back_is_removed(api: ApiFixture) -> None:
    ahead = msgspec.structs.replace(BEAT, at=BEAT.at + FORGET_WORKER_MS)
    await api.store.instances.send("killed", ahead, delivers=True)
    await api.store.instances.send("alpha:1", BEAT, delivers=False)
    assert await names(api) == ["alpha:1"]


async def test_a_process_is_shown_although_the_memory_of_the_store_is_full(api: ApiFixture) -> None:
    await api.store.instances.send("alpha:0", BEAT, delivers=True)
    await api.redis.config_set("maxmemory", 1)
    try:
        await api.store.instances.send("alpha:1", BEAT, delivers=True)
    finally:
        await api.redis.config_set("maxmemory", 0)
    assert await names(api) == ["alpha:0", "alpha:1"]


async def test_a_key_of_a_namespace_sees_no_workers() -> None:
    async with serve_api(authorization=NamedCallers()) as api:
        status, answer = await Tenant(api, "alpha").get("/workers")
        assert (status, answer["type"]) == (403, "/problems/not-allowed")
