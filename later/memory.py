"""The store, open: everything that reads or writes it, built from a Config."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from later.config import Config
from later.core.clock import Clock
from later.metrics import Metrics
from later.store.census import Census
from later.store.client import Client, connect
from later.store.doctor import Doctor
from later.store.ends import Ends
from later.store.jobs import Jobs
from later.store.keys import Keys
from later.store.opening import check_store, stored_shards
from later.store.policies import PolicyBook
from later.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The store, open, and all that reads or writes it."""

    client: Client
    clock: Clock
    store: Store
    census: Census
    jobs: Jobs
    ends: Ends
    policies: PolicyBook
    doctor: Doctor
    shards: int
    keys: Keys


@asynccontextmanager
async def open_memory(config: Config) -> AsyncIterator[Memory]:
    """The store for a command that looks at it: laid out as its data is, whatever --shards says.

    Raises:
        StoreDown: it cannot be reached.
    """
    memory = build_memory(config, config.store_url, config.shards, Metrics(), checked=False)
    try:
        shards = await stored_shards(memory.client.run, config.prefix)
        if shards is not None and shards != config.shards:
            await memory.client.aclose()
            memory = build_memory(config, config.store_url, shards, Metrics(), checked=False)
        yield memory
    finally:
        await memory.client.aclose()


def build_memory(config: Config, url: str, shards: int, metrics: Metrics, *, checked: bool) -> Memory:
    clock = Clock(time.monotonic, time.time)
    client = Client(
        connect(url, clock, config.store_timeout_ms / 1000),
        timeout_s=config.store_timeout_ms / 1000,
        monotonic=time.monotonic,
        observe=metrics.observe_store,
        check=(lambda run: check_store(run, config.prefix, shards)) if checked else None,
    )
    keys = Keys(config.prefix, shards)
    return Memory(
        client=client,
        clock=clock,
        store=Store(client, keys, clock),
        census=Census(client, keys),
        jobs=Jobs(client, keys),
        ends=Ends(client, keys),
        policies=PolicyBook(client, keys, config.policy, time.monotonic),
        doctor=Doctor(client, keys),
        shards=shards,
        keys=keys,
    )
