"""Fixtures: a store for callers that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import redis

from later.core.clock import Clock
from later.core.policy import DEFAULT
from later.store.keys import Keys
from later.store.open import Store, connect_store
from later.store.settings import StoreSettings


class Stored(NamedTuple):
    """A store that a daemon has laid out; `redis` looks at it behind later's back."""

    place: StoreSettings
    redis: redis.Redis
    keys: Keys

    def tasks(self) -> int:
        """How many there are."""
        return sum(self.redis.hlen(shard.pool) for shard in self.keys.shards)


@pytest.fixture
def stored(server_url: str, shards: int) -> Iterator[Stored]:
    """An empty store."""
    place = StoreSettings(url=server_url, prefix="later", timeout_s=10)
    with redis.Redis.from_url(server_url) as client:
        client.flushall()
        asyncio.run(lay_out(place, shards))
        yield Stored(place, client, Keys("later", shards))


async def lay_out(place: StoreSettings, shards: int) -> None:
    """As a daemon's first start does."""
    store = a_store(place, shards)
    await store.client.open()
    await store.aclose()


def a_store(place: StoreSettings, shards: int) -> Store:
    return connect_store(
        place, shards, Clock(time.monotonic, time.time), DEFAULT, "", lambda verb: lambda seconds: None
    )
