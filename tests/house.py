"""An opened, empty store with everything that stands on it, for the tests."""

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
class House:
    """`redis` looks at the store behind later's back."""

    redis: Redis
    client: Client
    clock: Clock
    keys: Keys
    store: Tasks
    census: Stats
    jobs: BulkJobs
    ends: Expiry

    def flow(self, instance: str = "this") -> Permits:
        return Permits(self.client, self.keys, instance)

    def policies(self, daemon: Policy | None = None) -> PolicyBook:
        """As another process would know them."""
        return PolicyBook(self.client, self.keys, daemon or Policy(), time.monotonic)


@asynccontextmanager
async def a_house(url: str, shards: int = 1, timeout_s: float = 10.0) -> AsyncIterator[House]:
    """The store behind `url`, emptied and opened. Nothing that is well takes `timeout_s`, on a busy machine either."""
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
        yield House(
            redis=redis, client=client, clock=clock, keys=keys,
            store=Tasks(client, keys, clock), census=Stats(client, keys), jobs=BulkJobs(client, keys),
            ends=Expiry(client, keys),
        )  # fmt: skip
    finally:
        await client.aclose()
