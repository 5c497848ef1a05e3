"""The clock of `later dev`: it is moved in the store, which nothing else may use then."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from later.core.clock import Clock
from later.core.errors import StoreMismatch
from later.core.policy import DEFAULT_POLICY
from later.store.holds import hold_entry
from later.store.keys import Bucket
from later.store.moved_clock import DueWork
from later.store.open import Store, connect_store, open_existing_store, open_store
from later.store.permits import PermitRequest
from later.store.settings import StoreSettings
from later.store.types import ClaimRequest
from tests.builders import NOW, a_task
from tests.store.inspection import ask
from tests.store_fixture import StoreFixture

DAY_MS = 86_400_000
NOTHING = DueWork(is_due=False, held_until=None, next_at=None)


@asynccontextmanager
async def open_moved(url: str, shards: int) -> AsyncIterator[Store]:
    settings = StoreSettings(url=url, prefix="later", timeout_s=10)
    clock = Clock(time.monotonic, time.time)
    store = connect_store(
        settings, shards, clock, DEFAULT_POLICY, "", lambda verb: lambda seconds: None, moves_clock=True
    )
    try:
        yield store
    finally:
        await store.aclose()


async def test_a_clock_stays_moved_when_the_store_is_opened_again(
    store: StoreFixture, server_url: str, shards: int
) -> None:
    async with open_moved(server_url, shards) as moved:
        before = await moved.time.now()
        await moved.moved_clock.move(30 * DAY_MS)
        await moved.moved_clock.move(DAY_MS)
        assert 31 * DAY_MS <= (await moved.time.now()).low - before.low < 32 * DAY_MS
    async with open_moved(server_url, shards) as again:
        assert 31 * DAY_MS <= (await again.time.now()).low - before.low < 32 * DAY_MS
    settings = StoreSettings(url=server_url, prefix="later", timeout_s=10)
    clock = Clock(time.monotonic, time.time)
    inspected = await open_store(settings, clock, DEFAULT_POLICY, shards)
    assert 31 * DAY_MS <= (await inspected.time.now()).low - before.low < 32 * DAY_MS
    await inspected.aclose()


async def test_no_other_daemon_and_no_job_may_use_a_store_with_a_moved_clock(
    store: StoreFixture, server_url: str, shards: int
) -> None:
    async with open_moved(server_url, shards) as moved:
        await moved.client.open()
    text = "this is the store of a `later dev`, whose clock is moved: no other daemon or job may use it"
    with pytest.raises(StoreMismatch, match=text):
        await store.tasks.create([a_task()])
    with pytest.raises(StoreMismatch, match=text):
        await open_existing_store(
            StoreSettings(url=server_url, prefix="later", timeout_s=10), Clock(time.monotonic, time.time)
        )
    assert await ask(store, [("KEYS", "*")]) == [[b"later:meta"]]


async def test_the_clock_of_an_ordinary_store_cannot_be_moved(
    store: StoreFixture, server_url: str, shards: int
) -> None:
    await store.client.open()
    async with open_moved(server_url, shards) as moved:
        with pytest.raises(StoreMismatch, match="this is the store of an ordinary daemon"):
            await moved.client.open()
    assert await store.tasks.create([a_task()]) == [True]


async def test_what_the_store_itself_ends_ends_earlier_by_a_move(
    store: StoreFixture, server_url: str, shards: int
) -> None:
    async with open_moved(server_url, shards) as moved:
        await moved.permits.acquire([PermitRequest("order", 0, 1, 0, NOW + DAY_MS, 1.0, 0)], NOW)
        await moved.moved_clock.move(DAY_MS // 2)
        (left_ms,) = await ask(store, [("PTTL", moved.keys.permits("order"))])
        assert 0 < left_ms <= DAY_MS // 2
        await moved.moved_clock.move(DAY_MS)
        (left_ms,) = await ask(store, [("PTTL", moved.keys.permits("order"))])
        assert left_ms <= 1
        assert await ask(store, [("HGET", "later:meta", "needs")]) == [b"moved-clock"]


async def test_a_look_tells_what_is_due_and_when_something_will_be(store: StoreFixture) -> None:
    look = store.moved_clock.look
    assert await look(NOW) == NOTHING
    await store.tasks.create([a_task(id="later", delay=60), a_task(id="sooner", delay=20, ttl=40)])
    assert await look(NOW) == NOTHING._replace(next_at=NOW + 20_000)
    assert (await look(NOW + 20_000)).is_due
    await store.tasks.claim([ClaimRequest("order", store.keys.shard_of("sooner").index, 1)], NOW + 20_000, NOW + 30_000)
    assert await look(NOW + 20_000) == NOTHING._replace(next_at=NOW + 30_000)


async def test_a_topic_that_is_held_for_a_moment_waits_and_one_that_is_paused_has_nothing_to_do(
    store: StoreFixture,
) -> None:
    await store.tasks.create([a_task(id="1", topic="slow"), a_task(id="2", topic="paused")])
    await store.permits.hold_paused([("paused", store.keys.shard_of("2").index)])
    wake = store.keys.shard_of("1").wakes[Bucket.DELAY]
    await ask(store, [("ZADD", wake, str(hold_entry(NOW + 700, for_rate=True)), "slow")])
    assert await store.moved_clock.look(NOW) == DueWork(is_due=False, held_until=NOW + 700, next_at=NOW + 700)
    assert (await store.moved_clock.look(NOW + 700)).is_due
