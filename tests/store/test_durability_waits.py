"""Waits for a replica, and what a store offers."""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path

import pytest

from later.core.clock import Clock
from later.core.durability import Durability, NoOffer
from later.store.client import StoreClient
from later.store.connections import connect
from later.store.durability_waits import REPLICA_GRACE_S, DurabilityWaits
from later.store.keys import Keys
from tests.builders import a_task
from tests.servers import SERVERS, free_ports, run_replicated_server, run_server
from tests.store_fixture import open_as_it_is

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.parametrize("name", SERVERS)
async def test_a_wait_for_a_stopped_replica_reaches_the_primary_alone_also_without_a_write_before(
    name: str, tmp_path: Path
) -> None:
    with run_replicated_server(name, tmp_path) as server:
        async with open_as_it_is(server.primary_url) as store, open_as_it_is(server.primary_url) as other:
            reached = [await store.durability_waits.wait(Durability.REPLICA, 5000)]
            await other.client.open()  # which writes nothing
            with server.stopped_replica():
                await store.tasks.create([a_task(id="a", own_id=True)])
                reached.append(await store.durability_waits.wait(Durability.REPLICA, 100))
                await other.lookup.query(["a"])
                reached.append(await other.durability_waits.wait(Durability.REPLICA, 100))
            reached.append(await other.durability_waits.wait(Durability.REPLICA, 5000))

    assert reached == ["replica", "primary", "primary", "replica"]


async def test_a_wait_for_a_replicas_disk_takes_no_second(tmp_path: Path) -> None:
    with run_replicated_server("valkey", tmp_path, *ALWAYS) as server:
        async with open_as_it_is(server.primary_url) as store:
            reached = [await store.durability_waits.wait(Durability.REPLICA_DISK, 1000) for _ in range(5)]
            with server.stopped_replica():
                reached.append(await store.durability_waits.wait(Durability.REPLICA_DISK, 100))

    assert reached == ["replica-disk"] * 5 + ["primary"]


async def test_a_replica_without_a_file_reaches_no_disk(tmp_path: Path) -> None:
    with run_replicated_server("valkey", tmp_path) as server:
        async with open_as_it_is(server.primary_url) as store:
            assert await store.durability_waits.wait(Durability.REPLICA_DISK, 100) == Durability.REPLICA


async def test_a_store_that_takes_no_barrier_reaches_the_primary_alone(tmp_path: Path) -> None:
    with run_replicated_server("valkey", tmp_path) as server:
        async with open_as_it_is(server.primary_url) as store:
            await store.client.open()
            await store.redis.config_set("maxmemory", "1")
            assert await store.durability_waits.wait(Durability.REPLICA, 100) == Durability.PRIMARY


@pytest.mark.parametrize("name", SERVERS)
async def test_a_replicated_store_offers_what_its_settings_allow(name: str, tmp_path: Path) -> None:
    offered = list[list[Durability]]()
    with run_replicated_server(name, tmp_path) as server:
        async with open_as_it_is(server.primary_url) as store:
            for setting, value in (("appendonly", "yes"), ("appendfsync", "always")):
                offered.append((await store.durability_waits.offers()).levels)
                await store.redis.config_set(setting, value)
            offered.append((await store.durability_waits.offers()).levels)

    waitaof = name == "valkey"  # Debian's Redis is 7.0
    assert offered == [
        ["primary", "replica"],
        ["primary", "replica"],
        ["primary", "disk", "replica", *(["replica-disk"] if waitaof else [])],
    ]


async def test_a_server_that_does_not_sync_while_it_rewrites_its_file_offers_no_disk(tmp_path: Path) -> None:
    options = (*ALWAYS, "--no-appendfsync-on-rewrite", "yes")
    with run_server("valkey", tmp_path, *options) as (url, _):
        async with open_as_it_is(url) as store:
            offer = (await store.durability_waits.offers()).why_not(Durability.DISK)

    assert offer is not None
    assert offer.reason == "its appendfsync is always, but not during rewrites (no-appendfsync-on-rewrite)"


