"""A store is refused before anything is written to it, or used as it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from later.core.clock import Clock
from later.core.errors import StoreMismatch
from later.store import schema
from later.store.client import StoreClient
from later.store.connections import connect
from later.store.schema import check_server, check_store, stored_layout
from tests.builders import a_task
from tests.cases import each_case
from tests.servers import SERVERS, free_ports, run_server
from tests.store.inspection import ask
from tests.store_fixture import StoreFixture


def a_client(url: str, shards: int, prefix: str = "later") -> StoreClient:
    clock = Clock(time.monotonic, time.time)
    return StoreClient(
        connect(url, clock, 10),
        clock,
        timeout_s=10,
        check=lambda run: check_store(run, prefix, shards),
    )


@pytest.mark.one_server
async def test_the_first_opening_writes_the_layout(store: StoreFixture, shards: int) -> None:
    assert await stored_layout(store.client.execute_each, "other") is None
    await store.client.open()
    assert (await ask(store, [("HGETALL", "later:meta")]))[0] == {
        b"schema": b"1",
        b"shards": b"%d" % shards,
        b"topics": b"1",
    }
    assert await stored_layout(store.client.execute_each, "later") == (shards, 1)


async def test_it_is_opened_again_with_the_same_layout(store: StoreFixture, server_url: str, shards: int) -> None:
    await store.client.open()
    client = a_client(server_url, shards)
    await client.open()
    await client.aclose()


@pytest.mark.parametrize("verb", ["open", "execute_each"])
async def test_another_number_of_shards_is_refused(
    store: StoreFixture, server_url: str, shards: int, verb: str
) -> None:
    await store.client.open()
    client = a_client(server_url, shards + 1)
    for _ in range(2):
        with pytest.raises(StoreMismatch, match=f"--shards {shards + 1}: .* --shards {shards}:"):
            await (client.open() if verb == "open" else client.execute("set", ("SET", "x", "y")))
    assert (await ask(store, [("EXISTS", "x")])) == [0]
    await client.aclose()


async def test_data_of_another_schema_is_refused(store: StoreFixture) -> None:
    await ask(store, [("HSET", "later:meta", "schema", 2, "shards", 1)])
    with pytest.raises(StoreMismatch, match="schema version 2, this later knows 1"):
        await store.tasks.create([a_task()])


@pytest.mark.parametrize("needs", ["tags2", "tags2,pull", " pull, ,tags2,"])
async def test_a_store_that_needs_what_is_not_known_is_refused_by_name(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, needs: str
) -> None:
    monkeypatch.setattr(schema, "KNOWN_NEEDS", frozenset({"pull"}))
    await ask(store, [("HSET", "later:meta", "schema", 1, "shards", len(store.keys.shards), "needs", needs)])
    text = "the store's data needs what this version of later does not know: tags2: update later, or choose another"
    for _ in range(2):
        with pytest.raises(StoreMismatch, match=text):
            await store.tasks.create([a_task()])
    assert (await ask(store, [("KEYS", "*")])) == [[b"later:meta"]]


@pytest.mark.one_server
@pytest.mark.parametrize("needs", ["", "pull", "follow-ups,pull"])
async def test_a_store_that_needs_what_is_known_is_used(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch, needs: str
) -> None:
    monkeypatch.setattr(schema, "KNOWN_NEEDS", frozenset({"pull", "follow-ups"}))
    await ask(store, [("HSET", "later:meta", "schema", 1, "shards", len(store.keys.shards), "needs", needs)])
    assert await store.tasks.create([a_task()]) == [True]


async def test_two_prefixes_know_nothing_of_each_other(store: StoreFixture, server_url: str, shards: int) -> None:
    await store.client.open()
    client = a_client(server_url, shards + 5, prefix="other")
    await client.open()
    await client.aclose()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
async def test_a_server_that_may_evict_tasks_is_refused(store: StoreFixture, policy: str) -> None:
    await ask(store, [("CONFIG", "SET", "maxmemory-policy", policy)])
    try:
        with pytest.raises(StoreMismatch, match=f"maxmemory-policy is {policy}"):
            await store.client.open()
    finally:
        await ask(store, [("CONFIG", "SET", "maxmemory-policy", "noeviction")])
    assert (await ask(store, [("KEYS", "*")])) == [[]]
    await store.client.open()


@each_case("policy", ["noeviction", "volatile-lru", "volatile-ttl", "volatile-random"])
def test_a_server_that_evicts_only_volatile_keys_is_accepted(policy: str) -> None:
    check_server({"redis_version": "7.0.0", "maxmemory_policy": policy})


@each_case(
    "info",
    [
        {"redis_version": "7.0.0"},
        {"redis_version": "8.2.1"},
        {"redis_version": "255.255.255"},
        {"redis_version": "7.2.4", "valkey_version": "7.2.5"},
        {"redis_version": "7.2.4", "valkey_version": "9.1.0-rc1"},
    ],
)
def test_a_new_enough_server_is_accepted(info: dict[str, str]) -> None:
    check_server(info)


@each_case(
    ("info", "text"),
    [
        ({"redis_version": "6.2.14"}, "the store is Redis 6.2.14: later needs Redis 7.0 or newer"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.9"}, "Valkey 7.1.9: later needs Valkey 7.2 or newer"),
        ({}, "the store is Redis 0"),
    ],
)
def test_an_old_server_is_refused(info: dict[str, str], text: str) -> None:
    with pytest.raises(StoreMismatch, match=text):
        check_server(info)


@pytest.mark.parametrize("server", SERVERS)
async def test_a_node_of_a_cluster_is_refused_in_words(server: str, tmp_path: Path) -> None:
    port, bus_port = (str(port) for port in free_ports(2))
    options = ("--cluster-enabled", "yes", "--port", port, "--cluster-port", bus_port)
    with run_server(server, tmp_path, *options) as (url, _):
        daemon = a_client(url, 1)
        with pytest.raises(StoreMismatch, match=r"a node of a cluster: use redis\+cluster://"):
            await daemon.open()
        await daemon.aclose()
        command = StoreClient(connect(url, clock := Clock(time.monotonic, time.time), 10), clock, timeout_s=10)
        with pytest.raises(StoreMismatch, match="a node of a cluster"):
            await stored_layout(command.execute_each, "later")
        await command.aclose()


def test_a_sentinel_is_refused_in_words() -> None:
    with pytest.raises(StoreMismatch, match="this is a Sentinel, which stores nothing"):
        check_server({"redis_version": "7.2.4", "redis_mode": "sentinel"})
