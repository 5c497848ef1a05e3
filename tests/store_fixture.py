"""The opened, empty store of a test."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster

from later.address_types import split_cluster_url
from later.core.clock import Clock
from later.core.policy import DEFAULT_POLICY, Policy
from later.store.cluster_client import is_cluster
from later.store.connections import connect
from later.store.keys import Bucket
from later.store.open import Store, connect_store
from later.store.permits import Permits
from later.store.policies import PolicyBook
from later.store.scripts import HOLD
from later.store.settings import StoreSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFixture(Store):
    """An opened store. `redis` is a plain client, with which a test reads and writes keys directly.

    On a cluster it is a `PlainCluster`, which has the same methods.
    """

    redis: Redis

    def new_permits(self, instance: str = "this") -> Permits:
        """Return the permits object of another instance."""
        return Permits(self.client, self.keys, instance)

    def new_policy_book(self, daemon: Policy = DEFAULT_POLICY) -> PolicyBook:
        """Return the policy book of another process."""
        return PolicyBook(self.client, self.keys, daemon, time.monotonic)


class PlainCluster(RedisCluster):
    """redis-py's own client of a cluster. Commands without keys go to all primaries."""

    async def execute_command(self, *command: Any, **options: Any) -> Any:
        name = str(command[0]).split()[0]
        if name not in {"CLIENT", "CONFIG", "FLUSHALL", "FLUSHDB", "KEYS", "SCRIPT"}:
            return await super().execute_command(*command, **options)
        if command[0] in {"CLIENT", "CONFIG"}:  # redis-py knows such commands by both words
            command = (f"{command[0]} {command[1]}", *command[2:])
        answers = await super().execute_command(*command, target_nodes=self.PRIMARIES)
        return next(iter(answers.values())) if isinstance(answers, dict) else answers

    def pipeline(self, transaction: bool | None = None, shard_hint: bool | None = None) -> PlainPipeline:  # type: ignore[override]
        """Return a pipeline that may have commands without keys."""
        return PlainPipeline(self)


class PlainPipeline:
    """Commands that are sent one by one, to the nodes that have their keys, or to all primaries."""

    def __init__(self, cluster: PlainCluster) -> None:
        self._cluster = cluster
        self._commands: list[tuple[Any, ...]] = []

    async def __aenter__(self) -> PlainPipeline:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    def execute_command(self, *command: Any, **options: Any) -> None:
        self._commands.append(command)

    async def execute(self) -> list[Any]:
        return [await self._cluster.execute_command(*command) for command in self._commands]


def connect_to_cluster(url: str) -> PlainCluster:
    cluster_url = split_cluster_url(url)
    assert cluster_url is not None
    nodes = [ClusterNode(seed.host, seed.port) for seed in cluster_url.seeds]
    return PlainCluster(startup_nodes=nodes, protocol=2, driver_info=None)


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
    redis: Any = connect_to_cluster(url) if is_cluster(url) else connect(url, clock, timeout_s)
    settings = StoreSettings(url=url, prefix="later", timeout_s=timeout_s)
    store = connect_store(settings, shards, clock, DEFAULT_POLICY, "this", lambda verb: lambda seconds: None)
    try:
        yield StoreFixture(redis=redis, **{field.name: getattr(store, field.name) for field in fields(Store)})
    finally:
        await redis.aclose()
        await store.aclose()