async def test_a_user_that_may_not_read_the_configuration_is_told_how_to_say_it(tmp_path: Path) -> None:
    with run_server("valkey", tmp_path, *ALWAYS) as (url, _):
        async with open_as_it_is(url) as store:
            await store.redis.acl_setuser("default", enabled=True, nopass=True, commands=["-config"])
            offers = [await store.durability_waits.offers(), await store.durability_waits.offers(Durability.DISK)]

    assert [offer.levels for offer in offers] == [["primary"], ["primary", "disk"]]
    assert offers[0].why_not(Durability.DISK) == NoOffer(
        Durability.DISK, "CONFIG is not allowed there; --store-offers says what it offers"
    )


@pytest.mark.parametrize("level", [Durability.REPLICA, Durability.REPLICA_DISK])
async def test_a_wait_that_takes_longer_than_the_stores_timeout_is_no_failure_of_the_store(
    level: Durability, tmp_path: Path
) -> None:
    clock = Clock(time.monotonic, time.time)
    with run_replicated_server("valkey", tmp_path, *ALWAYS) as server:
        client = StoreClient(connect(server.primary_url, clock, 0.2), clock, timeout_s=0.2)
        async with aclosing(client):
            waits = DurabilityWaits(client, Keys("later", 1), time.monotonic)
            await waits.wait(level, 1000)
            with server.stopped_replica():
                reached = await waits.wait(level, 300)  # a server looks at timeouts each 100 ms

    assert reached == Durability.PRIMARY


async def test_a_store_without_a_replica_offers_none_after_a_minute(tmp_path: Path) -> None:
    times = iter((0.0, REPLICA_GRACE_S - 1, REPLICA_GRACE_S, 0.0))
    port = str(free_ports(1)[0])
    with run_server("valkey", tmp_path, "--port", port) as (url, _):
        async with open_as_it_is(url) as store:
            waits = DurabilityWaits(store.client, store.keys, times.__next__)
            reasons = list[str | None]()
            for _ in range(3):
                offer = (await waits.offers()).why_not(Durability.REPLICA)
                reasons.append(None if offer is None else offer.reason)
            await store.redis.config_set("min-replicas-to-write", 1)
            reasons.append((await waits.offers()).why_not(Durability.REPLICA) and "refused")

    assert reasons == [None, None, "it has no replica, and min-replicas-to-write is 0", None]


async def test_a_replica_that_was_missing_long_ago_counts_for_nothing(tmp_path: Path) -> None:
    times = iter((0.0, 2 * REPLICA_GRACE_S, 3 * REPLICA_GRACE_S - 1, 3 * REPLICA_GRACE_S))
    port = str(free_ports(1)[0])
    with run_server("valkey", tmp_path, "--port", port) as (url, _):
        async with open_as_it_is(url) as store:
            waits = DurabilityWaits(store.client, store.keys, times.__next__)
            offered = [Durability.REPLICA in (await waits.offers()).levels for _ in range(4)]

    assert offered == [True, True, True, False]


async def test_a_store_to_which_no_replica_can_connect_offers_none(tmp_path: Path) -> None:
    with run_server("valkey", tmp_path) as (url, _):
        async with open_as_it_is(url) as store:
            assert (await store.durability_waits.offers()).levels == ["primary"]


async def test_each_level_that_is_not_on_offer_says_why(tmp_path: Path) -> None:
    with run_server("valkey", tmp_path) as (url, _):
        async with open_as_it_is(url) as store:
            offers = [await store.durability_waits.offers()]
            await store.redis.config_set("appendonly", "yes")
            offers.append(await store.durability_waits.offers())
            reasons = [offer.why_not(Durability.DISK) for offer in offers]
            offers.append(offers[-1]._replace(appendfsync=None))
            reasons.append(offers[-1].why_not(Durability.REPLICA_DISK))
            reasons.append((await store.durability_waits.offers(Durability.DISK)).why_not(Durability.DISK))

    assert [None if reason is None else reason.reason for reason in reasons] == [
        "its appendonly is no",
        "its appendfsync is everysec, not always",
        "CONFIG is not allowed there; --store-offers says what it offers",
        None,
    ]
