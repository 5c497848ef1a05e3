"""The store, open: everything that reads or writes it, on one client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from later.core.clock import Clock
from later.core.policy import Policy
from later.store.bulk_jobs import BulkJobs
from later.store.client import Client, connect
from later.store.doctor import Doctor
from later.store.expiry import Expiry
from later.store.keys import Keys
from later.store.policies import PolicyBook
from later.store.schema import Execute, stored_shards
from later.store.settings import StoreSettings
from later.store.stats import Stats
from later.store.tasks import Tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """The store, open, and all that reads or writes it."""

    client: Client
    clock: Clock
    tasks: Tasks
    stats: Stats
    bulk_jobs: BulkJobs
    expiry: Expiry
    policies: PolicyBook
    doctor: Doctor
    shards: int
    keys: Keys


def build(
    place: StoreSettings,
    shards: int,
    policy: Policy,
    clock: Clock,
    observe: Callable[[str, float], None],
    check: Callable[[Execute], Awaitable[None]] | None = None,
) -> Store:
    """The store at a place. `policy` is what applies where nothing is set; the others are as `Client` takes them."""
    client = Client(
        connect(place.url, clock, place.timeout_s),
        timeout_s=place.timeout_s,
        monotonic=clock.monotonic,
        observe=observe,
        check=check,
    )
    keys = Keys(place.prefix, shards)
    return Store(
        client=client,
        clock=clock,
        tasks=Tasks(client, keys, clock),
        stats=Stats(client, keys),
        bulk_jobs=BulkJobs(client, keys),
        expiry=Expiry(client, keys),
        policies=PolicyBook(client, keys, policy, clock.monotonic),
        doctor=Doctor(client, keys),
        shards=shards,
        keys=keys,
    )


async def build_as_laid_out(
    place: StoreSettings, shards: int, policy: Policy, clock: Clock, observe: Callable[[str, float], None]
) -> Store:
    """The same with as many shards as the data there has; `shards` where there is none.

    Raises:
        StoreDown: it cannot be reached.
    """
    memory = build(place, shards, policy, clock, observe)
    try:
        stored = await stored_shards(memory.client.execute_each, place.prefix)
    except BaseException:
        await memory.client.aclose()
        raise
    if stored is None or stored == shards:
        return memory
    await memory.client.aclose()
    return build(place, stored, policy, clock, observe)
