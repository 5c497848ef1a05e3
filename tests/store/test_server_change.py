"""The address leads to another server, after a failover or a restart: it is checked before anything is sent to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from later.core.clock import Clock
from later.core.errors import StoreDown, StoreMismatch
from later.store.client import StoreClient
from later.store.connections import MAX_CONNECTIONS, connect
from later.store.open import open_existing_store
from later.store.schema import Execute, check_store
from later.store.settings import StoreSettings
from tests.servers import SERVERS, run_server

SET_Y = ("SET", "y", "1")


class Address:
    """A socket whose name leads to one server at a time."""

    def __init__(self, server: str, folder: Path, running: ExitStack) -> None:
        self.path = folder / "store.sock"
        self._server = server
        self._folder = folder
        self._running = running
        self._number = 0

    def lead_to_new_server(self, *options: str, old_stays: bool = False) -> redis.Redis:
        """Start an empty server, and return a direct client of it. The old one is stopped, unless it stays."""
        if not old_stays:
            self._running.close()
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        url, _ = self._running.enter_context(run_server(self._server, folder, *options))
        link = self.path.with_suffix(".new")
        link.symlink_to(url.removeprefix("unix://"))
        link.replace(self.path)
        client: redis.Redis = self._running.enter_context(redis.Redis.from_url(url))
        return client


@pytest.fixture(params=sorted(SERVERS))
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    with ExitStack() as running:
        address = Address(request.param, tmp_path, running)
        address.lead_to_new_server()
        yield address


@pytest.fixture
async def client(address: Address) -> AsyncIterator[StoreClient]:
    """A client as a daemon has it, that has used the first server."""
    clock = Clock(time.monotonic, time.time)
    redis = connect(f"unix://{address.path}", clock, 10)
    client = StoreClient(redis, clock, timeout_s=10, check=lambda run: check_store(run, "later", 4))
    await client.execute("set", ("SET", "x", "1"))
    yield client
    await client.aclose()


async def execute(client: StoreClient) -> object:
    """Execute a write. If it meets a connection that has just broken, execute it again, as a caller would."""
    try:
        return await client.execute("set", SET_Y)
    except StoreDown:
        return await client.execute("set", SET_Y)


async def test_one_that_may_evict_tasks_is_refused_until_that_is_changed(address: Address, client: StoreClient) -> None:
    server = address.lead_to_new_server("--maxmemory-policy", "allkeys-lru")
    for _ in range(2):
        with pytest.raises(StoreMismatch, match="maxmemory-policy is allkeys-lru"):
            await execute(client)
    assert server.keys() == []
    server.config_set("maxmemory-policy", "noeviction")
    await execute(client)
    assert server.get("y") == b"1"


async def test_a_bulk_job_refuses_it_too(address: Address, client: StoreClient) -> None:
    settings = StoreSettings(url=f"unix://{address.path}", prefix="later", timeout_s=10)
    store = await open_existing_store(settings, Clock(time.monotonic, time.time))
    server = address.lead_to_new_server("--maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreMismatch, match="maxmemory-policy is allkeys-lru"):
        await execute(store.client)
    assert server.keys() == []
    await store.aclose()


async def test_one_with_another_layout_is_refused(address: Address, client: StoreClient) -> None:
    server = address.lead_to_new_server()
    server.hset("later:meta", mapping={"schema": 1, "shards": 2})
    with pytest.raises(StoreMismatch, match="--shards 2"):
        await execute(client)
    assert server.keys() == [b"later:meta"]


async def test_an_empty_one_is_laid_out_before_it_is_used(address: Address, client: StoreClient) -> None:
    server = address.lead_to_new_server()
    await execute(client)
    assert server.hgetall("later:meta") == {b"schema": b"1", b"shards": b"4", b"topics": b"1"}


async def test_many_callers_at_once_share_one_check(address: Address, client: StoreClient) -> None:
    checks = count_checks(client)
    address.lead_to_new_server()
    await asyncio.gather(*(execute(client) for _ in range(5 * MAX_CONNECTIONS)))
    assert checks() == 1


async def test_one_that_is_used_already_is_not_checked_again(address: Address, client: StoreClient) -> None:
    checks = count_checks(client)
    for _ in range(3):
        await asyncio.gather(*(client.execute("set", SET_Y) for _ in range(2 * MAX_CONNECTIONS)))
        await client._connections.drop_idle()
    assert checks() == 0


async def test_one_whose_predecessor_lives_on_is_checked_and_used_alone(address: Address, client: StoreClient) -> None:
    server = address.lead_to_new_server(old_stays=True)
    await asyncio.gather(*(client.execute("set", ("INCR", "n")) for _ in range(2 * MAX_CONNECTIONS)))
    server.delete("n")
    await asyncio.gather(*(client.execute("set", ("INCR", "n")) for _ in range(2 * MAX_CONNECTIONS)))
    assert server.get("n") == b"%d" % (2 * MAX_CONNECTIONS)


def count_checks(client: StoreClient) -> Callable[[], int]:
    """Return a function that returns how many checks were made since now."""
    check, counts = client._check, [0]
    assert check is not None

    async def counted(execute: Execute) -> str:
        counts[0] += 1
        return await check(execute)

    client._check = counted
    return lambda: counts[0]
