"""The opened, empty store of a test."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields

from redis.asyncio import Redis

from later.core.clock import Clock
from later.core.policy import DEFAULT_POLICY, Policy
from later.store.connections import connect
from later.store.keys import Bucket
from later.store.open import Store, connect_store
from later.store.permits import Permits
from later.store.policies import PolicyBook
from later.store.scripts import HOLD
from later.store.settings import StoreSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFixture(Store):
    """An opened store. `redis` is a plain client, with which a test reads and writes keys directly."""

    redis: Redis

    def new_permits(self, instance: str = "this") -> Permits:
        """Return the permits object of another instance."""
        return Permits(self.client, self.keys, instance)

    def new_policy_book(self, daemon: Policy = DEFAULT_POLICY) -> PolicyBook:
        """Return the policy book of another process."""
        return PolicyBook(self.client, self.keys, daemon, time.monotonic)


async def hold_topic(store: Store, topic: str, until: int) -> None:
    """Let nothing of a topic be claimed before `until` (ms), in any shard, as earlier versions did."""
    holds = [HOLD.call([shard.wakes[Bucket.DELAY], shard.topics], [topic, until]) for shard in store.keys.shards]
    await store.client.execute_all("hold", holds)


@asynccontextmanager
async def open_store(url: str, shards: int = 1, timeout_s: float = 10.0) -> AsyncIterator[StoreFixture]:
    """Empty the store at `url` and open it. `timeout_s` is longer than any call takes, even on a busy machine."""
    async with open_as_it_is(url, shards, timeout_s) as store:
        await store.redis.flushall()
        yield store


@asynccontextmanager
async def open_as_it_is(url: str, shards: int = 1, timeout_s: float = 10.0) -> AsyncIterator[StoreFixture]:
    """Open the store at `url` with what it holds."""
    clock = Clock(time.monotonic, time.time)
    redis = connect(url, clock, timeout_s)
    settings = StoreSettings(url=url, prefix="later", timeout_s=timeout_s)
    store = connect_store(settings, shards, clock, DEFAULT_POLICY, "this", lambda verb: lambda seconds: None)
    try:
        yield StoreFixture(redis=redis, **{field.name: getattr(store, field.name) for field in fields(Store)})
    finally:
        await redis.aclose()
        await store.aclose()
