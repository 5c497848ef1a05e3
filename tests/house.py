"""An opened, empty store with everything that stands on it, for the tests."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from later.core.clock import Clock
from later.core.policy import Policy
from later.store.bulk_jobs import Jobs
from later.store.client import Client, connect
from later.store.expiry import Ends
from later.store.keys import Keys
from later.store.permits import Flow
from later.store.policies import PolicyBook
from later.store.schema import check_store
from later.store.stats import Census
from later.store.tasks import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class House:
    """`redis` looks at the store behind later's back."""

    redis: Redis
    client: Client
    clock: Clock
    keys: Keys
    store: Store
    census: Census
    jobs: Jobs
    ends: Ends

    def flow(self, instance: str = "this") -> Flow:
        return Flow(self.client, self.keys, instance)

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
            store=Store(client, keys, clock), census=Census(client, keys), jobs=Jobs(client, keys),
            ends=Ends(client, keys),
        )  # fmt: skip
    finally:
        await client.aclose()
