"""The store, open: everything that reads or writes it, on one client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from later.core.clock import Clock
from later.core.policy import Policy
from later.store.bulk_jobs import Jobs
from later.store.client import Client, connect
from later.store.doctor import Doctor
from later.store.expiry import Ends
from later.store.keys import Keys
from later.store.policies import PolicyBook
from later.store.schema import Run, stored_shards
from later.store.settings import Place
from later.store.stats import Census
from later.store.tasks import Store


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


def build(
    place: Place,
    shards: int,
    policy: Policy,
    clock: Clock,
    observe: Callable[[str, float], None],
    check: Callable[[Run], Awaitable[None]] | None = None,
) -> Memory:
    """The store at a place. `policy` is what applies where nothing is set; the others are as `Client` takes them."""
    client = Client(
        connect(place.url, clock, place.timeout_s),
        timeout_s=place.timeout_s,
        monotonic=clock.monotonic,
        observe=observe,
        check=check,
    )
    keys = Keys(place.prefix, shards)
    return Memory(
        client=client,
        clock=clock,
        store=Store(client, keys, clock),
        census=Census(client, keys),
        jobs=Jobs(client, keys),
        ends=Ends(client, keys),
        policies=PolicyBook(client, keys, policy, clock.monotonic),
        doctor=Doctor(client, keys),
        shards=shards,
        keys=keys,
    )


async def build_as_laid_out(
    place: Place, shards: int, policy: Policy, clock: Clock, observe: Callable[[str, float], None]
) -> Memory:
    """The same with as many shards as the data there has; `shards` where there is none.

    Raises:
        StoreDown: it cannot be reached.
    """
    memory = build(place, shards, policy, clock, observe)
    try:
        stored = await stored_shards(memory.client.run, place.prefix)
    except BaseException:
        await memory.client.aclose()
        raise
    if stored is None or stored == shards:
        return memory
    await memory.client.aclose()
    return build(place, stored, policy, clock, observe)
