"""The opened, empty store of a test, with the parts that work on it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from later.core.clock import Clock
from later.core.policy import Policy
from later.store.bulk_jobs import BulkJobs
from later.store.client import Client, connect
from later.store.expiry import Expiry
from later.store.keys import Keys
from later.store.permits import Permits
from later.store.policies import PolicyBook
from later.store.schema import check_store
from later.store.stats import Stats
from later.store.tasks import Tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFixture:
    """An opened store and its parts. `redis` is a plain client, to look at keys without them."""

    redis: Redis
    client: Client
    clock: Clock
    keys: Keys
    tasks: Tasks
    stats: Stats
    bulk_jobs: BulkJobs
    expiry: Expiry

    def permits(self, instance: str = "this") -> Permits:
        return Permits(self.client, self.keys, instance)

    def policies(self, daemon: Policy | None = None) -> PolicyBook:
        """Return the policies as another process would know them."""
        return PolicyBook(self.client, self.keys, daemon or Policy(), time.monotonic)


@asynccontextmanager
async def open_store(url: str, shards: int = 1, timeout_s: float = 10.0) -> AsyncIterator[StoreFixture]:
    """Empty the store at `url` and open it. `timeout_s` is longer than any call takes, even on a busy machine."""
    clock = Clock(time.monotonic, time.time)
    redis = connect(url, clock, timeout_s)
    await redis.flushall()
    keys = Keys("later", shards)
    client = Client(
        redis,
        timeout_s=timeout_s,
        monotonic=time.monotonic,
        observe=lambda verb, seconds: None,
        check=lambda run: check_store(run, "later", shards),
    )
    try:
        yield StoreFixture(
            redis=redis, client=client, clock=clock, keys=keys,
            tasks=Tasks(client, keys, clock), stats=Stats(client, keys),
            bulk_jobs=BulkJobs(client, keys), expiry=Expiry(client, keys),
        )  # fmt: skip
    finally:
        await client.aclose()
