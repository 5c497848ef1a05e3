"""Fixtures: a store for synchronous callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import redis

from later.core.admission_limits import AdmissionLimits
from later.core.clock import Clock
from later.core.policy import DEFAULT_POLICY
from later.store.admission import write_limits
from later.store.keys import Keys
from later.store.open import Store, connect_store
from later.store.settings import StoreSettings


class LaidOutStore(NamedTuple):
    """A store that a daemon has laid out. `redis` inspects it directly."""

    settings: StoreSettings
    redis: redis.Redis
    keys: Keys

    def task_count(self) -> int:
        return sum(self.redis.hlen(shard.pool) for shard in self.keys.shards)


@pytest.fixture
def stored(server_url: str, shards: int) -> Iterator[LaidOutStore]:
    """An empty store."""
    settings = StoreSettings(url=server_url, prefix="later", timeout_s=10)
    with redis.Redis.from_url(server_url) as client:
        client.flushall()
        asyncio.run(lay_out(settings, shards))
        yield LaidOutStore(settings, client, Keys("later", shards))


LIMITS = AdmissionLimits(max_body=1024 * 1024, remember_ms=7 * 86_400_000)


async def lay_out(settings: StoreSettings, shards: int, limits: AdmissionLimits = LIMITS) -> None:
    """Lay the store out, as a daemon's first start does."""
    store = build_store(settings, shards)
    await store.client.open()
    await write_limits(store.client.execute_each, settings.prefix, limits)
    await store.aclose()


def build_store(settings: StoreSettings, shards: int) -> Store:
    return connect_store(
        settings, shards, Clock(time.monotonic, time.time), DEFAULT_POLICY, "", lambda verb: lambda seconds: None
    )
