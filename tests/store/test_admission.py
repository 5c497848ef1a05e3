"""Daemons write into the store by which options they admit tasks: the last one counts."""

from __future__ import annotations

from later.core.admission_limits import AdmissionLimits
from later.core.policy import Policy
from later.store.admission import read_limits, write_limits
from tests.store.inspection import ask
from tests.store_fixture import StoreFixture

FIRST = AdmissionLimits(max_body=1024, remember_ms=500, policy=Policy(retry=7))
SECOND = AdmissionLimits(max_body=2048, remember_ms=500, policy=Policy(retry=8))


async def write(store: StoreFixture, limits: AdmissionLimits) -> list[str]:
    return await write_limits(store.client.execute_each, "later", limits)


async def read(store: StoreFixture) -> AdmissionLimits | None:
    return await read_limits(store.client.execute_each, "later")


async def test_there_are_none_before_a_daemon_has_run(store: StoreFixture) -> None:
    assert await read(store) is None


async def test_of_several_daemons_the_last_one_counts_and_is_told_what_differs(store: StoreFixture) -> None:
    assert await write(store, FIRST) == []
    assert await write(store, SECOND) == ["max_body", "retry"]
    assert await read(store) == SECOND


async def test_the_same_limits_are_not_written_again(store: StoreFixture) -> None:
    await write(store, FIRST)
    before = await store.redis.info("persistence")
    assert await write(store, FIRST) == []
    after = await store.redis.info("persistence")
    assert after["rdb_changes_since_last_save"] == before["rdb_changes_since_last_save"]


async def test_unreadable_limits_are_replaced(store: StoreFixture) -> None:
    await ask(store, [("HSET", "later:meta", "admission", "nonsense")])
    assert await write(store, FIRST) == []
    assert await read(store) == FIRST


async def test_they_are_written_to_a_full_store_too(store: StoreFixture) -> None:
    await write(store, FIRST)
    await ask(store, [("CONFIG", "SET", "maxmemory", 1)])
    try:
        assert await write(store, SECOND) == ["max_body", "retry"]
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory", 0)])
    assert await read(store) == SECOND
